"""A task whose event loop is closed never goes on, so its place in the queue is free. The permit
that it waits for stays held.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from weakref import ref

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, Permit, Rate
from headgate.limits import Limit
from headgate.stores.memory.store import MemoryStore
from tests.world import HOUR, long, waiting


async def enters(limiter: Limiter) -> None:
    async with limiter:
        pass


async def acquires(limiter: Limiter) -> None:
    await limiter.acquire(max_sleep=HOUR)


async def acquires_with_on_wait(limiter: Limiter) -> None:
    await limiter.acquire(on_wait=lambda waiting: None)


WAYS = pytest.mark.parametrize("wait", [enters, acquires, acquires_with_on_wait])


def stopped_loop_with_waiters(
    limiter: Limiter, wait: Callable[[Limiter], Awaitable[None]], count: int
) -> tuple[asyncio.AbstractEventLoop, list[asyncio.Task[None]]]:
    """A stopped event loop and its waiting tasks."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # of asyncio: a task was destroyed
    tasks = [asyncio.ensure_future(wait(limiter), loop=loop) for _ in range(count)]
    loop.run_until_complete(waiting(limiter, count))
    return loop, tasks


def waiters_of_closed_loop(
    limiter: Limiter, wait: Callable[[Limiter], Awaitable[None]], count: int = 2
) -> list[asyncio.Task[None]]:
    """Tasks that waited when their loop was closed."""
    loop, tasks = stopped_loop_with_waiters(limiter, wait, count)
    loop.close()
    return tasks


@WAYS
def test_waiters_of_a_closed_loop_are_not_counted(
    wait: Callable[[Limiter], Awaitable[None]], store: MemoryStore | str, name: str
) -> None:
    """F7, L6: on Redis when the process asks the server again; the server alone would count them
    for 10 s.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    with limiter:
        limiter.status()  # threads have their connection now
        tasks = waiters_of_closed_loop(limiter, wait)

        assert any(
            limiter.status().waiting == 0 for _ in range(100)
        )  # a hundred calls take much less than 10 s

        assert not any(task.done() for task in tasks)


@WAYS
def test_waiters_of_a_closed_loop_do_not_fill_the_queue(
    wait: Callable[[Limiter], Awaitable[None]], name: str
) -> None:
    """F7: the next acquire finds room in the queue."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore(), max_waiters=2)
    held = limiter.acquire_sync()
    tasks = waiters_of_closed_loop(limiter, wait)

    limiter.acquire_sync(on_wait=lambda waiting: held.release()).release()

    assert not any(task.done() for task in tasks)


async def asks_for_all(limiter: Limiter) -> None:
    await limiter.acquire(permits=3)


def is_refused(limiter: Limiter) -> None:
    with pytest.raises(MaxSleepExceededError):
        limiter.acquire_sync(permits=3, max_sleep=0)


NEWCOMERS: dict[str, Callable[[Limiter], object]] = {
    "plain": lambda limiter: limiter.acquire_sync().release(),
    "with a time limit": lambda limiter: limiter.acquire_sync(max_sleep=HOUR).release(),
    "refused": is_refused,
}


@pytest.mark.parametrize(
    "limits",
    [[Concurrency(3)], [Concurrency(3), Rate(10**6, per=1)]],
    ids=["permits", "and a rate"],
)
@pytest.mark.parametrize("newcomer", NEWCOMERS)
def test_waiters_behind_those_of_a_closed_loop_go_on_with_the_next_acquire(
    name: str, newcomer: str, limits: list[Limit]
) -> None:
    """F7, L2: two permits were free all the time, but the waiter of the closed loop had asked for
    three.
    """
    limiter = Limiter(name, *limits, store=MemoryStore())
    with ThreadPoolExecutor() as threads, limiter:
        loop, tasks = stopped_loop_with_waiters(limiter, asks_for_all, 1)
        behind = threads.submit(limiter.acquire_sync)
        asyncio.run(waiting(limiter, 2))
        loop.close()

        after = threads.submit(NEWCOMERS[newcomer], limiter)

        behind.result(long()).release()
        after.result(long())
    assert not any(task.done() for task in tasks)


def test_estimates_leave_out_waiters_of_a_closed_loop(name: str) -> None:
    """F7, T8: neither an estimate nor a refusal counts the costs of these waiters."""
    limiter = Limiter(name, Rate(1, per=60), store=MemoryStore())
    with limiter:
        pass
    tasks = waiters_of_closed_loop(limiter, enters, count=3)

    refusal = limiter.try_acquire()

    assert not isinstance(refusal, Permit)
    assert refusal.retry_after is not None
    assert refusal.retry_after <= 60
    assert not any(task.done() for task in tasks)


@WAYS
def test_tasks_of_a_closed_loop_can_be_collected(
    wait: Callable[[Limiter], Awaitable[None]], name: str
) -> None:
    """F7: the queue keeps none of them alive."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    with limiter:
        tasks = [ref(task) for task in waiters_of_closed_loop(limiter, wait)]
        assert limiter.status().waiting == 0

        gc.collect()

        assert [task() for task in tasks] == [None, None]
    assert limiter.status().limits[0].used == 0
