"""Assertions for tests: the calls that passed kept to the limits, and nothing waits or is held.

The arithmetic shares no code with the gate.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import accumulate

from headgate.classics import RateLimiter
from headgate.clock import Clock
from headgate.entrance import Entrance
from headgate.gate.gate import ONE_EACH
from headgate.interfaces import Queue
from headgate.internals import queue_of
from headgate.limiter import declared_limits
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.memory.store import STORES
from headgate.stores.status import Status
from headgate.validation import instant, microseconds, positive_int, rational, show


@dataclass(frozen=True, slots=True)
class Call:
    """One call: its begin and end in seconds since 1970, and its cost in each unit."""

    begin: float
    end: float = math.inf
    units: dict[str, int] = field(default_factory=dict)


class Recorder:
    """Records calls by a clock, for `assert_never_over`.

    Put `with recorder.call():` into the fake service of the test. `calls`: the calls that have
    ended, each a `Call`. `running`: how many have not ended. `most`: how many ran at once.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.calls: list[Call] = []
        self.running = self.most = 0

    @contextmanager
    def call(self, cost: int = 1, **units: int) -> Iterator[None]:
        """Record the block as one call, in a coroutine too. `cost`, `units`: as in `acquire`."""
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
        return (
            f"<Recorder: {len(self.calls)} calls ended, {self.running} running, "
            f"at most {self.most} at once>"
        )


def assert_never_over(calls: Iterable[Call | float], *limits: Limit | str) -> None:
    """Assert that these calls kept to these limits, in each interval and at once.

        assert_never_over(recorder.calls, "100/minute", Concurrency(5))
        assert_never_over([0.0, 0.0, 1.0], "2/second")

    `calls`: those of a `Recorder`, or the moments at which they began, in seconds. A Concurrency
    needs calls with an end. For a Quota, which follows the calendar, moments are seconds since
    1970, as in a `Recorder`.

    Raises AssertionError, which names the calls and the limit; ValueError or TypeError for bad
    limits.
    """
    made = [
        each if isinstance(each, Call) else Call(instant("assert_never_over", "calls", each))
        for each in calls
    ]
    made.sort(key=lambda call: call.begin)
    for limit in declared_limits("assert_never_over", limits):
        taken = [call for call in made if _cost_in(call, limit)]
        if isinstance(limit, Concurrency):
            _assert_not_too_many(taken, limit)
        else:
            _assert_no_interval_is_over(taken, limit)
            if isinstance(limit, Quota):
                _assert_none_in_slack(taken, limit)


def _cost_in(call: Call, limit: Limit) -> int:
    return call.units.get(limit.unit, ONE_EACH.get(limit.unit, 0))


def _assert_not_too_many(calls: list[Call], limit: Concurrency) -> None:
    running: list[tuple[float, int]] = []
    held = 0
    for call in calls:
        if call.end == math.inf:
            raise TypeError(
                f"assert_never_over: {show(call)} has no end, so the calls beside it are unknown: "
                "use a Recorder."
            )
        while running and running[0][0] <= call.begin:
            held -= heapq.heappop(running)[1]
        heapq.heappush(running, (call.end, _cost_in(call, limit)))
        held += _cost_in(call, limit)
        if held > limit.capacity:
            raise AssertionError(
                f"{call.begin - calls[0].begin:g} s after the first call {held} {limit.unit} "
                f"were held at once, and {limit} allows {limit.capacity}."
            )


