"""A slot of a Cluster that is being moved: names whose keys are all on one of the two sides are served there (F40)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate, Window
from tests.clusters import Cluster, Move, Node
from tests.faults.scene import Room, eventually
from tests.world import LONG, at_rest, soon, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")
BRIEF = Window(50, per=0.05)  # its log is filled and emptied again and again


def apart(url: str, number: int) -> str:
    """The same place for a limiter as of another process."""
    return f"{url}?socket_connect_timeout={5 + number}"


def refusals(node: Node, word: str = "TRYAGAIN") -> int:
    """How often a node has said that keys are missing, or another word, since `config_resetstat`."""
    stats: dict[str, Any] = node.admin.info("errorstats")
    return int(stats.get(f"errorstat_{word}", {}).get("count", 0))


def on_its_way(cluster: Cluster, name: str) -> Move:
    """The slot of `name`; nobody has noticed yet."""
    move = cluster.move(f"headgate:{{{name}}}")
    for node in (move.source, move.target):
        node.admin.config_resetstat()
    return move.open()


@pytest.mark.parametrize("carried", ["nothing", "all keys"])
@pytest.mark.parametrize("limits", [[TOKENS], [Concurrency(1)], [Concurrency(2), TOKENS, BRIEF]], ids=["rate", "semaphore", "all"])
async def test_names_in_a_slot_that_moves_go_on(name: str, cluster: Cluster, limits: list[Any], carried: str) -> None:
    """S1, S7, L5: given a name that is known, when its slot is on its way, and none or all of its keys have gone, then callers come
    and go, wait and are handed places, by turns all and none of them, and no call is refused."""
    limiters = [Limiter(name, *limits, store=apart(cluster.user_url, number)) for number in range(2)]
    room = Room()

    async def visit(limiter: Limiter) -> None:
        async with limiter:
            with room:
                await asyncio.sleep(0.001)

    for limiter in limiters:
        await visit(limiter)
    move = on_its_way(cluster, name)
    if carried == "all keys":
        move.carry()

    async with asyncio.timeout(LONG):
        for _ in range(5):
            await asyncio.gather(*(visit(limiter) for limiter in limiters for _ in range(10)))
            await asyncio.sleep(0.06)  # the window is empty again
        await asyncio.gather(*(asyncio.to_thread(blocking_visit, limiter) for limiter in limiters))

    assert [refusals(node) for node in (move.source, move.target)] == [0, 0]
    move.close()
    for limiter in limiters:
        assert (await at_rest(limiter)).waiting == 0
    if Concurrency in map(type, limits):
        assert room.most <= limits[0].capacity


def blocking_visit(limiter: Limiter) -> None:
    with limiter:
        pass


async def test_names_of_which_some_keys_have_gone_wait_for_the_others(name: str, cluster: Cluster) -> None:
    """S7, F40: given a holder and a waiter, when one of two keys has gone, then the place changes hands as soon as both have."""
    limiters = [Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in range(2)]
    holder = await limiters[0].acquire()
    waiter = asyncio.create_task(limiters[1].acquire().__aenter__())
    await waiting(limiters[0], 1)
    move = on_its_way(cluster, name).carry(f"headgate:{{{name}}}:who")

    released = asyncio.create_task(holder.arelease())
    await eventually(lambda: refusals(move.source) + refusals(move.target))
    move.carry()

    assert await soon(released)
    permit = await soon(waiter)
    assert used(await limiters[0].astatus()) == [1]
    assert await permit.arelease()
    move.close()
    assert used(await at_rest(limiters[0])) == [0]


async def test_nodes_that_disagree_are_waited_for_by_who_has_just_come_too(name: str, cluster: Cluster) -> None:
    """L5, F40: given a source that has given its slot away and a target that was not told yet, so that each names the other, when
    somebody comes who has met none of them, then the call goes to and fro, with pauses, and arrives when they agree."""
    move = on_its_way(cluster, name)
    move.source.ask("SETSLOT", move.slot, "NODE", move.target.identity)

    coming = asyncio.create_task(Limiter(name, Concurrency(1), store=cluster.user_url).acquire().__aenter__())
    try:
        await eventually(lambda: coming.done() or refusals(move.target, "MOVED") >= 2)
        assert not coming.done()
    finally:
        move.close()

    assert await (await soon(coming)).arelease()
