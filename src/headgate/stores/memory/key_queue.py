"""The queue of one key in memory.

A process may use very many keys, and most callers pass at once. So the state of a key under one
rate, window or quota begins as a few numbers, a `KeyState`. A caller that needs more than these
opens the `MemoryQueue` of the key, which takes them over.

A `KeyState` is a rule with four more numbers. One object for each key takes less time than two: the
garbage collector visits each of them again and again.
"""

from __future__ import annotations

from asyncio import _get_running_loop
from collections.abc import Callable
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol, cast

from headgate.changes import Change, Update
from headgate.counts import counts_of
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.gate import Gate, Grant, Rules
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.gate.token_bucket import TokenBucketRule
from headgate.permit import Permit, Refusal
from headgate.stores.loops import no_loop
from headgate.stores.memory.fast_path import NO_WAIT
from headgate.stores.memory.lock import BUSY, DEFERRED, Lock, Reentered
from headgate.stores.memory.queue import MemoryQueue, declare
from headgate.stores.memory.queue_state import read_status
from headgate.stores.status import Status, unused

if TYPE_CHECKING:
    from headgate.clock import Clock
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Rule, Units
    from headgate.request import Request


class KeyState:
    """The numbers of a key, under the lock that all queues in memory share.

    Each subclass adds the rule of one kind.
    """

    declared: Declaration
    fence: int  # of the last grant; 0: there was none
    inside: int  # callers in a block
    busy: bool  # an admission is in the middle of its step

    if TYPE_CHECKING:

        def idle_at(self) -> int: ...  # of the rule
    else:  # the subclasses have the slots
        __slots__ = ()

    def is_idle(self, now: int) -> bool:
        """Whether a new state would be the same."""
        return not (self.busy or self.inside) and self.idle_at() <= now

    def status(self, name: str, now: int, pause: int) -> Status:
        """`pause`: for how many microseconds the whole limiter is paused."""
        gate = Gate(self.declared.rules(), now)
        gate.rules = Rules([cast("Rule", deepcopy(self))])
        gate.pause_whole(now, pause)
        return read_status(name, gate, self.declared)


NUMBERS = "busy", "declared", "fence", "inside"


class BucketState(TokenBucketRule, KeyState):
    __slots__ = NUMBERS


class WindowState(SlidingWindowRule, KeyState):
    __slots__ = NUMBERS


class QuotaState(FixedWindowRule, KeyState):
    __slots__ = NUMBERS


STATES: dict[Any, Any] = {
    TokenBucketRule: BucketState,
    SlidingWindowRule: WindowState,
    FixedWindowRule: QuotaState,
}
STATE_CLASSES = frozenset(STATES.values())


def new_state(declared: Declaration, t: int) -> KeyState:
    """The state of a new key at `t`."""
    make = declared.make_state
    if make is None:
        make = declared.make_state = declared.maker_of(STATES)
    state: KeyState = make(t)
    state.declared, state.fence, state.inside, state.busy = declared, 0, 0, False
    return state


class KeyStore(Protocol):
    clock: Clock
    counts_blocks: bool
    kept: dict[str, Any]  # by name: a KeyState or a MemoryQueue
    lock: Lock
    pauses: dict[str, int]  # of whole limiters, by name: when they end
    pauses_end: int  # the latest of these moments

    def begin_key(self, name: str, declared: Declaration, t: int) -> KeyState | None: ...
    def open_queue(self, name: str, declared: Declaration) -> MemoryQueue: ...


def by_queue(method: str) -> Callable[..., Any]:
    """A method that opens the whole queue, and calls the method of it."""

    def call(self: KeyQueue, *arguments: Any, **options: Any) -> Any:
        return getattr(self._open(), method)(*arguments, **options)

    return call