def _assert_no_interval_is_over(calls: list[Call], limit: Rate | Window | Quota) -> None:
    """Check the strictest of the intervals that end with each call: the one that begins at `first`.

    When all units taken since `first` have come back, an interval from a later call is at least as
    strict, so `first` moves on. A step of a `Rate` may fall anywhere, so with steps all intervals
    that begin at `first` or later are checked.
    """
    moments = [microseconds(call.begin) for call in calls]
    sums = [0, *accumulate(_cost_in(call, limit) for call in calls)]
    has_steps = isinstance(limit, Rate) and limit.steps
    first = 0
    for last, end in enumerate(moments):
        while first < last and sums[last] - sums[first] <= _gained(limit, moments[first], end):
            first += 1
        for begin in range(first, last + 1) if has_steps else (first,):
            taken = sums[last + 1] - sums[begin]
            most = _most_between(limit, moments[begin], end)
            if taken > most:
                length = (end - moments[begin]) / 1_000_000
                raise AssertionError(
                    f"Calls {begin + 1} to {last + 1} of {len(calls)} took {taken} {limit.unit} "
                    f"within {length:g} s, from {calls[begin].begin - calls[0].begin:g} s after "
                    f"the first on, and {limit} allows {int(most)} in that time."
                )


def _assert_none_in_slack(calls: list[Call], quota: Quota) -> None:
    period, slack = microseconds(quota.per), microseconds(quota.slack)
    for number, call in enumerate(calls, 1):
        left = period - (microseconds(call.begin) - microseconds(quota.origin)) % period
        if _cost_in(call, quota) and left <= slack:
            raise AssertionError(
                f"Call {number} of {len(calls)} began {left / 1_000_000:g} s before the end of its "
                f"period, and {quota} allows none in the last {quota.slack:g} s."
            )


def _gained(limit: Rate | Window | Quota, begin: int, end: int) -> float | Fraction:
    """Return how much of the units taken since `begin` has come back by `end`."""
    return _most_between(limit, begin, end) - _most_between(limit, begin, begin)


def _most_between(limit: Rate | Window | Quota, begin: int, end: int) -> float | Fraction:
    """Both moments are included."""
    span, per = end - begin, microseconds(limit.per) + microseconds(limit.slack)
    match limit:
        case Window():
            return limit.amount if span < per else math.inf
        case Quota():
            origin, period = microseconds(limit.origin), microseconds(limit.per)
            is_same = (begin - origin) // period == (end - origin) // period
            return limit.amount if is_same else math.inf
        case Rate() if limit.steps:
            return limit.burst + rational(limit.amount) * (span // per + 1)
        case Rate():
            return limit.burst + (rational(limit.amount) * span) // per


# Waiters and held permits ----------------------------------------------------------------------


def assert_at_rest(*limiters: Entrance | RateLimiter | MemoryQueue) -> None:
    """Assert that no acquire of these limiters waits, and that they hold no permit.

    Without arguments: of all limiters in this process's memory.
    For a limiter on Redis it asks the server, and blocks the thread for a round trip.
    Raises AssertionError, which names the limiters that are not at rest; TypeError for a value that
    is no limiter.
    """
    statuses = [_find_queue(limiter).status() for limiter in limiters or find_busy()]
    busy = [f"{status.name!r}: {status.line()}" for status in statuses if not _is_at_rest(status)]
    if busy:
        raise AssertionError(
            f"Not at rest: {'; '.join(busy)}. Release every permit, and await or cancel every "
            "acquire."
        )


def find_busy() -> set[MemoryQueue]:
    """Return the queues in memory that are not at rest."""
    queues = [queue for store in list(STORES) for queue in store.queues()]
    return {queue for queue in queues if not _is_at_rest(queue.status())}


def _find_queue(limiter: object) -> Queue:
    entrance = limiter.throttle() if isinstance(limiter, RateLimiter) else limiter
    if isinstance(entrance, MemoryQueue):
        return entrance
    if not isinstance(entrance, Entrance):
        raise TypeError(
            f"assert_at_rest({show(limiter)}): give it limiters, such as "
            "Limiter('api', '100/minute')."
        )
    return queue_of(entrance)


def _is_at_rest(status: Status) -> bool:
    return status.waiting == 0 and not any(
        limit.used for limit in status.limits if limit.kind == "Concurrency"
    )
