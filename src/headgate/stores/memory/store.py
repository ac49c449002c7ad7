"""The store of one process: its queues by name.

It forgets idle names. A limiter that still exists brings its queue back at its next use.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast
from weakref import WeakSet, WeakValueDictionary

import headgate.clock as clocks
from headgate.counts import counts_blocks, remember_units
from headgate.gate.compile import Declaration
from headgate.hooks import ON_CHANGE
from headgate.keys import title, whole_of
from headgate.stores.limit_history import Written, note_limits
from headgate.stores.memory.key_queue import KeyQueue, KeyState, new_state
from headgate.stores.memory.lock import Lock, Reentered, forget_all, has_lock
from headgate.stores.memory.queue import (
    MemoryQueue,
    has_limits,
    recount,
    take_over,
    try_evict,
    usage,
)
from headgate.stores.memory.waiters import Waiter
from headgate.stores.status import Status
from headgate.threads import living, snapshot

if TYPE_CHECKING:
    from headgate.gate.gate import Rule
    from headgate.interfaces import Lists, Queue

FEWEST_QUEUES = 1024  # queues that are kept without looking for idle ones


class MemoryStore:
    """The store never forgets a queue with holders, waiters or counts."""

    def __init__(self, clock: clocks.Clock | None = None, is_share: bool = False) -> None:
        self.clock = clock or clocks.make_clock()
        self.is_share = is_share  # of the limits of another store, which is away
        self.lock = Lock("store", lambda: None)
        # Every queue that some code refers to. The store itself refers to those in `kept`.
        self._queues: WeakValueDictionary[str, MemoryQueue] = WeakValueDictionary()
        self.kept: dict[str, KeyState | MemoryQueue] = {}
        # Whether the queue of a key was ever dropped from `kept`. Code may still refer to such a
        # queue, and then `_queues` has it.
        self._has_dropped = False
        self._most = FEWEST_QUEUES  # of `kept`, before the next search for idle ones
        self.counts_blocks = counts_blocks()
        self._written: Written = {}  # where limiters were made, and with which limits
        self.pauses: dict[str, int] = {}  # of whole limiters, by name: when they end
        self.pauses_end = 0  # the latest of these moments
        STORES.add(self)

    def queue(self, name: str, declared: Declaration) -> Queue:
        """The queue of `name`, made with `declared` if there is none. Nothing is declared.

        Warn if another limiter of the name has other limits. A key has those of its limiter, so
        there is no warning for it.
        """
        if declared.is_one_rate and ":" in name:  # a key
            if len(self.kept) > self._most:
                self._forget_idle()
            return cast("Queue", KeyQueue(self, name, declared))
        note_limits(self._written, name, declared.program)
        return self.open_queue(name, declared)

    def open_queue(self, name: str, declared: Declaration) -> MemoryQueue:
        """The whole queue, without the warning."""
        queue = self._queues.get(name)
        if queue is None:  # a known one needs no lock
            try:
                queue = self.lock.run(lambda name: self._queue(name, declared), name)
            except Reentered:  # this code has interrupted a step, so its thread has the lock
                queue = self._queue(name, declared)
        if len(self.kept) > self._most:
            self._forget_idle()
        return queue

    def _queue(self, name: str, declared: Declaration) -> MemoryQueue:
        """If a signal handler makes a queue meanwhile, the first one stored wins."""
        queue = self._queues.get(name)
        if queue is None:
            state = self.kept.get(name)
            if isinstance(state, KeyState):
                return self._open_key(name, state)
            queue = MemoryQueue(self, name, declared)
            self._pause_key(queue)
            self.lock.deferred.append((self.lock, lambda: self._enroll(name)))
            queue = cast(MemoryQueue, self.kept.setdefault(name, queue))
        return queue

    def _open_key(self, name: str, state: KeyState) -> MemoryQueue:
        if state.busy:
            raise Reentered(title(name))
        state.busy = True  # a signal handler that comes meanwhile leaves the numbers as they are
        try:
            if self.kept[name] is not state:  # a handler has opened it before this
                return cast(MemoryQueue, self.kept[name])
            queue = MemoryQueue(self, name, state.declared)
            inside = take_over(queue, cast("Rule", state), state.fence)
            self._pause_key(queue)
            self.lock.deferred.append((self.lock, lambda: self._enroll(name)))
            # These lines make no call, so nothing runs between them. Each block that leaves finds
            # its count, in the new queue or in the old state.
            self.kept[name] = queue
            inside += [None] * state.inside
            state.inside = 0
        finally:
            state.busy = False
        return queue

    def _enroll(self, name: str) -> None:
        """List the new queue of `name`. This is deferred, so it also runs if an exception ends the
        step that made the queue.
        """
        queue = self.kept.get(name)
        if isinstance(queue, MemoryQueue):
            self._queues[name] = queue
            # `pause_keys` notes a pause before it looks for queues. It may have missed this one.
            self._pause_key(queue)

    def _pause_key(self, queue: MemoryQueue) -> None:
        if self.pauses and (until := self.pauses.get(whole_of(queue.name) or "")):
            queue.pause_whole(until)

    def begin_key(self, name: str, declared: Declaration, t: int) -> KeyState | None:
        """Begin the state of a key at `t`, under the lock.

        None: a signal handler has begun one meanwhile. Or some code still refers to the evicted
        queue of the key, so that one goes on instead.
        """
        if self._has_dropped and self._queues.get(name) is not None:
            return None
        state = new_state(declared, t)
        if name in self.kept:
            return None
        # No call comes after this line: no handler runs before the caller goes on.
        self.kept[name] = state
        return state

    def pause_keys(self, name: str, until: int) -> None:
        """Pause all keys of the limiter `name`, or end their pause (0). Their own pauses stay."""
        if ":" in name:  # a key, which has no keys
            return
        if len(self.pauses) > FEWEST_QUEUES:
            now = self.clock.now()
            self.pauses = {each: end for each, end in self.pauses.copy().items() if end > now}
        self.pauses[name] = until
        # Another thread may note a pause at any moment: then the larger of both ends counts.
        while self.pauses_end != (end := max(self.pauses.copy().values())):
            self.pauses_end = end
        for queue in self.queues():
            if whole_of(queue.name) == name:
                queue.pause_whole(until)

    def has_keys(self, name: str) -> bool:
        """Whether a key of the limiter `name` has limits."""
        return any(whole_of(each) == name for each, _ in self.declarations())

    def queues(self) -> list[MemoryQueue]:
        """All queues in use, and idle ones that were not forgotten yet."""
        return living(self._queues)

    def _key_states(self) -> list[tuple[str, KeyState]]:
        kept = list(self.kept.items())
        return [(name, state) for name, state in kept if isinstance(state, KeyState)]

    def recount(self) -> None:
        self.counts_blocks = counts_blocks()
        for queue in self.queues():
            recount(queue)

    # For headgate.telemetry: RedisStore has the same methods.

    def usages(self) -> list[tuple[str, int, int]]:
        """For each queue: its name, its held permits, its waiters."""
        return [(queue.name, *usage(queue)) for queue in self.queues()]

    def statuses(self, is_shown: Callable[[str], bool]) -> list[tuple[str, Status]]:
        """The status of each queue with limits and such a name."""
        if self.is_share:
            return []
        wanted: list[MemoryQueue | KeyQueue] = [each for each in self.queues() if has_limits(each)]
        wanted += [KeyQueue(self, name, state.declared) for name, state in self._key_states()]
        return [(each.name, each.status()) for each in wanted if is_shown(each.name)]

    def declarations(self) -> list[tuple[str, Declaration]]:
        """The limits of each name and key that has any."""
        keys = [(name, state.declared) for name, state in self._key_states()]
        queues = [(queue.name, queue.declared) for queue in self.queues() if has_limits(queue)]
        return [*queues, *keys]

    def keep(self, queue: MemoryQueue) -> None:
        self.kept[queue.name] = queue

    def drop(self, queue: MemoryQueue) -> None:
        if self.kept.get(queue.name) is queue:
            self._has_dropped = self._has_dropped or ":" in queue.name
            del self.kept[queue.name]

    def _try_forget(self, name: str) -> None:
        """Forget the state of a key under the lock, if that changes nothing."""
        state = self.kept.get(name)
        if isinstance(state, KeyState) and state.is_idle(self.clock.now()):
            del self.kept[name]
            remember_units(name, state.declared.capacity)

    def _forget_idle(self) -> None:
        """Forget idle queues, so seldom that the work for each new queue stays constant."""
        # Meanwhile another thread or a signal handler begins no second search.
        self._most = 2 * len(self.kept)
        now = self.clock.now()
        for name, kept in list(self.kept.items()):
            if isinstance(kept, KeyState):
                if kept.is_idle(now):  # look first: the lock costs more
                    with suppress(Reentered):
                        self.lock.run(self._try_forget, name)
            elif try_evict(kept):
                remember_units(name, kept.declared.capacity)
        self._most = max(FEWEST_QUEUES, 2 * len(self.kept))

    def begin_again(
        self, clock: clocks.Clock, limits: Mapping[MemoryQueue, Declaration]
    ) -> list[tuple[MemoryQueue, Waiter]]:
        """For headgate.testing: start all queues afresh on `clock`, some with these `limits`.

        Returns the former waiters, which no queue knows now.
        """
        self.clock, self.pauses, self.pauses_end = clock, {}, 0
        for name, _ in self._key_states():
            self.kept.pop(name, None)
        former = []
        for queue in self.queues():
            waiters = queue.begin_again(limits.get(queue, queue.declared))
            former += [(queue, waiter) for waiter in waiters]
            self.keep(queue)
        return former

    @property
    def lists(self) -> Lists:
        from headgate.stores.memory.listing import MemoryLists  # few programs look

        return MemoryLists(self)

    @property
    def texts(self) -> None:
        """None: one process needs no texts that processes share (`Texts`)."""
        return None

    def forget_places(self) -> None:
        """Forget where limiters were made, and with which limits."""
        self._written.clear()

    def forked(self) -> None:
        self.lock.forked(lambda: None)
        for _, state in self._key_states():
            state.inside = 0  # the blocks are the parent's
            # If this thread has the lock, it is in the admission, which goes on in the child.
            state.busy = state.busy and has_lock()
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
