"""Without a running event loop of asyncio, as under trio, a caller that would have to wait gets an
error. It names the way out, and the caller leaves the queue.

In a thread of trio's a limiter works as in any other thread.
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
import trio

from headgate import Concurrency, Limiter, Rate
from tests.world import HOUR

WAYS = {
    "limiter": lambda limiter: limiter.__aenter__(),
    "acquire": lambda limiter: limiter.acquire().__aenter__(),
    "max_sleep": lambda limiter: limiter.acquire(max_sleep=HOUR).__aenter__(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "limit", [Concurrency(1), Rate(1, per=HOUR)], ids=lambda limit: type(limit).__name__
)
def test_a_caller_that_would_have_to_wait_without_asyncio_gets_an_error_with_the_way_out(
    store: Any, name: str, limit: Any, way: str
) -> None:
    """S7, F20: no caller waits afterwards."""
    limiter = Limiter(name, limit, store=store)
    permit = limiter.acquire_sync()

    async def story() -> None:
        with pytest.raises(
            RuntimeError, match=r"No event loop of asyncio runs here.*trio\.to_thread\.run_sync"
        ):
            await WAYS[way](limiter)

    trio.run(story)

    assert limiter.status().waiting == 0
    permit.release()


def test_a_limiter_can_be_entered_in_a_thread_of_trio(store: Any, name: str) -> None:
    """S1, L2: three threads at once share one permit."""
    limiter, inside = Limiter(name, Concurrency(1), store=store), list[int]()

    def call() -> None:
        with limiter:
            inside.append(limiter.status().limits[0].used)

    async def story() -> None:
        async with trio.open_nursery() as calls:
            for _ in range(3):
                calls.start_soon(trio.to_thread.run_sync, call)

    trio.run(story)

    assert inside == [1, 1, 1]


AT_ONCE = {
    **WAYS,
    "await": lambda limiter: limiter.acquire(),
    "atry_acquire": lambda limiter: limiter.atry_acquire(),
}


@pytest.mark.parametrize("way", AT_ONCE)
@pytest.mark.parametrize(
    "limit", [Concurrency(5), Rate(100, per=HOUR)], ids=lambda limit: type(limit).__name__
)
def test_without_asyncio_the_error_comes_at_once_though_nothing_would_wait(
    name: str, limit: Any, way: str
) -> None:
    """F20: under trio, and when a coroutine is driven by hand, on a limiter with free permits.
    Nothing is charged.
    """
    limiter = Limiter(name, limit)

    async def story() -> None:
        with pytest.raises(RuntimeError, match="No event loop of asyncio runs here"):
            await AT_ONCE[way](limiter)

    for _ in range(2):
        trio.run(story)
        with pytest.raises(StopIteration):
            story().send(None)

    assert limiter.status().limits[0].used == 0


@pytest.mark.parametrize("way", ["astatus", "aflush", "aclose"])
def test_without_asyncio_calls_to_redis_raise_the_error_at_once(
    redis_url: str, name: str, way: str
) -> None:
    """F20: these calls wait for the server, and not for a turn."""
    limiter = Limiter(name, Concurrency(5), store=redis_url)

    async def story() -> None:
        with pytest.raises(RuntimeError, match="No event loop of asyncio runs here"):
            await getattr(limiter, way)()

    trio.run(story)


def test_after_asyncio_the_error_comes_at_once_too(name: str) -> None:
    """F20: the same limiter is used by asyncio first, and by trio afterwards."""
    limiter = Limiter(name, Concurrency(5))

    async def enter() -> None:
        async with limiter:
            pass

    asyncio.run(enter())
    gc.collect()
    with pytest.raises(RuntimeError, match="No event loop of asyncio runs here"):
        trio.run(enter)
