"""The surprises of docs/migration/aiolimiter.md: aiolimiter and headgate, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiolimiter import AsyncLimiter

from headgate import Limiter, MaxSleepExceededError
from headgate.testing import ManualClock

Acquire = Callable[..., Awaitable[Any]]


async def passed_in_the_first_minute(acquire: Acquire) -> int:
    passed = 0

    async def enter() -> None:
        nonlocal passed
        await acquire()
        passed += 1

    tasks = [asyncio.create_task(enter()) for _ in range(150)]
    await asyncio.sleep(59.9)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return passed


def test_a_text_without_a_burst_passes_half_as_many(clock: ManualClock) -> None:
    def count(acquire: Acquire) -> int:
        return clock.run(passed_in_the_first_minute(acquire))

    assert count(AsyncLimiter(60, 60).acquire) == 119
    assert count(Limiter("bucket", "60/minute burst 60").acquire) == 119
    assert count(Limiter("window", "60/minute").acquire) == 60


async def order_of(acquire: Acquire) -> list[int]:
    """A call of 3 tokens arrives before three calls of one."""
    order: list[int] = []

    async def enter(cost: int) -> None:
        await acquire(cost)
        order.append(cost)

    await acquire(4)
    await asyncio.gather(*[enter(cost) for cost in (3, 1, 1, 1)])
    return order


def test_a_large_cost_keeps_its_place(clock: ManualClock) -> None:
    assert clock.run(order_of(AsyncLimiter(4, 4).acquire)) == [1, 1, 1, 3]
    assert clock.run(order_of(Limiter("order", "4 per 4s burst 4").acquire)) == [3, 1, 1, 1]


async def overtakes(acquire: Acquire) -> bool:
    """Whether a call of one token passes at once while a call of 3 waits for its second token."""
    await acquire(4)
    large = asyncio.create_task(acquire(3))
    await asyncio.sleep(1)
    small = asyncio.create_task(acquire(1))
    await asyncio.sleep(0.5)
    passed = small.done()
    await asyncio.gather(large, small)
    return passed


def test_a_newcomer_does_not_overtake_a_waiter(clock: ManualClock) -> None:
    assert clock.run(overtakes(AsyncLimiter(4, 4).acquire))
    assert not clock.run(overtakes(Limiter("newcomer", "4 per 4s burst 4").acquire))


def test_a_caller_that_would_wait_too_long_is_refused_at_once(clock: ManualClock) -> None:
    async def story() -> None:
        theirs, ours = AsyncLimiter(4, 4), Limiter("patience", "4 per 4s burst 4")
        await theirs.acquire(4)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(theirs.acquire(4), 2)
        assert clock.elapsed() == 2
        await ours.acquire(4)
        with pytest.raises(MaxSleepExceededError) as refused:
            await ours.acquire(4, max_sleep=2)
        assert refused.value.retry_after == 4
        assert clock.elapsed() == 2

    clock.run(story())


async def test_costs_are_whole_numbers_from_one() -> None:
    theirs, ours = AsyncLimiter(4, 4), Limiter("costs", "4 per 4s burst 4")
    await theirs.acquire(0)
    await theirs.acquire(0.5)
    with pytest.raises(ValueError, match="a cost is at least 1"):
        ours.acquire(0)
    with pytest.raises(TypeError, match="a cost is an int"):
        ours.acquire(0.5)  # type: ignore[arg-type]


def test_a_limiter_counts_on_in_a_second_event_loop(clock: ManualClock) -> None:
    theirs, ours = AsyncLimiter(4, 4), Limiter("loops", "4 per 4s burst 4")

    async def take(acquire: Acquire, cost: int) -> None:
        await acquire(cost)

    clock.run(take(theirs.acquire, 1))
    with pytest.warns(RuntimeWarning, match="re-used across loops"):
        clock.run(take(theirs.acquire, 1))
    clock.run(take(ours.acquire, 1))
    clock.run(take(ours.acquire, 3))
    assert not ours.try_acquire()


async def test_two_limiters_of_one_name_share_their_tokens() -> None:
    one, other = AsyncLimiter(4, 4), AsyncLimiter(4, 4)
    await one.acquire(4)
    assert other.has_capacity(4)
    assert Limiter("shared tokens", "4/hour").try_acquire(4)
    assert not Limiter("shared tokens", "4/hour").try_acquire()
