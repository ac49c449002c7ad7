"""Bodies of tasks start in the order of their grants (promise 2, S5, S6)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Permit, Rate
from headgate.stores.memory.store import MemoryStore
from tests.virtual import VirtualClock

WAYS: dict[str, Callable[[Limiter], Any]] = {
    "limiter": lambda limiter: limiter,
    "acquire": lambda limiter: limiter.acquire(),
}


@pytest.mark.parametrize("way", WAYS)
async def test_a_task_that_arrives_in_the_turn_of_a_grant_runs_after_the_granted_one(
    name: str, way: str
) -> None:
    """Promise 2: CPython's test_acquire_fifo_order_4, with permits.

    The second task releases for the first, then asks itself.
    """
    limiter = Limiter(name, Concurrency(2), store=MemoryStore())
    held = [await limiter.acquire(), await limiter.acquire()]
    result: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def visit(number: int) -> None:
        async with WAYS[way](limiter):
            if number == 1:
                tasks.append(asyncio.create_task(visit(4)))
            result.append(number)

    async def second() -> None:
        for permit in held:
            permit.release()
        await visit(2)

    tasks += [asyncio.create_task(story) for story in (visit(1), second(), visit(3))]
    await asyncio.wait(list(tasks))
    await asyncio.wait(tasks)
    assert result == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "limits",
    [[Concurrency(3)], [Concurrency(3), Rate(10**6, per=1)]],
    ids=["permits", "and a rate"],
)
@pytest.mark.parametrize("seed", range(5))
async def test_a_fence_never_falls_from_one_body_to_the_next(
    name: str, limits: list[Any], seed: int
) -> None:
    """S5: sixty tasks come and go in all orders."""
    chance = random.Random(seed)
    limiter = Limiter(name, *limits, store=MemoryStore())
    fences: list[int] = []

    async def visit() -> None:
        for _ in range(chance.randint(1, 4)):
            for _ in range(chance.randint(0, 3)):
                await asyncio.sleep(0)
            kind = chance.random()
            permit: Permit | Any = await (
                limiter.atry_acquire() if kind < 0.2 else limiter.acquire()
            )
            if not permit:
                continue
            fences.append(permit.fence)
            for _ in range(chance.randint(0, 2)):
                await asyncio.sleep(0)
            permit.release()

    await asyncio.gather(*(visit() for _ in range(60)))
    assert [pair for pair in pairwise(fences) if pair[0] >= pair[1]] == []


async def test_a_task_that_arrives_when_a_rate_has_just_granted_runs_after_the_granted_ones(
    name: str,
) -> None:
    """Promise 2, T3: two callers wait for tokens. A third comes when the tokens have come, and is
    the third.
    """
    clock = VirtualClock()
    limiter = Limiter(name, Rate(3, per=1, steps=True, initial=0), store=MemoryStore(clock))
    order: list[int] = []

    async def visit(number: int) -> None:
        async with limiter:
            order.append(number)

    tasks = [asyncio.create_task(visit(number)) for number in range(2)]
    await asyncio.sleep(0)
    clock.jump(1)
    limiter.status()  # a look grants all waiters that are due
    await visit(2)
    await asyncio.wait(tasks)
    assert order == [0, 1, 2]