class KeyQueue:
    """The queue of a key as one limiter object sees it. Others of the key share its state.

    Its first acquire declares its limits, as `Undeclared` does for the whole limiter.
    """

    __slots__ = ("_has_declared", "_own", "_store", "name")

    def __init__(self, store: KeyStore, name: str, own: Declaration) -> None:
        self.name = name
        self._store = store
        self._own = own
        self._has_declared = False  # an acquire or an update has declared its limits

    def _open(self, in_use: bool = False) -> MemoryQueue:
        """The whole queue. Raises Reentered in code that has interrupted an admission.

        `in_use`: for an acquire. Declare the limits if no acquire has.
        """
        queue = self._store.open_queue(self.name, self._own)
        queue.accept(self._own, known=False)  # a limiter without limits may have opened it
        if in_use:
            declare(queue, self._own)
        return queue

    @property
    def declared(self) -> Declaration:
        """The limits that hold. Before the first acquire: those that will hold after it."""
        state, own = self._store.kept.get(self.name), self._own
        if state is None or state.declared is own:
            return own
        if self._has_declared:
            return cast("Declaration", state.declared)
        return state.foresee(own) if isinstance(state, MemoryQueue) else own

    def _declare_own(self) -> None:
        """Declare the limits, unless they hold already."""
        kept = self._store.kept
        if self.name in kept and kept[self.name].declared is not self._own:
            self.follow(self._own)
        self._has_declared = True

    # Blocks ---------------------------------------------------------------------------------------

    def enter(self) -> bool:
        if not self._has_declared:
            self._declare_own()
        if self._admit(1) is not None:
            return True
        state = self._store.kept.get(self.name)
        return state.__class__ is MemoryQueue and state.enter()

    def enter_task(self) -> bool:
        if _get_running_loop() is None:
            raise no_loop()
        return self.enter()

    def leave(self) -> None:
        kept = self._store.kept
        state: Any = kept.get(self.name)
        # No call comes before the writing, so no other thread and no handler runs meanwhile.
        if state.__class__ in STATE_CLASSES:
            if state.inside:
                state.inside -= 1
                return
            state = kept.get(self.name)  # opened just now
        if state.__class__ is MemoryQueue:
            state.leave()

    def _admit(self, block: int) -> tuple[int, int] | None:
        """Take one token. Returns the moment and the fence.

        None: no token is there now, or the whole queue of the key has to decide. `block`: 1 for a
        caller that enters a block, else 0. An exception may come wherever Python runs a signal
        handler: see fast_path.py.
        """
        lock = self._store.lock
        is_released, passed = False, None
        try:
            if not lock.acquire(*NO_WAIT):
                lock.wait()
            passed = self._step(block)
            is_released = True
            lock.release()
            if DEFERRED:
                lock.run_all_deferred()
            if passed is not None:
                self._count(block)
        except BaseException:
            if not is_released:
                try:  # noqa: SIM105 - no call comes before the release
                    lock.release()
                except RuntimeError:  # the exception came while this thread waited for the lock
                    pass
            if passed is not None and block:  # its token stays charged
                self.leave()
            raise
        return passed

    def _step(self, block: int) -> tuple[int, int] | None:
        """`_admit` under the lock. It takes effect whole or not at all."""
        store, name = self._store, self.name
        lock, kept = store.lock, store.kept
        fresh, t, paused = None, 0, 0
        if name not in kept:
            t = store.clock.now()
            fresh = store.begin_key(name, self._own, t)
        if store.pauses_end:
            # In a pause of the limiter with all its keys, callers wait in the whole queue. A
            # handler may run in this call and change the state, so it is no longer fresh.
            paused, fresh = pause_left(store, name), None
        # No call comes from here to `busy`, nor from the end of `begin_key`. So no handler changes
        # the state there. Later a handler finds it busy: it changes nothing, and leaves the
        # deferred calls to this caller.
        state: Any = kept[name] if name in kept else None  # noqa: SIM401 - `get` is a call
        if state.__class__ not in STATE_CLASSES or state.busy or paused:
            return None
        state.busy, before, lock.state = True, lock.state, BUSY
        try:
            if state is not fresh:
                t = store.clock.now()
            if not state.admit(t):
                return None
            # No call comes before the end of the step.
            fence = t if t > state.fence else state.fence + 1
            state.fence, state.inside = fence, state.inside + block
        finally:
            state.busy, lock.state = False, before
        return t, fence

    def _count(self, block: int) -> None:
        if self._store.counts_blocks or not block:
            counts_of(self.name).passed += 1

    # Permits --------------------------------------------------------------------------------------

    async def acquire(self, request: Request) -> Permit:
        if _get_running_loop() is None:
            raise no_loop()
        permit = self._try(request)
        return await self._open(in_use=True).acquire(request) if permit is None else permit

    def acquire_sync(self, request: Request) -> Permit:
        permit = self._try(request)
        return self._open(in_use=True).acquire_sync(request) if permit is None else permit

    async def atake(self, request: Request) -> Permit | Refusal:
        if _get_running_loop() is None:
            raise no_loop()
        permit = self._try(request)
        return await self._open(in_use=True).atake(request) if permit is None else permit

    def take(self, request: Request) -> Permit | Refusal:
        permit = self._try(request)
        try:
            return self._open(in_use=True).take(request) if permit is None else permit
        except Reentered:
            return Refusal(0.0)

    def _try(self, request: Request) -> Permit | None:
        if not self._has_declared:
            self._declare_own()
        if request.units or self._store.kept.get(self.name).__class__ is MemoryQueue:
            return None
        grant = self._admit(0)
        return None if grant is None else Permit(self, {}, Grant(*grant), 0.0, 0, None)

    # These permits come from a `KeyState`. Its limit is no `Concurrency`, so they hold nothing.

    def release(self, permit: Permit) -> None:
        """Do nothing."""

    abandon = release

    def owns(self, permit: Permit) -> bool:
        return True  # as in the whole queue

    def settle(self, permit: Permit, extras: Units) -> None:
        def charge(queue: MemoryQueue) -> None:
            declare(queue, self._own)
            queue.settle(permit, extras)

        self._run_or_defer(charge)

    # Changes and looks ----------------------------------------------------------------------------

    # By name, because Python reads attributes slowly in a class with `__getattr__`.
    enter_waiting, enter_sync = by_queue("enter_waiting"), by_queue("enter_sync")
    foresee, accept = by_queue("foresee"), by_queue("accept")
    learn, learn_sync = by_queue("learn"), by_queue("learn_sync")
    check_in_use, once_known = by_queue("check_in_use"), by_queue("once_known")
    flush, aflush = by_queue("flush"), by_queue("aflush")
    arelease = by_queue("arelease")

    def follow(self, declared: Declaration) -> None:
        state = self._store.kept.get(self.name)
        present = self._own if state is None else state.declared
        if declared.program != present.program:
            self._run_or_defer(lambda queue: queue.follow(declared))

    def change(self, change: Change) -> None:
        """As `Undeclared.change`."""
        if isinstance(change, Update):
            former = None if self._has_declared else self._own
            change = Update(change.declared, former, change.reason)
        self._run_or_defer(lambda queue: queue.change(change))
        self._has_declared = self._has_declared or isinstance(change, Update)

    async def achange(self, change: Change) -> None:
        self.change(change)

    def _run_or_defer(self, act: Callable[[MemoryQueue], None]) -> None:
        try:
            queue = self._open()
        except Reentered:  # the admission that this code has interrupted runs `act` at its end
            DEFERRED.append((self._store.lock, lambda: act(self._open())))
        else:
            act(queue)

    def status(self, own: Declaration | None = None) -> Status:
        state, pause = self._store.kept.get(self.name), pause_left(self._store, self.name)
        if state is None:
            return unused(self.name, own or self._own, pause)
        if isinstance(state, MemoryQueue):
            return state.status(own or self._own)

        def read(t: int) -> Status:
            return cast(KeyState, state).status(self.name, t, pause)

        now = self._store.clock.now()
        try:
            return self._store.lock.run(read, now)
        except Reentered:  # this code has interrupted the step of another queue
            return read(now)

    async def astatus(self, own: Declaration | None = None) -> Status:
        return self.status(own)

    def describe(self) -> str:
        return self.status().line()


def pause_left(store: KeyStore, key: str) -> int:
    """For how many microseconds the whole limiter of a key is paused."""
    now = store.clock.now()
    if now >= store.pauses_end:
        return 0
    return max(0, store.pauses.get(key.partition(":")[0], 0) - now)
