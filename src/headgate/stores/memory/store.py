"""The store of one process: its queues by name.

It forgets idle names. A limiter that still exists brings its queue back at its next use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from weakref import WeakSet, WeakValueDictionary

import headgate.clock as clocks
from headgate.counts import remember_units
from headgate.gate.compile import Declaration
from headgate.hooks import ON_CHANGE
from headgate.keys import whole_of
from headgate.stores.limit_history import Written, note_limits
from headgate.stores.memory.listing import MemoryLists
from headgate.stores.memory.lock import Lock, Reentered, forget_all
from headgate.stores.memory.queue import MemoryQueue, has_limits, recount, try_evict, usage
from headgate.stores.memory.waiters import Waiter
from headgate.stores.status import Status
from headgate.threads import snapshot

FEWEST_QUEUES = 1024  # queues that are kept without looking for idle ones


class MemoryStore:
    """The store never forgets a queue with holders, waiters or counts."""

    def __init__(self, clock: clocks.Clock | None = None, is_share: bool = False) -> None:
        self.clock = clock or clocks.made()
        self.is_share = is_share  # of the limits of another store, which is away
        self._lock = Lock("store", lambda: None)
        self._queues: WeakValueDictionary[str, MemoryQueue] = WeakValueDictionary()
        self._kept: dict[str, MemoryQueue] = {}
        self._most = FEWEST_QUEUES
        self._written: Written = {}
        self._pauses: dict[str, int] = {}  # of whole limiters, by name: when they end
        STORES.add(self)

    def queue(self, name: str, declared: Declaration) -> MemoryQueue:
        """The queue of `name`, made with `declared` if there is none.

        Warn if another limiter of the name has other limits. Nothing is declared.
        """
        note_limits(self._written, name, declared.program)
        return self.open_queue(name, declared)

    def open_queue(self, name: str, declared: Declaration) -> MemoryQueue:
        """As `queue`, without the warning."""
        queue = self._queues.get(name)
        if queue is None:  # a known one needs no lock
            try:
                queue = self._lock.run(lambda name: self._queue(name, declared), name)
            except Reentered:
                queue = self._queue(name, declared)
        if len(self._kept) > self._most:
            self._forget_idle()
        return queue

    def _queue(self, name: str, declared: Declaration) -> MemoryQueue:
        """If a signal handler makes a queue meanwhile, the first one stored wins."""
        queue = self._queues.get(name)
        if queue is None:
            queue = self._kept.setdefault(name, MemoryQueue(self, name, declared))
            self._queues[name] = queue
            # Look after the queue is stored: `pause_keys` notes the pause before it looks for keys.
            if self._pauses and (until := self._pauses.get(whole_of(name) or "")):
                queue.pause_whole(until)
        return queue

    def pause_keys(self, name: str, until: int) -> None:
        """Pause all keys of the limiter `name`, or end their pause (0). Their own pauses stay."""
        if len(self._pauses) > FEWEST_QUEUES:
            now = self.clock.now()
            self._pauses = {each: end for each, end in self._pauses.copy().items() if end > now}
        self._pauses[name] = until
        for queue in self.keys_of(name):
            queue.pause_whole(until)

    def keys_of(self, name: str) -> list[MemoryQueue]:
        """The queues of the keys of the limiter `name`."""
        return [queue for queue in self.queues() if whole_of(queue.name) == name]

    def queues(self) -> list[MemoryQueue]:
        """All queues in use, and idle ones that were not forgotten yet."""
        return list(self._queues.values())

    def recount(self) -> None:
        for queue in self.queues():
            recount(queue)

    # For headgate.telemetry: RedisStore has the same methods.

    def usages(self) -> list[tuple[str, int, int]]:
        """For each queue: its name, its held permits, its waiters."""
        return [(queue.name, *usage(queue)) for queue in self.queues()]

    def statuses(self, is_shown: Callable[[str], bool]) -> list[tuple[str, Status]]:
        """The status of each queue with limits and such a name."""
        wanted = [] if self.is_share else self.queues()
        return [
            (queue.name, queue.status())
            for queue in wanted
            if has_limits(queue) and is_shown(queue.name)
        ]

    def keep(self, queue: MemoryQueue) -> None:
        self._kept[queue.name] = queue

    def _forget_idle(self) -> None:
        """Forget idle queues, so seldom that the work for each new queue stays constant."""
        # Meanwhile another thread or a signal handler begins no second search.
        self._most = 2 * len(self._kept)
        for name, queue in list(self._kept.items()):
            if try_evict(queue):
                remember_units(name, queue.declared.capacity)
                self._kept.pop(name, None)
        self._most = max(FEWEST_QUEUES, 2 * len(self._kept))

    def begin_again(
        self, clock: clocks.Clock, limits: Mapping[MemoryQueue, Declaration]
    ) -> list[tuple[MemoryQueue, Waiter]]:
        """For headgate.testing: start all queues afresh on `clock`, some with these `limits`.

        Returns the former waiters, which no queue knows now.
        """
        self.clock, self._pauses = clock, {}
        former = []
        for queue in self.queues():
            waiters = queue.begin_again(limits.get(queue, queue.declared))
            former += [(queue, waiter) for waiter in waiters]
            self.keep(queue)
        return former

    @property
    def lists(self) -> MemoryLists:
        return MemoryLists(self.queues)

    @property
    def texts(self) -> None:
        """There is no other process to share with."""
        return None

    def forget_places(self) -> None:
        """Forget where limiters were made, and with which limits."""
        self._written.clear()

    def forked(self) -> None:
        self._lock.fork(lambda: None)
        for queue in self.queues():
            queue.forked()


STORES: WeakSet[MemoryStore] = WeakSet()


def recount_all() -> None:
    for store in snapshot(STORES):
        store.recount()


ON_CHANGE.append(recount_all)


def _after_fork() -> None:
    forget_all()
    for store in list(STORES):
        store.forked()


os.register_at_fork(after_in_child=_after_fork)
