"""The surprises of docs/migration/pyrate-limiter.md: PyrateLimiter and headgate, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pyrate_limiter
import pytest
from pyrate_limiter import Duration, Rate

from headgate import CostExceedsCapacityError, Limiter, MaxSleepExceededError
from headgate.testing import ManualClock


@pytest.fixture
def theirs(clock: ManualClock) -> Iterator[pyrate_limiter.Limiter]:
    """It allows one call a second."""
    with closing(pyrate_limiter.Limiter(Rate(1, Duration.SECOND))) as limiter:
        yield limiter


@pytest.fixture
def ours(clock: ManualClock) -> Limiter:
    return Limiter("one a second", "1/second")


def test_try_acquire_does_not_wait(
    theirs: pyrate_limiter.Limiter, ours: Limiter, clock: ManualClock
) -> None:
    assert ours.try_acquire()
    assert not ours.try_acquire()
    assert clock.elapsed() == 0
    assert theirs.try_acquire("key")
    assert theirs.try_acquire("key")
    assert clock.elapsed() > 1


def test_each_key_has_a_state_of_its_own(theirs: pyrate_limiter.Limiter, ours: Limiter) -> None:
    assert theirs.try_acquire("ann", blocking=False)
    assert not theirs.try_acquire("bob", blocking=False)
    assert ours["ann"].try_acquire()
    assert ours["bob"].try_acquire()


def test_a_wait_ends_at_its_moment(
    theirs: pyrate_limiter.Limiter, ours: Limiter, clock: ManualClock
) -> None:
    with ours:
        pass
    with ours:
        assert clock.elapsed() == 1
    theirs.try_acquire("key")
    theirs.try_acquire("key")
    assert clock.elapsed() == pytest.approx(2.051)


def test_a_caller_that_would_wait_too_long_is_refused_at_once(
    theirs: pyrate_limiter.Limiter, ours: Limiter, clock: ManualClock
) -> None:
    assert ours.try_acquire()
    with pytest.raises(MaxSleepExceededError):
        ours.acquire_sync(max_sleep=0.5)
    assert clock.elapsed() == 0
    assert theirs.try_acquire("key")
    assert not theirs.try_acquire("key", timeout=0.5)
    assert clock.elapsed() == 0.5


def test_a_caller_that_does_not_wait_is_refused_at_once(
    theirs: pyrate_limiter.Limiter, ours: Limiter, clock: ManualClock
) -> None:
    async def story() -> None:
        await ours.acquire()
        waiter = asyncio.create_task(ours.acquire())
        await asyncio.sleep(0)
        assert not await ours.atry_acquire()
        assert clock.elapsed() == 0
        await waiter
        began = clock.elapsed()
        await theirs.try_acquire_async("key")
        late = asyncio.create_task(theirs.try_acquire_async("key"))
        await asyncio.sleep(0)
        assert not await theirs.try_acquire_async("key", blocking=False)
        assert clock.elapsed() - began > 1
        assert await late

    clock.run(story())


def test_a_cost_above_the_limit_is_an_error(theirs: pyrate_limiter.Limiter, ours: Limiter) -> None:
    assert not theirs.try_acquire("key", weight=2)
    with pytest.raises(CostExceedsCapacityError):
        ours.acquire_sync(2)


def test_a_cost_is_at_least_one(theirs: pyrate_limiter.Limiter, ours: Limiter) -> None:
    assert theirs.try_acquire("key", weight=0)
    with pytest.raises(ValueError, match="a cost is at least 1"):
        ours.acquire_sync(0)
