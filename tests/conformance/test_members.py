"""The holders and waiters of a name, as an operator sees them, in memory and on Redis."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack

from headgate import Concurrency, Limiter
from headgate.internals import store_of as store_behind
from headgate.keys import encoded
from headgate.stores.memory.store import MemoryStore
from tests.faults.scene import visit
from tests.waiting import until_they_wait
from tests.world import World, told, waiting


async def test_holders_and_waiters_are_listed_with_their_costs_in_order(
    name: str, store: MemoryStore | str
) -> None:
    limiter = Limiter(name, Concurrency(3), "1000 tokens/hour", store=store)
    lists = store_behind(limiter).lists
    async with AsyncExitStack() as held:
        await held.enter_async_context(limiter)
        await held.enter_async_context(limiter.acquire(permits=2, tokens=7))
        waiters = [asyncio.create_task(limiter.acquire(tokens=cost)) for cost in (5, 6)]
        await until_they_wait(limiter, 2)

        members = await lists.amembers(encoded(name))
        assert (members.holding, members.waiting) == (2, 2)
        costs = [holder.units for holder in members.holders]
        assert sorted(costs, key=len) == [{"permits": 1}, {"permits": 2, "tokens": 7}]
        assert [waiter.units for waiter in members.waiters] == [
            {"permits": 1, "tokens": 5},
            {"permits": 1, "tokens": 6},
        ]
        assert [waiter.position for waiter in members.waiters] == [0, 1]

        waited = [waiter.waited for waiter in members.waiters]
        assert 0 <= waited[1] <= waited[0]
        names = [encoded(name), encoded(f"{name} is unknown")]
        [oldest, none] = await lists.aoldest_waits(names)
        assert none is None
        assert oldest >= waited[0]
    for permit in await asyncio.gather(*waiters):
        permit.release()
    await limiter.aflush()
    members = await lists.amembers(encoded(name))
    assert (members.holders, members.waiters, members.holding, members.waiting) == ((), (), 0, 0)


async def test_permits_of_the_fast_path_are_listed_until_they_are_released(name: str) -> None:
    limiter = Limiter(name, Concurrency(5), store=MemoryStore())
    lists = store_behind(limiter).lists
    async with limiter, limiter:
        assert [each.units for each in (await lists.amembers(name)).holders] == [{"permits": 1}] * 2
    assert (await lists.amembers(name)).holding == 0


async def test_members_in_memory_have_the_label_of_this_process_and_the_time_of_their_wait(
    name: str,
) -> None:
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    lists = store_behind(limiter).lists
    async with limiter:
        waiter = asyncio.create_task(limiter.acquire())
        await until_they_wait(limiter, 1)
        members = await lists.amembers(name)
        assert [each.label.pid for each in (*members.holders, *members.waiters)] == [
            os.getpid()
        ] * 2
        [later] = (await lists.amembers(name)).waiters
        assert later.waited >= members.waiters[0].waited >= 0
        [oldest] = await lists.aoldest_waits([name])
        assert oldest >= later.waited
    (await waiter).release()


@told
async def test_no_waiter_has_waited_since_before_it_came(world: World) -> None:
    """In memory no step has looked at the clock when the waiter comes."""
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        await world.sleep(20 * world.beat)
    async with limiter:
        waiter = asyncio.ensure_future(visit(limiter))
        await world.sleep(world.beat)  # a `status` before the waiter comes would look at the clock
        await waiting(limiter, 1)
        lists = store_behind(limiter).lists
        [oldest] = await lists.aoldest_waits([encoded(world.name)])
    await waiter
    assert oldest < 10 * world.beat
