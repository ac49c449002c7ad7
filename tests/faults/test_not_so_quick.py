"""A lone acquire asks the quick script first; when that is not enough, the whole one is asked for the same, and no more."""

from __future__ import annotations

import asyncio

from headgate import Concurrency, Rate
from tests.faults.scene import elsewhere, enter, visit
from tests.world import soon, waiting

STEP = 100_000  # microseconds in which the bucket fills
TOKENS = 3_000_000


async def test_it_does_not_declare(name: str, redis_url: str) -> None:
    """S1: given limits that somebody else has declared since, when a limiter with the former ones asks, then they hold for it."""
    limiter, other = elsewhere(name, Concurrency(10), url=redis_url), elsewhere(name, Concurrency(2), url=redis_url)
    await limiter.astatus()
    await soon(visit(other))

    await soon(visit(limiter))

    assert (await limiter.astatus()).limits[0].capacity == 2


async def test_it_books_no_further_ahead_than_any_other(name: str, redis_url: str) -> None:
    """T5: given one that waits for a large cost, and one behind it, when the first is cancelled, then the second moves forward."""
    full = Rate(TOKENS, per=STEP / 1_000_000, unit="tokens")
    limiter, other = elsewhere(name, full, url=redis_url), elsewhere(name, full, url=redis_url)
    for _ in range(2):
        await limiter.acquire(tokens=1)
    start = await other.acquire(tokens=TOKENS - 2)
    first = asyncio.create_task(enter(limiter, tokens=TOKENS))
    await waiting(other, 1)
    second = asyncio.create_task(enter(other, tokens=TOKENS))
    await waiting(limiter, 2)
    first.cancel()

    assert (await soon(second)).t - start.t < 2 * STEP
