"""The surprises of docs/migration/asyncio-semaphore.md: asyncio and headgate, side by side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError
from headgate.testing import ManualClock


async def test_two_limiters_of_one_name_share_their_permits() -> None:
    one, other = asyncio.Semaphore(1), asyncio.Semaphore(1)
    async with one:
        assert not other.locked()
    with Limiter("shared", "1 concurrent"):
        assert not Limiter("shared", "1 concurrent").try_acquire()


async def test_a_dropped_permit_goes_back_at_once() -> None:
    semaphore, limiter = asyncio.Semaphore(1), Limiter("dropped", "1 concurrent")
    await semaphore.acquire()
    assert semaphore.locked()
    with pytest.warns(ResourceWarning, match="was dropped without a release"):
        await limiter.acquire()
    permit = limiter.try_acquire()
    assert permit
    permit.release()


async def test_a_second_release_does_nothing() -> None:
    semaphore, limiter = asyncio.Semaphore(1), Limiter("twice", "1 concurrent")
    async with semaphore:
        semaphore.release()
    async with semaphore:
        assert not semaphore.locked()  # there is room for a second caller
    permit = await limiter.acquire()
    permit.release()
    permit.release()
    async with limiter:
        assert not limiter.try_acquire()


def test_a_capacity_of_zero_is_refused() -> None:
    assert asyncio.Semaphore(0).locked()
    with pytest.raises(ValueError, match="capacity must be at least 1"):
        Concurrency(0)


def test_the_error_of_a_caller_that_gives_up_is_no_timeout_error(clock: ManualClock) -> None:
    async def story() -> None:
        semaphore, limiter = asyncio.Semaphore(1), Limiter("late", "1 concurrent")
        async with semaphore, limiter:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(semaphore.acquire(), 1)
            with pytest.raises(MaxSleepExceededError) as refused:
                await limiter.acquire(max_sleep=1)
        assert not isinstance(refused.value, TimeoutError)
        assert clock.elapsed() == 2

    clock.run(story())


def test_a_limiter_serves_one_event_loop_after_another() -> None:
    semaphore, limiter = asyncio.Semaphore(1), Limiter("loops", "1 concurrent")

    async def contend(entrance: Any) -> None:
        async with entrance:
            waiter = asyncio.create_task(enter(entrance))
            await asyncio.sleep(0)
        await waiter

    async def enter(entrance: Any) -> None:
        async with entrance:
            pass

    asyncio.run(contend(semaphore))
    with pytest.raises(RuntimeError, match="bound to a different event loop"):
        asyncio.run(contend(semaphore))
    asyncio.run(contend(limiter))
    asyncio.run(contend(limiter))
