"""flush(): when it returns, the server has all that the process has said."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.memory import MemoryStore
from tests.faults.scene import holders_of
from tests.servers import free_port


async def test_what_was_released_has_arrived_when_aflush_returns(name: str, redis_url: str, admin: Redis) -> None:
    """L6: a task's own permit, one of a key, and one of a thread."""
    limiter = Limiter(name, Concurrency(3), store=redis_url)
    permits = [await limiter.acquire(), await limiter["k"].acquire(), await asyncio.to_thread(limiter.acquire_sync)]

    for permit in permits:
        permit.release()
    await limiter.aflush()

    assert (holders_of(admin, name), holders_of(admin, f"{name}:k")) == (0, 0)


def test_what_was_released_has_arrived_when_flush_returns(name: str, redis_url: str, admin: Redis) -> None:
    """L6: in a thread, and of a loop that has ended."""
    limiter = Limiter(name, Concurrency(3), store=redis_url)
    permits = [limiter.acquire_sync(), asyncio.run(limiter.acquire().__aenter__())]

    for permit in permits:
        permit.release()
    limiter.flush()

    assert holders_of(admin, name) == 0


async def test_flush_without_a_server_is_a_store_error(name: str) -> None:
    """Promise 8."""
    limiter = Limiter(name, Rate(1, per=1), store=f"redis://127.0.0.1:{free_port()}")
    limiter.update(Rate(2, per=1))

    with pytest.raises(StoreError):
        await limiter.aflush()


async def test_flush_in_an_event_loop_says_what_to_write(name: str, redis_url: str) -> None:
    """It would wait for the loop that it blocks."""
    with pytest.raises(RuntimeError, match="aflush"):
        Limiter(name, Rate(1, per=1), store=redis_url).flush()


async def test_in_memory_there_is_nothing_to_wait_for(name: str) -> None:
    """L6."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    limiter.flush()
    await limiter.aflush()
