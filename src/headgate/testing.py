"""For tests of limited code: a clock that the test moves, and assertions about the calls that passed.

Here lives time that does not pass by itself, for the limiters of this process. Limiters on Redis keep the server's time. No other
module knows of it. The fixtures for pytest are in headgate_pytest.py, beside the package.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import selectors
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import partial
from itertools import accumulate, count
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import headgate.clock as clocks
from headgate.classics import RateLimiter
from headgate.clock import Clock, SystemClock
from headgate.closing import CLOSINGS
from headgate.entrance import Entrance
from headgate.gate.compile import Declaration
from headgate.gate.gate import ONE_EACH
from headgate.interfaces import Queue
from headgate.keys import title
from headgate.limiter import Limiter, declared_limits
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.stores.memory.queue import STORES, MemoryQueue, MemoryStore
from headgate.stores.memory.waiters import Waiter
from headgate.stores.status import Status
from headgate.validation import (
    MICROSECOND,
    flag,
    instant,
    microseconds,
    positive_int,
    rational,
    seconds,
    show,
)

__all__ = ["Call", "ManualClock", "Recorder", "Standstill", "assert_at_rest", "assert_never_over"]

T = TypeVar("T")
NEW_YEAR = datetime(2025, 1, 1, tzinfo=UTC)
TURNS = (
    50  # of an event loop, after which each task that can go on has gone on until it waits again
)
BREATH = 0.001  # real seconds in which threads that can go on do so
PATIENCE = (
    1.0  # real seconds in which a thread may still wake a loop that has nothing ready and no timer
)


# Time --------------------------------------------------------------------------------------------------------------------------


class ManualClock(Clock):
    """Time that stands still until the test moves it. In its `with` block all limiters in memory of this process use it.

        with ManualClock() as clock:
            permit = api.try_acquire()     # all limits are as new
            clock.advance(30)              # half a minute later: acquires that waited for it go on

    Entering and leaving the block clears the counts, holders and waiters of the limiters in memory, so tests do not affect
    each other. An acquire that still waits then raises RuntimeError. Limiters on Redis keep the server's time.
    `skips`: the clock moves itself. An acquire that has to wait moves it to the next moment at which an acquire can go on. A task
    sees the moment of its grant; several threads run at their own speed, and may see later moments.
    `start`: the first moment, an aware datetime or seconds since 1970. Quotas depend on the date. Unsaid: 2025-01-01 UTC.

    Raises RuntimeError when another ManualClock is in use.
    """

    def __init__(self, *, skips: bool = False, start: datetime | float = NEW_YEAR) -> None:
        self.skips = flag("ManualClock", "skips", skips)
        self.start = self.moment = microseconds(instant("ManualClock", "start", start))
        self._timers: list[tuple[int, int, _Timer]] = []
        self._numbers = count()
        self._lock = threading.Lock()
        self._skipping: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        self._former: WeakKeyDictionary[MemoryQueue, Declaration] = WeakKeyDictionary()
        self._limits: WeakKeyDictionary[Limiter, tuple[Limit, ...]] = WeakKeyDictionary()

    def now(self) -> int:
        """Whole microseconds since 1970."""
        return self.moment

    def elapsed(self) -> float:
        """Seconds since it was made."""
        return (self.moment - self.start) / 1_000_000

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass, and stop at each moment at which an acquire can go on. In a coroutine, use `aadvance`.

        Other threads, and coroutines of other loops, run at their own speed: wait for their results.
        """
        target = self.moment + _microseconds("advance", seconds)
        while self._step(target):
            pass
        self._to(target)

    async def aadvance(self, seconds: float) -> None:
        """`advance` for coroutines: at each moment the tasks that can go on do so before time moves on."""
        target = self.moment + _microseconds("aadvance", seconds)
        if self.moves(asyncio.get_running_loop()):
            await asyncio.sleep(seconds)
        await _turns()
        while self._step(target):
            await _turns()
        self._to(target)
        await _turns()

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """`asyncio.run` by this clock: time moves on when all tasks wait, so asyncio.sleep takes no real time either.

        Raises Standstill when no task can ever go on. Use it for code without sockets: time does not wait for a socket.
        """
        with asyncio.Runner(loop_factory=lambda: VirtualLoop(self)) as runner:
            return runner.run(story)

    def __enter__(self) -> ManualClock:
        if clocks.made is not SystemClock:
            raise RuntimeError(
                "Another ManualClock is in use already: leave its block first, or use that clock."
            )
        clocks.made = lambda: self
        for store in [store for store in STORES if isinstance(store.clock, SystemClock)]:
            self._former.update({queue: queue.declared for queue in _queues(store)})
            self._limits.update({limiter: limiter.limits for limiter in _limiters(store)})
            _begin_again(store, self, {}, {})
        return self

    def __exit__(self, *outcome: object) -> None:
        clocks.made = SystemClock
        self._timers.clear()
        for store in [store for store in STORES if store.clock is self]:
            _begin_again(store, SystemClock(), self._former, self._limits)

    # What a store asks for -----------------------------------------------------------------------------------------------

    def wait(self, event: clocks.Event, timeout: float | None) -> None:
        """Block this thread until `event` is set, or until the clock has moved by `timeout` seconds."""
        timer = None if timeout is None else self._plan(timeout, event.set)
        while not event.wait(BREATH if self.skips and timer is not None else None):
            self._step()
        if timer is not None:
            timer.cancel()

    def later(
        self, loop: asyncio.AbstractEventLoop, timeout: float, call: Callable[[], None]
    ) -> clocks.Timer:
        """Run `call` in `loop` when the clock has moved by `timeout` seconds."""
        if self.moves(loop):
            return loop.call_later(timeout, call)
        timer = self._plan(timeout, partial(_in_loop, loop, call))
        if self.skips and loop not in self._skipping:
            self._skipping.add(loop)
            self._skip(loop, TURNS)
        return timer

    def moves(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether `loop` comes from `run`, so that its timers use this clock."""
        return isinstance(loop, VirtualLoop) and loop.clock is self

    def jump(self, seconds: float) -> None:
        """Move forward to the next whole microsecond, so that no timer of a loop runs too early. Wakes no waiter."""
        self.moment += math.ceil(seconds * 1_000_000 - 1e-3)

    def _plan(self, timeout: float, call: Callable[[], None]) -> _Timer:
        timer = _Timer(call)
        with self._lock:
            heapq.heappush(
                self._timers,
                (self.moment + math.ceil(timeout * 1_000_000 - 1e-3), next(self._numbers), timer),
            )
        return timer

    def _skip(self, loop: asyncio.AbstractEventLoop, turns: int) -> None:
        """In `loop`, while any acquire waits: give `turns` turns to the tasks that can go on, then move to the next moment."""
        if turns == 0:
            self._step()
        if self._anybody_waits():
            loop.call_soon(self._skip, loop, turns - 1 if turns else TURNS)
        else:
            self._skipping.discard(loop)

    def _anybody_waits(self) -> bool:
        with self._lock:
            while self._timers and self._timers[0][2].call is None:
                heapq.heappop(self._timers)
            return bool(self._timers)

    def _step(self, until: float = math.inf) -> bool:
        """Move to the next moment of a timer and run what is due. False when there is none up to `until`."""
        due: list[Callable[[], None]] = []
        with self._lock:
            while self._timers and not (due and self._timers[0][0] > self.moment):
                moment, _, timer = self._timers[0]
                if timer.call is not None and moment > until:
                    break
                heapq.heappop(self._timers)
                if timer.call is not None:
                    self.moment = max(self.moment, moment)
                    due.append(timer.call)
        for call in due:
            call()
        return bool(due)

    def _to(self, moment: int) -> None:
        with self._lock:
            self.moment = max(self.moment, moment)

    def __repr__(self) -> str:
        return f"<ManualClock: {datetime.fromtimestamp(self.moment / 1_000_000, UTC).isoformat()}, {self.elapsed():g} s elapsed>"


class _Timer:
    """A call at a moment, unless it is cancelled before."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None] | None) -> None:
        self.call = call

    def cancel(self) -> None:
        self.call = None


class Standstill(RuntimeError):
    """No task can ever go on: none is ready, and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which waiting takes no time: when nothing is ready, its clock jumps to the next timer."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self.clock.elapsed()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Threads end in real time. In Python 3.13 `timeout` is a timer of the loop, to which virtual time would jump."""
        await super().shutdown_default_executor()


class _Selector(selectors.SelectSelector):
    """Looks for real events for an instant, and then lets the virtual time pass."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(PATIENCE if timeout is None else 0)
        if not ready and timeout is None:
            raise Standstill(
                "No task is ready and no timer is set, so these tasks would wait for ever: release their permits or cancel them."
            )
        if not ready and timeout:
            self._clock.jump(timeout)
        return ready


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    if asyncio._get_running_loop() is loop:
        call()
    else:
        with suppress(RuntimeError):  # the loop is closed, and its tasks are gone
            loop.call_soon_threadsafe(call)


def _microseconds(call: str, duration: float) -> int:
    """Whole microseconds. The rest that float arithmetic leaves, as in `0.3 - 0.1 * 3`, is no time at all."""
    if isinstance(duration, float) and abs(duration) < MICROSECOND / 2:
        return 0
    return microseconds(seconds(call, "seconds", duration, zero=True))


def _queues(store: MemoryStore) -> list[MemoryQueue]:
    return list(store._known.values())


def _limiters(store: MemoryStore) -> list[Limiter]:
    return [
        owner for closing in list(CLOSINGS) for owner in closing.owners() if owner._store is store
    ]


def _begin_again(
    store: MemoryStore,
    clock: Clock,
    queues: Mapping[MemoryQueue, Declaration],
    limits: Mapping[Limiter, tuple[Limit, ...]],
) -> None:
    """By another clock, each line of `store` is as new, and so is each limiter: its next acquire declares its limits."""
    for queue, waiter in store.begin_again(clock, queues):
        _turn_away(waiter, queue.name)
    for limiter in _limiters(store):
        limiter._begin_again(limits.get(limiter, limiter.limits))


def _turn_away(waiter: Waiter, name: str) -> None:
    """Refuse a waiter that no line would wake any more."""
    waiter.look_at = 0
    waiter.refused = RuntimeError(
        f"A ManualClock was entered or left while this acquire of {title(name)} waited, which removes all waiters: "
        "let it finish in the clock's block, or cancel it there."
    )
    waiter.wake()


# Which calls passed -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its begin and end in seconds since 1970, and its cost, as in `{"requests": 1, "tokens": 900}`."""

    begin: float
    end: float = math.inf
    units: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Records calls by a clock, for `assert_never_over`: put `with recorder.call():` into the test's own fake service.

    `calls`: the calls that have ended, each a `Call`. `running`: how many have not ended. `most`: how many ran at once.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.calls: list[Call] = []
        self.running = self.most = 0

    @contextmanager
    def call(self, cost: int = 1, **units: int) -> Iterator[None]:
        """Around one call, in a coroutine too; `cost` and `units` as in `acquire`. A cost counts requests."""
        asked = {"requests": positive_int("call", "cost", cost), **units}
        taken = {unit: positive_int("call", unit, number) for unit, number in asked.items()}
        begin = self._clock.now() / 1_000_000
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            yield
        finally:
            self.running -= 1
            self.calls.append(Call(begin, self._clock.now() / 1_000_000, taken))

    def __repr__(self) -> str:
        return f"<Recorder: {len(self.calls)} calls ended, {self.running} running, at most {self.most} at once>"


def assert_never_over(calls: Iterable[Call | float], *limits: Limit | str) -> None:
    """Assert that these calls never exceeded these limits: in no interval, wherever it begins, and never too many at once.

        assert_never_over(recorder.calls, "100/minute", Concurrency(5))
        assert_never_over([0.0, 0.0, 1.0], "2/second")

    `calls`: those of a `Recorder`, or the moments at which they began, in seconds. A Concurrency needs calls with an end.
    For a Quota, which follows the calendar, moments are seconds since 1970, as in a `Recorder`.

    Raises AssertionError that names the calls and the limit; ValueError or TypeError for bad limits.
    """
    made = sorted((_call(each) for each in calls), key=lambda call: call.begin)
    for limit in declared_limits("assert_never_over", limits):
        taken = [call for call in made if _cost(call, limit)]
        if isinstance(limit, Concurrency):
            _assert_not_too_many(taken, limit)
        else:
            _assert_no_interval_is_over(taken, limit)


def _call(each: Call | float) -> Call:
    return each if isinstance(each, Call) else Call(instant("assert_never_over", "calls", each))


def _cost(call: Call, limit: Limit) -> int:
    return call.units.get(limit.unit, ONE_EACH.get(limit.unit, 0))


def _assert_not_too_many(calls: list[Call], limit: Concurrency) -> None:
    running: list[tuple[float, int]] = []
    held = 0
    for call in calls:
        if call.end == math.inf:
            raise TypeError(
                f"assert_never_over: {show(call)} has no end, so the calls beside it are unknown: use a Recorder."
            )
        while running and running[0][0] <= call.begin:
            held -= heapq.heappop(running)[1]
        heapq.heappush(running, (call.end, _cost(call, limit)))
        held += _cost(call, limit)
        if held > limit.capacity:
            raise AssertionError(
                f"{call.begin - calls[0].begin:g} s after the first call {held} {limit.unit} were held at once, and {limit} "
                f"allows {limit.capacity}."
            )


def _assert_no_interval_is_over(calls: list[Call], limit: Rate | Window | Quota) -> None:
    """Of all intervals that end with a call, the worst: one pass finds where it begins, as a bucket that leaks knows its level."""
    moments = [microseconds(call.begin) for call in calls]
    sums = [0, *accumulate(_cost(call, limit) for call in calls)]
    first = 0
    for last, end in enumerate(moments):
        while first < last and sums[last] - sums[first] <= _gained(limit, moments[first], end):
            first += 1  # an interval that begins later has at least as much, whatever follows
        for begin in (
            range(first, last + 1) if isinstance(limit, Rate) and limit.steps else (first,)
        ):  # a step may fall anywhere
            taken, most = sums[last + 1] - sums[begin], _most(limit, moments[begin], end)
            if taken > most:
                raise AssertionError(
                    f"Calls {begin + 1} to {last + 1} of {len(calls)} took {taken} {limit.unit} within "
                    f"{(end - moments[begin]) / 1_000_000:g} s, from {calls[begin].begin - calls[0].begin:g} s after the first on, "
                    f"and {limit} allows {int(most)} in that time."
                )


def _gained(limit: Rate | Window | Quota, begin: int, end: int) -> float | Fraction:
    """How much of what was taken since `begin` has come back by `end`."""
    return _most(limit, begin, end) - _most(limit, begin, begin)


def _most(limit: Rate | Window | Quota, begin: int, end: int) -> float | Fraction:
    """What the limit allows between two moments, both included."""
    span, per = end - begin, microseconds(limit.per) + microseconds(limit.slack)
    match limit:
        case Window():
            return limit.amount if span < per else math.inf
        case Quota():
            origin, period = microseconds(limit.origin), microseconds(limit.per)
            return (
                limit.amount if (begin - origin) // period == (end - origin) // period else math.inf
            )
        case Rate() if limit.steps:
            return limit.burst + rational(limit.amount) * (span // per + 1)
        case Rate():
            return limit.burst + rational(limit.amount) * span // per


# What is left ------------------------------------------------------------------------------------------------------------------


def assert_at_rest(*limiters: Entrance | RateLimiter | MemoryQueue) -> None:
    """Assert that no acquire waits and no permit is held by these limiters; without arguments, by all in this process's memory.

    For a limiter on Redis it asks the server, and blocks the thread for a round trip.
    Raises AssertionError, which names the limiters that are not at rest; TypeError for a value that is no limiter.
    """
    asked = [_queue(limiter).status() for limiter in limiters or restless()]
    left = [f"{status.name!r}: {status.line()}" for status in asked if not _rests(status)]
    if left:
        raise AssertionError(
            f"Not at rest: {'; '.join(left)}. Release every permit, and await or cancel every acquire."
        )


def restless() -> set[MemoryQueue]:
    """The limiters of this process's memory that are not at rest."""
    return {
        queue for store in list(STORES) for queue in _queues(store) if not _rests(queue.status())
    }


def _queue(limiter: object) -> Queue:
    entrance = limiter.throttle() if isinstance(limiter, RateLimiter) else limiter
    if isinstance(entrance, MemoryQueue):
        return entrance
    if not isinstance(entrance, Entrance):
        raise TypeError(
            f"assert_at_rest({show(limiter)}): give it limiters, such as Limiter('api', '100/minute')."
        )
    return entrance._queue


def _rests(status: Status) -> bool:
    return status.waiting == 0 and not any(
        limit.used for limit in status.limits if limit.kind == "Concurrency"
    )
