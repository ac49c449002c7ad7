"""The surprises of docs/migration/throttled-py.md: throttled-py and headgate, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import throttled.asyncio
from throttled import Throttled
from throttled.exceptions import LimitedError

from headgate import CostExceedsCapacityError, Limiter
from headgate.testing import ManualClock


def passed(throttle: Throttled) -> int:
    return sum(not throttle.limit().limited for _ in range(20))


def passed_here(limiter: Limiter) -> int:
    return sum(bool(limiter.try_acquire()) for _ in range(20))


def test_a_block_waits(clock: ManualClock) -> None:
    theirs, ours = Throttled(key="key", quota="1/s"), Limiter("waits", "1/s")
    with theirs:
        pass
    with pytest.raises(LimitedError), theirs:
        pass
    assert clock.elapsed() == 0
    with ours:
        pass
    with ours:
        assert clock.elapsed() == 1


async def order_of(acquire: Callable[[int], Awaitable[Any]]) -> list[int]:
    """A call of 3 tokens arrives before three calls of one."""
    order: list[int] = []

    async def enter(cost: int) -> None:
        await acquire(cost)
        order.append(cost)

    await acquire(4)
    await asyncio.gather(*[enter(cost) for cost in (3, 1, 1, 1)])
    return order


def test_a_large_cost_keeps_its_place(clock: ManualClock) -> None:
    store = throttled.asyncio.MemoryStore()
    theirs = throttled.asyncio.Throttled(key="key", quota="1/s burst 4", timeout=60, store=store)
    assert clock.run(order_of(lambda cost: theirs.limit(cost=cost))) == [1, 1, 1, 3]
    assert clock.run(order_of(Limiter("order", "1/s burst 4").acquire)) == [3, 1, 1, 1]


def test_a_block_takes_its_cost(clock: ManualClock) -> None:
    theirs, ours = Throttled(key="key", quota="10/m", cost=5), Limiter("cost", "10/m")
    with theirs as result:
        assert result.state.remaining == 9
    with ours.acquire(5):
        assert ours.status().limits[0].left == 5


def test_a_bucket_refills_evenly(clock: ManualClock) -> None:
    theirs, ours = Throttled(key="key", quota="10/s"), Limiter("even", "10/s burst 10")
    clock.advance(0.95)
    assert (passed(theirs), passed_here(ours)) == (10, 10)
    clock.advance(0.1)
    assert (passed(theirs), passed_here(ours)) == (10, 1)


def test_the_sliding_window_is_exact(clock: ManualClock) -> None:
    theirs = Throttled(key="key", quota="10/m", using="sliding_window")
    ours = Limiter("sliding", "10/m")
    clock.advance(59)
    assert (passed(theirs), passed_here(ours)) == (10, 10)
    clock.advance(31)
    assert (passed(theirs), passed_here(ours)) == (5, 0)


def test_no_key_is_forgotten(clock: ManualClock) -> None:
    theirs, ours = Throttled(quota="1/h"), Limiter("keys", "1/h")
    assert not theirs.limit("first").limited
    assert ours["first"].try_acquire()
    for number in range(1100):
        theirs.limit(f"key {number}")
        ours[f"key {number}"].try_acquire()
    assert not theirs.limit("first").limited
    assert not ours["first"].try_acquire()


def test_a_refused_call_leaves_the_fixed_window_as_it_was(clock: ManualClock) -> None:
    theirs = Throttled(key="key", quota="10/m", using="fixed_window")
    ours = Limiter("refused", "10/m from midnight")
    assert [theirs.limit(cost=cost).limited for cost in (8, 5, 2)] == [False, True, True]
    assert [bool(ours.try_acquire(cost)) for cost in (8, 5, 2)] == [True, False, True]


def test_a_cost_above_the_limit_is_an_error(clock: ManualClock) -> None:
    theirs, ours = Throttled(key="key", quota="10/s"), Limiter("never", "10/s")
    with pytest.raises(CostExceedsCapacityError):
        ours.acquire_sync(20, max_sleep=30)
    assert clock.elapsed() == 0
    assert theirs.limit(cost=20, timeout=30).limited
    assert clock.elapsed() == 30
