"""Costs that are estimates: a waiting acquire asks for its present estimate, at its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Window
from headgate.internals import acquire_estimated, acquire_estimated_sync
from headgate.permit import Permit
from tests.world import at_rest, held, soon, waiting

HOUR = 3600.0  # of an hour's window nothing comes back during a test


class Guess:
    """An estimate that changes."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, limiter: Limiter) -> dict[str, Any]:
        return {"tokens": self.tokens}


@pytest.fixture
def limiter(name: str, store: Any) -> Limiter:
    return Limiter(name, Window(1000, HOUR, unit="tokens"), store=store)


async def used(limiter: Limiter) -> int:
    status = await limiter.astatus()
    return next(limit.used for limit in status.limits if limit.unit == "tokens")


async def test_a_waiter_passes_when_a_lower_estimate_fits(limiter: Limiter) -> None:
    """Without it, the waiter would wait for an hour. It is charged the lower estimate."""
    first = await limiter.acquire(tokens=900)
    guess = Guess(500)
    wait = asyncio.create_task(acquire_estimated(limiter, guess))
    await waiting(limiter, 1)

    guess.tokens = 60
    first.settle(tokens=920)
    permit = await soon(wait)

    assert permit.units == {"tokens": 60}
    assert await used(limiter) == 980
    permit.settle(tokens=50)
    await limiter.aflush()
    assert await used(limiter) == 970


async def test_a_permit_of_another_estimate_is_held_until_its_release(
    name: str, store: Any
) -> None:
    """S1: its place in the `Concurrency` is free after that."""
    limiter = Limiter(name, Window(1000, HOUR, unit="tokens"), Concurrency(2), store=store)
    async with limiter.acquire(tokens=900) as first:
        guess = Guess(500)
        wait = asyncio.create_task(acquire_estimated(limiter, guess))
        await waiting(limiter, 1)
        guess.tokens = 60
        first.settle(tokens=920)
        async with await soon(wait):
            assert held(await limiter.astatus()) == 2

    assert held(await at_rest(limiter)) == 0


async def test_a_waiter_waits_on_when_a_higher_estimate_does_not_fit(limiter: Limiter) -> None:
    """T1: the waiter would fit at its first estimate, and is charged the higher one."""
    first = await limiter.acquire(tokens=900)
    guess = Guess(200)
    wait = asyncio.create_task(acquire_estimated(limiter, guess))
    await waiting(limiter, 1)

    guess.tokens = 700
    first.settle(tokens=400)
    await limiter.aflush()
    await waiting(limiter, 1)
    first.settle(tokens=300)

    assert (await soon(wait)).units == {"tokens": 700}
    assert await used(limiter) == 1000


async def test_waiters_keep_their_order_when_their_estimates_change(limiter: Limiter) -> None:
    """S6: those behind the first do not overtake it, whatever their estimates are."""
    first = await limiter.acquire(tokens=1000)
    guesses = [Guess(300) for _ in range(5)]
    granted: list[int] = []

    async def wait(number: int) -> Permit:
        permit = await acquire_estimated(limiter, guesses[number])
        granted.append(number)
        return permit

    waits = []
    for number in range(5):
        waits.append(asyncio.create_task(wait(number)))
        await waiting(limiter, number + 1)
    for guess, tokens in zip(guesses, (190, 10, 200, 20, 200), strict=True):
        guess.tokens = tokens
    first.settle(tokens=0)

    permits = await soon(asyncio.gather(*waits))

    assert granted == [0, 1, 2, 3, 4]
    assert [permit.units["tokens"] for permit in permits] == [190, 10, 200, 20, 200]
    assert await used(limiter) == 620


async def test_a_small_change_is_left_alone(limiter: Limiter) -> None:
    first = await limiter.acquire(tokens=1000)
    guess = Guess(400)
    wait = asyncio.create_task(acquire_estimated(limiter, guess))
    await waiting(limiter, 1)

    guess.tokens = 390
    first.settle(tokens=0)

    assert (await soon(wait)).units == {"tokens": 400}


async def test_a_waiter_with_another_estimate_gives_everything_back(limiter: Limiter) -> None:
    """L1: it is cancelled after its estimate has changed, and nothing is used or queued."""
    first = await limiter.acquire(tokens=1000)
    guess = Guess(400)
    wait = asyncio.create_task(acquire_estimated(limiter, guess))
    await waiting(limiter, 1)
    guess.tokens = 800
    first.settle(tokens=900)
    await limiter.aflush()

    wait.cancel()

    with pytest.raises(asyncio.CancelledError):
        await wait
    await waiting(limiter, 0)
    assert await used(limiter) == 900
    assert limiter.try_acquire(tokens=100)


async def test_a_thread_waits_with_its_present_estimate(limiter: Limiter) -> None:
    first = await limiter.acquire(tokens=1000)
    guess = Guess(400)
    wait = asyncio.create_task(asyncio.to_thread(acquire_estimated_sync, limiter, guess))
    await waiting(limiter, 1)

    guess.tokens = 100
    first.settle(tokens=900)

    assert (await soon(wait)).units == {"tokens": 100}
