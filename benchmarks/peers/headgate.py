"""headgate, as its README uses it: limiters in process, the classics and a window on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.stage import PERIOD, PLENTY, Maker, Opening, Stage


@contextmanager
def rate(_stage: Stage) -> Iterator[Maker]:
    from headgate import Limiter, Rate

    yield lambda name: Limiter(name, Rate(PLENTY, per=PERIOD))


def concurrency(capacity: int) -> Opening:
    @contextmanager
    def opening(_stage: Stage) -> Iterator[Maker]:
        from headgate import Concurrency, Limiter

        yield lambda name: Limiter(name, Concurrency(capacity))

    return opening


@contextmanager
def token_bucket(stage: Stage) -> Iterator[Maker]:
    from headgate import TokenBucket

    yield lambda name: TokenBucket(
        name,
        capacity=PLENTY,
        refill_amount=PLENTY,
        refill_frequency=PERIOD,
        redis_url=stage.redis_url,
    )


def semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from headgate import Semaphore

        yield lambda name: Semaphore(name, capacity=capacity, redis_url=stage.redis_url)

    return opening


def semaphore_release_awaited(capacity: int) -> Opening:
    """Leaving `async with` sends the release and goes on.

    Here every caller waits until it has arrived.
    """

    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        from headgate import Concurrency, Limiter

        def make(name: str) -> object:
            limiter = Limiter(name, Concurrency(capacity), store=stage.redis_url)

            async def caller() -> None:
                permit = await limiter.acquire()
                await asyncio.sleep(0)
                await permit.arelease()

            return caller

        yield make

    return opening


@contextmanager
def window(stage: Stage) -> Iterator[Maker]:
    from headgate import Limiter, Window

    yield lambda name: Limiter(name, Window(PLENTY, per=PERIOD), store=stage.redis_url)
