"""The queue of one name in memory, as limiters and permits see it.

Threads, event loops, `async with` and `with` share it. Its methods call the steps of queue_state.py
and wait_queue.py under the lock, and decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from headgate.changes import Change, Pause
from headgate.counts import counts_blocks, counts_of
from headgate.gate.compile import Declaration
from headgate.gate.gate import Rule, Rules
from headgate.keys import whole_of
from headgate.permit import Permit
from headgate.stores.change_events import note_change
from headgate.stores.loops import LoopCheck
from headgate.stores.memory.acquires import Acquires
from headgate.stores.memory.fast_path import (
    Build,
    build_held_leave,
    build_locked_enter,
    build_pooled_enter,
    build_pooled_leave,
    build_pooled_wait,
    build_uncounted_leave,
    counted_enter,
    not_at_once,
)
from headgate.stores.memory.lock import Lock, Reentered
from headgate.stores.memory.queue_state import OwnStore, QueueState, read_status
from headgate.stores.status import Status, snapshot

if TYPE_CHECKING:
    from headgate.gate.gate import Units
    from headgate.request import Request
    from headgate.stores.members import Members
    from headgate.stores.memory.waiters import Waiter


class MemoryQueue(Acquires):
    __slots__ = ("_counted", "_store", "enter", "enter_task", "enter_waiting")

    enter_waiting: Callable[[Request], Coroutine[Any, Any, None]]

    def __init__(self, store: OwnStore, name: str, declared: Declaration) -> None:
        self.name = name
        self.counts = counts_of(name, store.is_share)
        # See `counted_enter`. None: the fast path has never counted.
        self._counted: tuple[Build, Callable[[], int]] | None = None
        self._store = store
        self._set_up(declared)

    def _set_up(self, declared: Declaration) -> None:
        self._clock = self._store.clock
        self._loop_check = LoopCheck(self)
        self._lock = Lock(self.name, lambda: self._state.repair())
        self._state = QueueState(self._store, self, declared, self._lock, self._build_fast_path)
        self._build_fast_path()

    def begin_again(self, declared: Declaration) -> list[Waiter]:
        """Start afresh with the store's present clock. Return the former waiters."""
        former = self._state.waiting
        former.local.migrate()
        waiters = cast("list[Waiter]", list(former.gate.queue))
        self._set_up(declared)
        self._state.waiting.local.epoch = former.local.epoch + 1
        self._state.waiting.first_epoch = former.first_epoch
        return waiters

    def _build_fast_path(self) -> None:
        state, lock, waiting = self._state, self._lock, self._state.waiting
        pools, counts = state.may_pool(), self.counts if counts_blocks() else None
        state.fast_path_closed = state.closed()
        enter = (
            not_at_once
            if state.fast_path_closed
            else build_locked_enter(self, waiting, lock, self._clock.now, counts)
        )
        if pools:
            build = build_pooled_enter if counts is None else begin_counting(self)
            enter = build(self, waiting, enter)
            self.leave = build_pooled_leave(self, waiting, lock)
        elif waiting.holders.counted:
            self.leave = build_held_leave(lock, waiting.release_one)
        else:
            self.leave = build_uncounted_leave(self, waiting.holders.inside)
        self.enter_waiting = (
            build_pooled_wait(self, waiting, self._clock.now, counts) if pools else self.enter_queue
        )
        waiting.pooling, self.enter = pools, enter
        # Tasks enter by `LoopCheck` until it has found that asyncio runs one of them.
        self.enter_task = enter if self._loop_check.knows() else self._loop_check.enter

    # The limits -----------------------------------------------------------------------------------

    @property
    def declared(self) -> Declaration:
        return self._state.waiting.declared

    def follow(self, declared: Declaration) -> None:
        """Declare the limits of an acquire."""
        if declared.program != self.declared.program:
            self._lock.run_or_defer(lambda: self._state.declare(declared))

    def accept(self, declared: Declaration, known: bool) -> None:
        """Go by these limits, if no acquire has declared any. `known` is for other stores."""
        if self._state.undeclared and declared.program != self.declared.program:
            self._lock.run_or_defer(lambda: self._state.accept(declared))

    def foresee(self, declared: Declaration) -> Declaration:
        return self._state.foresee(declared)

    def learn_sync(self) -> Declaration:
        return self._state.learn()

    async def learn(self) -> Declaration:
        return self._state.learn()

    async def check_in_use(self) -> None:
        self.once_known("", lambda: None, in_use=True)

    def once_known(self, call: str, act: Callable[[], None], in_use: bool = False) -> None:
        """Run `act` now, or raise if the name has no limits. `in_use`: those of a key suffice.

        `call` is for other stores.
        """
        if not (in_use and self._store.has_keys(self.name)):
            self._state.learn()
        act()

    def change(self, change: Change) -> None:
        whole = whole_of(self.name) if isinstance(change, Pause) and change.whole else None
        if whole is not None:
            self._store.open_queue(whole, self.declared).change(change)
            return
        self._lock.run_or_defer(lambda: self._state.change(change))
        if not self._store.is_share:
            note_change(self.name, change)

    def pause_whole(self, until: int) -> None:
        """For a key: the whole limiter is paused until this moment. 0: it is not."""
        self._lock.run_or_defer(lambda: self._state.pause_whole(until))

    async def achange(self, change: Change) -> None:
        self.change(change)

    def flush(self) -> None:
        """Do nothing: every call has taken effect already."""

    async def aflush(self) -> None:
        """Do nothing."""

    def status(self, own: Declaration | None = None) -> Status:
        try:
            return self._lock.run(self._state.status, own)
        except Reentered:
            # The step in progress may have changed only part of the state. So change nothing.
            gate = snapshot(self._state.waiting.gate)
            return read_status(self.name, gate, Declaration(gate.rules.all))

    async def astatus(self, own: Declaration | None = None) -> Status:
        return self.status(own)

    def describe(self) -> str:
        return self.status().line()

    # What a permit asks for -----------------------------------------------------------------------

    def release(self, permit: Permit) -> None:
        if permit.held:
            self._lock.run_or_defer(lambda: self._state.waiting.release(permit))

    async def arelease(self, permit: Permit) -> bool:
        held = permit.held
        self.release(permit)
        return held

    # A finalizer calls `abandon`, perhaps in the middle of this queue's own code.
    abandon = release

    def owns(self, permit: Permit) -> bool:
        return True  # a child of a fork has a state of its own

    def settle(self, permit: Permit, extras: Units) -> None:
        self.counts.costs.settle(extras)

        def charge() -> None:
            self._state.prepare(declares=False)
            self._state.waiting.settle(permit, extras)

        self._lock.run_or_defer(charge)

    def forked(self) -> None:
        self._lock.forked(self._state.disown)


