"""A clock that the test moves, for all limiters in this process's memory."""

from __future__ import annotations

import asyncio
import heapq
import math
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import headgate.clock as clocks
from headgate.clock import Clock, SystemClock
from headgate.gate.compile import Declaration
from headgate.internals import limiters_in, restart_limiter
from headgate.keys import title
from headgate.limiter import Limiter
from headgate.limits import Limit
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.memory.store import STORES, MemoryStore
from headgate.testing.virtual_loop import VirtualLoop
from headgate.validation import MICROSECOND, flag, instant, microseconds, seconds

T = TypeVar("T")
NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
TURNS = 50  # of an event loop: enough for each task that can go on, until it waits again
BREATH = 0.001  # real seconds: enough for threads that can go on, until they wait again


class ManualClock(Clock):
    """Time that stands still until the test moves it.

    Inside its `with` block, all limiters in this process's memory use it.

        with ManualClock() as clock:
            permit = api.try_acquire()     # all limits are as new
            clock.advance(30)              # half a minute later: acquires that waited for it go on

    Entering and leaving the block clears the counts, holders and waiters of the limiters in memory,
    so tests do not affect each other. An acquire that still waits then raises RuntimeError.
    Limiters on Redis keep the server's time.
    `skips`: the clock moves itself. An acquire that has to wait moves it to the next moment at
    which an acquire can go on. A task sees the moment of its grant; several threads run at their
    own speed, and may see later moments.
    `start`: the first moment, an aware datetime or seconds since 1970. Quotas depend on the date.
    Unsaid: 2025-01-01 UTC.

    Raises RuntimeError when another ManualClock is in use.
    """

    def __init__(self, *, skips: bool = False, start: datetime | float = NEW_YEAR) -> None:
        self.skips = flag("ManualClock", "skips", skips)
        self.start = self.moment = microseconds(instant("ManualClock", "start", start))
        self._timers: list[tuple[int, int, _Timer]] = []
        self._numbers = count()
        self._lock = threading.Lock()
        self._skipping: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        # The limits when the block was entered. Leaving it restores them.
        self._limits_of_queues: WeakKeyDictionary[MemoryQueue, Declaration] = WeakKeyDictionary()
        self._limits_of_limiters: WeakKeyDictionary[Limiter, tuple[Limit, ...]] = (
            WeakKeyDictionary()
        )

    def now(self) -> int:
        """Whole microseconds since 1970."""
        return self.moment

    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return (self.moment - self.start) / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and stop at each moment at which an acquire can go on.

        In a coroutine, use `aadvance`. Other threads, and coroutines of other loops, run at their
        own speed: wait for their results.
        """
        target = self.moment + _microseconds("advance", seconds)
        while self._step(target):
            pass
        self._move_to(target)

    async def aadvance(self, seconds: float) -> None:
        """`advance` for coroutines. At each moment the tasks that can go on do so first."""
        target = self.moment + _microseconds("aadvance", seconds)
        if self.is_moved_by(asyncio.get_running_loop()):
            await asyncio.sleep(seconds)
        await _give_turns()
        while self._step(target):
            await _give_turns()
        self._move_to(target)
        await _give_turns()

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """`asyncio.run` by this clock: when all tasks wait, time moves on, also for asyncio.sleep.

        Use it for code without sockets: time does not wait for a socket. Raises Standstill when no
        task can ever go on.
        """
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self)) as runner:
            return runner.run(story)

    def __enter__(self) -> ManualClock:
        if clocks.make_clock is not SystemClock:
            raise RuntimeError(
                "Another ManualClock is in use already: leave its block first, or use that clock."
            )
        clocks.make_clock = lambda: self
        for store in [store for store in STORES if isinstance(store.clock, SystemClock)]:
            self._limits_of_queues.update({queue: queue.declared for queue in store.queues()})
            self._limits_of_limiters.update(
                {limiter: limiter.limits for limiter in limiters_in(store)}
            )
            _restart_store(store, self, {}, {})
        return self

    def __exit__(self, *outcome: object) -> None:
        clocks.make_clock = SystemClock
        self._timers.clear()
        for store in [store for store in STORES if store.clock is self]:
            _restart_store(store, SystemClock(), self._limits_of_queues, self._limits_of_limiters)

    # For a store -------------------------------------------------------------------------------

    def wait(self, event: clocks.Event, timeout: float | None) -> None:
        """Block this thread until `event` is set, or the clock has moved by `timeout` seconds."""
        timer = None if timeout is None else self._plan(timeout, event.set)
        # With `skips` and a time-out, this thread moves the clock until the wait ends. Otherwise
        # another thread moves the clock or sets the event.
        while not event.wait(BREATH if self.skips and timer is not None else None):
            self._step()
        if timer is not None:
            timer.cancel()

    def later(
        self, loop: asyncio.AbstractEventLoop, timeout: float, call: Callable[[], None]
    ) -> clocks.Timer:
        """Run `call` in `loop` when the clock has moved by `timeout` seconds."""
        if self.is_moved_by(loop):
            return loop.call_later(timeout, call)
        timer = self._plan(timeout, partial(_call_in_loop, loop, call))
        if self.skips and loop not in self._skipping:
            self._skipping.add(loop)
            self._skip(loop, TURNS)
        return timer

    def is_moved_by(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether `loop` comes from `run`. The timers of such a loop move this clock."""
        return isinstance(loop, VirtualLoop) and loop.clock is self

    def jump(self, seconds: float) -> None:
        """Move forward by `seconds`, rounded up to a microsecond. Wakes no waiter."""
        self.moment += _round_up(seconds)

    def _plan(self, timeout: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer(call)
        with self._lock:
            entry = (self.moment + _round_up(timeout), next(self._numbers), timer)
            heapq.heappush(self._timers, entry)
        return timer

    def _skip(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """Give `turns` turns to the tasks of `loop`, then move the clock. Repeat until no acquire
        waits for it.
        """
        if turns == 0:
            self._step()
            turns = TURNS + 1
        if self._has_timers():
            loop.call_soon(self._skip, loop, turns - 1)
        else:
            self._skipping.discard(loop)

    def _has_timers(self) -> bool:
        with self._lock:
            while self._timers and self._timers[0][2].call is None:
                heapq.heappop(self._timers)
            return bool(self._timers)

    def _step(self, until: float = math.inf) -> bool:
        """Move to the next moment of a timer and run the due calls. False: none up to `until`."""
        due: list[Callable[[], None]] = []
        with self._lock:
            while self._timers:
                moment, _, timer = self._timers[0]
                # The first due call moves the clock. Others run in this step if they are due then.
                latest = min(until, self.moment) if due else until
                if timer.call is not None and moment > latest:
                    break
                heapq.heappop(self._timers)
                if timer.call is not None:
                    self.moment = max(self.moment, moment)
                    due.append(timer.call)
        for call in due:
            call()
        return bool(due)

    def _move_to(self, moment: int) -> None:
        with self._lock:
            self.moment = max(self.moment, moment)

    def __repr__(self) -> str:
        moment = datetime.fromtimestamp(self.moment / 1_000_000, UTC).isoformat()
        return f"<ManualClock: {moment}, {self.elapsed():g} s elapsed>"


class _Timer:
    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call  # until it is cancelled

    def cancel(self) -> None:
        self.call = None


async def _give_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if asyncio._get_running_loop() is loop:
        call()
    else:
        with suppress(RuntimeError):  # the loop is closed, so its tasks have ended
            loop.call_soon_threadsafe(call)


def _round_up(seconds: float) -> int:
    # So no timer of a loop runs too early. A float error below 1e-9 s is ignored.
    return math.ceil(seconds * 1_000_000 - 1e-3)


def _microseconds(call: str, duration: float) -> int:
    # A rounding error of floats, as in `0.3 - 0.1 * 3`, counts as 0.
    if isinstance(duration, float) and abs(duration) < MICROSECOND / 2:
        return 0
    return microseconds(seconds(call, "seconds", duration, zero=True))


def _restart_store(
    store: MemoryStore,
    clock: Clock,
    queues: Mapping[MemoryQueue, Declaration],
    limiters: Mapping[Limiter, tuple[Limit, ...]],
) -> None:
    """Make each queue and each limiter of `store` as new, by another clock.

    `queues`, `limiters`: the limits of those that do not keep their present ones.
    """
    for queue, waiter in store.begin_again(clock, queues):
        waiter.check_at = 0  # in the past, so a waiter that is about to sleep looks at once
        waiter.refuse(
            RuntimeError(
                "A ManualClock was entered or left while this acquire of "
                f"{title(queue.name)} waited, which removes all waiters: let it finish in the "
                "clock's block, or cancel it there."
            )
        )
    for limiter in limiters_in(store):
        # A store notes the limits of each new limiter, and warns of two that disagree. A limiter
        # that restarts is not new, so the notes before and after it are no ground for a warning.
        store.forget_places()
        restart_limiter(limiter, limiters.get(limiter, limiter.limits))
    store.forget_places()
