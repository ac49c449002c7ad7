"""A waiter with `on_wait` hears of its wait once, also when the queue is lost."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit, Rate, Waiting
from tests.faults.scene import elsewhere, keys_of
from tests.world import HOUR, at_rest, soon, until, waiting


async def acquired(limiter: Limiter, heard: list[Waiting]) -> Permit:
    return await limiter.acquire(on_wait=heard.append)


@pytest.mark.usefixtures("hurried")
async def test_waiters_join_a_lost_queue_again_without_a_second_on_wait(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L5: given two waiters, when the server loses all its keys, then both wait again, and
    `on_wait` is not called twice.
    """
    limiter = elsewhere(name, Concurrency(1, lease=30), url=redis_url)
    heard: list[Waiting] = []
    holder = await limiter.acquire()
    waiters = []
    for number in (1, 2):
        waiters.append(asyncio.create_task(acquired(limiter, heard)))
        await waiting(limiter, number)

    admin.delete(*keys_of(admin, name))
    (await soon(waiters[0])).release()
    (await soon(waiters[1])).release()

    assert heard == [Waiting(0, None), Waiting(1, None)]
    holder.release()
    await at_rest(limiter)


async def test_positions_count_the_waiters_of_all_processes(name: str, redis_url: str) -> None:
    """S6: given waiters of two processes by turns, then each hears how many stand before it in all
    processes.
    """
    limits = Rate(1, per=HOUR)
    limiters = [elsewhere(name, limits, url=redis_url) for _ in range(2)]
    heard: list[Waiting] = []
    await limiters[0].acquire()
    callers = []
    for number in range(4):
        callers.append(asyncio.create_task(acquired(limiters[number % 2], heard)))
        await until(lambda _: len(heard) == len(callers), limiters[0])  # later than the status

    assert [its.position for its in heard] == [0, 1, 2, 3]
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    await until(lambda status: status.waiting == 0, limiters[0])
