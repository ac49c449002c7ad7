"""flush(): when it returns, the server has received all earlier calls of the process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.memory.store import MemoryStore
from headgate.stores.redis.session.delivery import Delivery
from headgate.stores.redis.transport.client import Client
from tests.faults.scene import elsewhere, holders_of
from tests.servers import Server, dead_port
from tests.world import long


async def test_releases_a_settlement_and_an_update_have_arrived_when_aflush_returns(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6: a task's own permit, one of a key, and one of a thread. A thread asks as another process
    while the loop stands still, so nothing can arrive after the flush.
    """
    tokens = Rate(100, per=10_000_000, unit="tokens")  # none comes back within a test
    limiter = Limiter(name, Concurrency(3), tokens, store=redis_url)
    other = elsewhere(name, Concurrency(3), tokens, url=redis_url)
    permits = [
        await limiter.acquire(tokens=10),
        await limiter["k"].acquire(),
        await asyncio.to_thread(limiter.acquire_sync),
    ]

    permits[0].settle(tokens=30)
    for permit in permits:
        permit.release()
    await limiter.aflush()
    held = holders_of(admin, name), holders_of(admin, f"{name}:k")
    limiter.update(Concurrency(7), tokens)  # alone, as any call would carry it to the server
    await limiter.aflush()
    with ThreadPoolExecutor() as threads:
        status = threads.submit(other.status).result(long())

    assert held == (0, 0)
    assert [(limit.used, limit.limit) for limit in status.limits] == [
        (0, Concurrency(7)),
        (30, tokens),
    ]


def test_releases_have_arrived_when_flush_returns(name: str, redis_url: str, admin: Redis) -> None:
    """L6: in a thread, and of a loop that has ended."""
    limiter = Limiter(name, Concurrency(3), store=redis_url)
    permits = [limiter.acquire_sync(), asyncio.run(limiter.acquire().__aenter__())]

    for permit in permits:
        permit.release()
    limiter.flush()

    assert holders_of(admin, name) == 0


def test_flush_returns_if_a_loop_closes_before_the_flush_task_is_made(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6, F7: the loop runs when the flush asks it to make the task, and never makes it."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    asked = threading.Event()

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(
            self, callback: Callable[..., object], *args: Any, context: Any = None
        ) -> Any:
            if "begin_flush" in callback.__qualname__:
                asked.set()
                return None
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def release_and_end() -> None:
        (await limiter.acquire()).release()
        flushing.append(threads.submit(limiter.flush))
        asked.wait()

    loop = Loop()
    flushing: list[Future[None]] = []
    with ThreadPoolExecutor() as threads:
        loop.run_until_complete(release_and_end())
        loop.close()

        flushing[0].result(long())

    assert holders_of(admin, name) == 0


def test_flush_returns_if_a_closing_loop_cancels_the_flush_task(
    name: str, own_server: Server
) -> None:
    """L6, F9: asyncio.run cancels the task that the flush has put into its loop."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url)

    async def release_and_end() -> None:
        permit = await limiter.acquire()
        own_server.pause()
        permit.release()
        flushing.append(threads.submit(limiter.flush))
        while not any(task.get_name() == "headgate-flush" for task in asyncio.all_tasks()):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.001)

    flushing: list[Future[None]] = []
    with ThreadPoolExecutor() as threads:
        asyncio.run(release_and_end())
        own_server.resume()

        flushing[0].result(long())

    assert holders_of(own_server.admin, name) == 0


def test_a_flush_task_that_is_cancelled_before_its_first_step_leaves_no_warning(
    name: str, redis_url: str
) -> None:
    """F9: asyncio.run cancels the flush's task before its first step.

    Python would name a coroutine that was never awaited.
    """
    limiter = Limiter(name, Concurrency(1), store=redis_url)

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(
            self, callback: Callable[..., object], *args: Any, context: Any = None
        ) -> Any:
            if "begin_flush" in callback.__qualname__:
                asked.set()
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def release_and_end() -> None:
        (await limiter.acquire()).release()
        flushing.append(threads.submit(limiter.flush))
        asked.wait()

    asked = threading.Event()
    flushing: list[Future[None]] = []
    with ThreadPoolExecutor() as threads, asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(release_and_end())
        runner.close()

        flushing[0].result(long())


def test_a_flush_waits_for_the_end_of_a_closed_loop_that_another_thread_has_found(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6, F7: that thread hands the requests of the closed loop over to the portal, and the flush
    comes in between.
    """
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    limiter.status()
    loop = asyncio.new_event_loop()
    permit = loop.run_until_complete(limiter.acquire().__aenter__())
    permit.release()  # the request waits in a loop that does not run
    loop.close()
    found, go_on = threading.Event(), threading.Event()
    take_over = Delivery.take_over

    def late(its: Delivery, client: Client) -> None:
        found.set()
        go_on.wait(long())
        take_over(its, client)

    monkeypatch.setattr(Delivery, "take_over", late)
    with ThreadPoolExecutor() as threads:
        looking = threads.submit(asyncio.run, limiter.astatus())
        found.wait(long())
        flushing = threads.submit(asyncio.run, limiter.aflush())
        wait(
            [flushing], timeout=0.2
        )  # no event says that it waits; without waiting it returns within this time
        go_on.set()
        flushing.result(long())
        held = holders_of(admin, name)
        looking.result(long())

    assert held == 0


def test_flush_returns_if_a_loop_stops_after_it_has_sent_everything(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6: the loop of a notebook runs for short times."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)

    async def send() -> None:
        while not (  # noqa: ASYNC110 - no event says so
            tasks := [task for task in asyncio.all_tasks() if task.get_name() == "headgate-flush"]
        ):
            await asyncio.sleep(0)
        await asyncio.wait(tasks)

    with ThreadPoolExecutor() as threads, asyncio.Runner() as runner:
        runner.run(limiter.acquire().__aenter__()).release()

        flushing = threads.submit(limiter.flush)
        runner.run(send())

        flushing.result(long())
        assert holders_of(admin, name) == 0


def test_flush_raises_for_a_stopped_loop_that_is_not_closed(name: str, redis_url: str) -> None:
    """L6: a stopped loop may run again, so no other loop may send its releases."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    loop = asyncio.new_event_loop()
    permit = loop.run_until_complete(limiter.acquire().__aenter__())

    with pytest.raises(StoreError, match="run or close it"):
        limiter.flush()

    permit.release()
    loop.close()
    limiter.flush()


async def test_flush_without_a_server_is_a_store_error(name: str) -> None:
    """Promise 8."""
    limiter = Limiter(name, Rate(1, per=1), store=f"redis://127.0.0.1:{dead_port()}")
    limiter.update(Rate(2, per=1))

    with pytest.raises(StoreError):
        await limiter.aflush()


async def test_flush_in_an_event_loop_is_an_error_that_names_aflush(
    name: str, redis_url: str
) -> None:
    """It would wait for the loop that it blocks."""
    with pytest.raises(RuntimeError, match="aflush"):
        Limiter(name, Rate(1, per=1), store=redis_url).flush()


async def test_flush_of_a_memory_store_waits_for_nothing(name: str) -> None:
    """L6."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    limiter.flush()
    await limiter.aflush()