def begin_counting(queue: MemoryQueue) -> Build:
    """The builder of a fast path that counts."""
    if queue._counted is None:
        queue._counted = counted_enter()
    build, take_count = queue._counted
    queue.counts.sources.add(take_count)
    return build


def stop_counting(queue: MemoryQueue) -> None:
    """Take the last count of the fast path. `queue` ends, or gets other counts."""
    if queue._counted is not None:
        queue.counts.collect(queue._counted[1])


def recount(queue: MemoryQueue) -> None:
    """The counting was switched on or off, or keys have other labels now."""

    def rebuild() -> None:
        stop_counting(queue)
        queue.counts = counts_of(queue.name, queue._store.is_share)
        queue._build_fast_path()

    queue._lock.run_or_defer(rebuild)


def try_evict(queue: MemoryQueue) -> bool:
    """Let the store forget `queue`, if that changes nothing. Returns whether it may."""
    try:
        evicted = queue._lock.run(queue._state.try_evict, None)
    except Reentered:
        return False
    if evicted:
        stop_counting(queue)
    return evicted


def take_over(queue: MemoryQueue, rule: Rule, fence: int) -> list[None]:
    """Go on from the numbers of a key: its rule and its last fence.

    Returns the list that counts the callers in blocks. The caller of this function adds those of
    the key.
    """
    waiting = queue._state.waiting
    waiting.gate.rules = Rules([rule])
    waiting.gate.fence = max(waiting.gate.fence, fence)
    queue._state.prepare()
    return waiting.holders.inside


def declare(queue: MemoryQueue, declared: Declaration) -> None:
    """Declare these limits, if no acquire has declared any."""
    if queue._state.undeclared:
        queue._lock.run_or_defer(lambda: queue._state.declare(declared))


def has_limits(queue: MemoryQueue) -> bool:
    """Whether an acquire has declared limits."""
    return not queue._state.undeclared


def usage(queue: MemoryQueue) -> tuple[int, int]:
    """How many permits are held, and how many callers wait, as read without the lock."""
    waiting = queue._state.waiting
    held = max((rule.used for rule in waiting.gate.rules.holding), default=0)
    return max(0, held - len(waiting.holders.pool)), waiters(queue)


def waiters(queue: MemoryQueue) -> int:
    """How many callers wait, as read without the lock."""
    waiting = queue._state.waiting
    return len(waiting.gate.queue) + len(waiting.local.futures)


def members(queue: MemoryQueue) -> Members:
    from headgate.stores.memory.members import members_of  # few programs look

    waiting = queue._state.waiting
    return queue._lock.run(lambda now: members_of(waiting, now), queue._clock.now())


def oldest_wait(queue: MemoryQueue) -> float | None:
    from headgate.stores.memory.members import oldest_wait_of  # as above

    waiting = queue._state.waiting
    return queue._lock.run(lambda now: oldest_wait_of(waiting, now), queue._clock.now())
