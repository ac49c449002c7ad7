"""Tenacity and stamina retry a refused acquire when the refusal says, and not before."""

from __future__ import annotations

import copy
import pickle

import pytest
import stamina
import tenacity

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    QueueFullError,
)
from headgate.frameworks.stamina import retry_after
from headgate.frameworks.tenacity import wait_retry_after
from headgate.testing import ManualClock

IMPATIENT = 1.0  # second that a caller is willing to wait


@pytest.fixture
def paced(name: str, clock: ManualClock) -> Limiter:
    """A limiter of one a minute, used up, whose callers do not wait that long."""
    limiter = Limiter(name, "1/minute", max_sleep=IMPATIENT)
    assert limiter.try_acquire()
    return limiter


@pytest.fixture
def full(name: str, clock: ManualClock) -> Limiter:
    """A limiter that is held and allows no waiters: only a release can make room."""
    return Limiter(name, Concurrency(1), max_waiters=0)


async def call(limiter: Limiter, clock: ManualClock, moments: list[float]) -> float:
    moments.append(clock.elapsed())
    async with limiter:
        return clock.elapsed()


def test_tenacity_waits_for_retry_after(paced: Limiter, clock: ManualClock) -> None:
    moments: list[float] = []
    retrying = tenacity.AsyncRetrying(
        wait=wait_retry_after(tenacity.wait_fixed(1000)), stop=tenacity.stop_after_attempt(3)
    )
    assert clock.run(retrying(call, paced, clock, moments)) == 60
    assert moments == [0, 60]


def test_other_values_than_strategies_are_refused_at_once() -> None:
    """And not when the first call has failed."""
    with pytest.raises(TypeError, match=r"such as wait_fixed\(5\)"):
        wait_retry_after(5)  # type: ignore[arg-type]


def test_tenacity_uses_the_other_strategy_without_a_retry_after(
    full: Limiter, clock: ManualClock
) -> None:
    moments: list[float] = []
    decided = tenacity.AsyncRetrying(
        wait=wait_retry_after(tenacity.wait_fixed(7)), stop=tenacity.stop_after_attempt(3)
    )

    async def story() -> None:
        async with full:
            with pytest.raises(tenacity.RetryError) as given_up:
                await decided(call, full, clock, moments)
            assert isinstance(given_up.value.last_attempt.exception(), QueueFullError)

    clock.run(story())
    assert moments == [0, 7, 14]


def test_tenacity_adds_strategies_and_needs_no_other(paced: Limiter, clock: ManualClock) -> None:
    """Ours adds up with tenacity's: `wait_retry_after() + wait_random(...)` spreads the retries."""
    moments: list[float] = []
    spread = tenacity.AsyncRetrying(
        wait=wait_retry_after() + tenacity.wait_fixed(2), stop=tenacity.stop_after_attempt(3)
    )
    assert clock.run(spread(call, paced, clock, moments)) == 62

    quick = tenacity.Retrying(
        wait=wait_retry_after(), stop=tenacity.stop_after_attempt(3), sleep=clock.advance
    )
    with pytest.raises(tenacity.RetryError):
        quick(lambda: 1 / 0)
    assert clock.elapsed() == 62, "no wait for what says none"


def test_a_thread_retries_too(paced: Limiter, clock: ManualClock) -> None:
    @tenacity.retry(
        wait=wait_retry_after(), stop=tenacity.stop_after_attempt(2), sleep=clock.advance
    )
    def work() -> float:
        with paced:
            return clock.elapsed()

    assert work() == 60


def test_stamina_waits_for_retry_after(paced: Limiter, clock: ManualClock) -> None:
    moments: list[float] = []
    caller = stamina.AsyncRetryingCaller(attempts=3, timeout=None)
    assert clock.run(caller(retry_after, call, paced, clock, moments)) == 60
    assert moments == [0, 60]


def test_stamina_backs_off_without_a_retry_after(full: Limiter, clock: ManualClock) -> None:
    moments: list[float] = []
    caller = stamina.AsyncRetryingCaller(attempts=3, wait_initial=7, wait_jitter=0, wait_max=7)

    async def story() -> None:
        async with full:
            with pytest.raises(QueueFullError):
                await caller(retry_after, call, full, clock, moments)

    clock.run(story())
    assert moments == [0, 7, 14]


def test_stamina_retries_no_other_error(name: str, clock: ManualClock) -> None:
    """An acquire that can never pass is not retried. The user decides about other errors."""
    limiter = Limiter(name, "5/minute")
    tried: list[int] = []

    def never() -> None:
        tried.append(1)
        limiter.acquire_sync(6)

    with pytest.raises(CostExceedsCapacityError):
        stamina.RetryingCaller(attempts=3)(retry_after, never)
    assert tried == [1]
    assert [retry_after(error) for error in (ValueError(), ConnectionError())] == [False, False]


@pytest.mark.parametrize(
    "error",
    [MaxSleepExceededError("later", 1.5), QueueFullError("full", 1.5, 3)],
    ids=lambda e: type(e).__name__,
)
def test_copies_and_pickles_of_errors_keep_retry_after(error: MaxSleepExceededError) -> None:
    """So a pool of processes is retried as a thread is."""
    for each in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert retry_after(each) == each.retry_after == 1.5
