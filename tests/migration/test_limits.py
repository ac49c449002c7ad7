"""The surprises of docs/migration/limits.md: limits and headgate, side by side."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import (
    FixedWindowRateLimiter,
    MovingWindowRateLimiter,
    SlidingWindowCounterRateLimiter,
)

from headgate import CostExceedsCapacityError, Limiter
from headgate.testing import ManualClock


def test_a_block_waits(clock: ManualClock) -> None:
    theirs, ours = MovingWindowRateLimiter(MemoryStorage()), Limiter("waits", "1/minute")
    assert theirs.hit(parse("1/minute"), "key")
    assert not theirs.hit(parse("1/minute"), "key")
    assert clock.elapsed() == 0
    with ours:
        pass
    assert not ours.try_acquire()
    assert clock.elapsed() == 0
    with ours:
        pass
    assert clock.elapsed() == 60


def test_a_refusal_charges_no_limit(clock: ManualClock) -> None:
    theirs, items = MovingWindowRateLimiter(MemoryStorage()), (parse("5/minute"), parse("2/second"))
    ours = Limiter("several", "5/minute", "2/second")
    for expected in (True, True, False, False):
        assert all(theirs.hit(item, "key") for item in items) is expected
        assert bool(ours.try_acquire()) is expected
    assert theirs.get_window_stats(items[0], "key").remaining == 1
    assert ours.status().limits[0].left == 3


def test_a_refused_call_leaves_the_fixed_window_as_it_was(clock: ManualClock) -> None:
    theirs, item = FixedWindowRateLimiter(MemoryStorage()), parse("10/minute")
    ours = Limiter("refused", "10/minute from midnight")
    assert [theirs.hit(item, "key", cost=cost) for cost in (8, 5, 2)] == [True, False, False]
    assert [bool(ours.try_acquire(cost)) for cost in (8, 5, 2)] == [True, False, True]


def test_a_fixed_window_follows_the_calendar(clock: ManualClock) -> None:
    theirs, item = FixedWindowRateLimiter(MemoryStorage()), parse("1/minute")
    ours = Limiter("calendar", "1/minute from midnight")
    clock.advance(45)
    assert theirs.hit(item, "key")
    assert ours.try_acquire()
    clock.advance(20)
    assert not theirs.hit(item, "key")
    assert ours.try_acquire()


def test_a_new_limit_continues_the_count(clock: ManualClock) -> None:
    theirs, ours = MovingWindowRateLimiter(MemoryStorage()), Limiter("changed", "10/minute")
    assert theirs.hit(parse("10/minute"), "key", cost=10)
    assert theirs.hit(parse("20/minute"), "key", cost=20)
    assert ours.try_acquire(10)
    ours.update("20/minute")
    assert not ours.try_acquire(11)
    assert ours.try_acquire(10)


def test_a_cost_above_the_limit_is_an_error(clock: ManualClock) -> None:
    theirs, ours = MovingWindowRateLimiter(MemoryStorage()), Limiter("never", "10/minute")
    assert not theirs.hit(parse("10/minute"), "key", cost=11)
    with pytest.raises(CostExceedsCapacityError):
        ours.try_acquire(11)


def test_the_sliding_window_is_exact(clock: ManualClock) -> None:
    theirs, item = SlidingWindowCounterRateLimiter(MemoryStorage()), parse("10/minute")
    ours = Limiter("sliding", "10/minute")

    def passed(hit: Callable[[], object]) -> int:
        return sum(bool(hit()) for _ in range(20))

    clock.advance(59)
    assert passed(lambda: theirs.hit(item, "key")) == 10
    assert passed(ours.try_acquire) == 10
    clock.advance(31)
    assert passed(lambda: theirs.hit(item, "key")) == 5
    assert passed(ours.try_acquire) == 0
