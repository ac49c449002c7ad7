"""A limit as text means the same in every store: "100/minute" holds in any 60 seconds, and a burst
passes at one instant.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate import Limiter, Rate
from tests.world import HOUR, World, told, until, used

MINUTE = 60_000_000  # microseconds


async def moments(limiter: Limiter, callers: int) -> list[int]:
    """The moments at which so many callers were granted, by the store's clock."""

    async def call() -> int:
        async with limiter.acquire() as permit:
            return permit.t

    return sorted(await asyncio.gather(*(call() for _ in range(callers))))


def most_within(granted: list[int], period: int) -> int:
    """The most calls that any interval of `period` holds, its end not included."""
    return max(sum(start <= moment < start + period for moment in granted) for start in granted)


@pytest.mark.exact
def test_a_hundred_a_minute_passes_a_hundred_in_the_first_minute(memory: World) -> None:
    """T1, T2: the next hundred pass the moment that minute is over. A bucket of that rate would
    have passed half of them by then.
    """
    granted = memory.run(moments(memory.limiter("100/minute"), 300))

    assert [moment - granted[0] for moment in granted] == [0] * 100 + [MINUTE] * 100 + [
        2 * MINUTE
    ] * 100


@pytest.mark.exact
def test_a_text_with_a_burst_is_a_bucket(memory: World) -> None:
    """T1, T2: given 199 callers, then the last of them passes just before the first minute is
    over.
    """
    granted = memory.run(moments(memory.limiter("100/minute burst 100"), 199))

    assert granted[99] == granted[0]
    assert granted[-1] - granted[0] == 99 * MINUTE // 100


@pytest.mark.exact
def test_a_burst_of_one_spaces_calls_evenly(memory: World) -> None:
    granted = memory.run(moments(memory.limiter("10/second burst 1"), 5))

    assert [moment - granted[0] for moment in granted] == [0, 100_000, 200_000, 300_000, 400_000]


@told
async def test_no_interval_has_more_calls_than_a_text_allows(world: World) -> None:
    """T1 by the store's clock."""
    period = 10 * world.ticks

    granted = await moments(world.limiter(f"8/{period // 1000} ms"), 28)

    assert most_within(granted, period) == 8


@pytest.mark.parametrize(
    ("limit", "hours"),
    [("0.5/hour burst 1", 2), ("2.5/hour burst 1", 0.4), (Rate(0.1, per=HOUR, steps=True), 10)],
    ids=str,
)
@told
async def test_a_fraction_of_a_token_comes_back_after_its_time(
    world: World, limit: str | Rate, hours: float
) -> None:
    """T4, T11."""
    limiter = world.limiter(limit)
    assert await limiter.atry_acquire()

    refusal = await limiter.atry_acquire()

    assert not refusal
    assert refusal.retry_after == pytest.approx(hours * HOUR, abs=world.slack)


@told
async def test_unused_tokens_of_a_limit_as_text_are_free_at_once(world: World) -> None:
    """Given a budget of tokens as text, when a call settles for less, then later calls have the
    rest.
    """
    limiter = world.limiter("10k tokens/hour")

    async with limiter.acquire(tokens=8000) as permit:
        assert not await limiter.atry_acquire(tokens=3000)
        permit.settle(tokens=500)
    assert used(await until(lambda status: used(status) == [500], limiter)) == [500]

    assert await limiter.atry_acquire(tokens=9500)
    assert not await limiter.atry_acquire(tokens=1)


@told
async def test_tokens_beyond_the_estimate_are_charged_to_a_limit_as_text(world: World) -> None:
    """A debt delays callers until the calls that made it are an hour old."""
    limiter = world.limiter("10k tokens/hour")

    async with limiter.acquire(tokens=1000) as permit:
        permit.settle(tokens=15_000)
    await until(lambda status: used(status) == [15_000], limiter)

    refusal = await limiter.atry_acquire(tokens=1)
    assert not refusal
    assert refusal.retry_after == pytest.approx(HOUR, abs=world.slack)
