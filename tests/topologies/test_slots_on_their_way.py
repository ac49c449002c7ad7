"""A slot of a Cluster that is being moved: names whose keys are all on one of the two sides are
served there (F40).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate, Window
from tests.clusters import Cluster, Move, Node
from tests.faults.scene import Room, eventually
from tests.world import at_rest, long, soon, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")
BRIEF = Window(50, per=0.05)  # its log is filled and emptied again and again


def apart(url: str, number: int) -> str:
    """The same place for a limiter as of another process."""
    return f"{url}?socket_connect_timeout={5 + number}"


def refusals(node: Node, word: str = "TRYAGAIN") -> int:
    """How often a node has said that keys are missing, or another word, since
    `config_resetstat`.
    """
    stats: dict[str, Any] = node.admin.info("errorstats")
    return int(stats.get(f"errorstat_{word}", {}).get("count", 0))


def on_its_way(cluster: Cluster, name: str) -> Move:
    """The slot of `name`; nobody has noticed yet."""
    move = cluster.move(f"headgate:{{{name}}}")
    for node in (move.source, move.target):
        node.admin.config_resetstat()
    return move.open()


@pytest.mark.parametrize("carried", ["nothing", "all keys"])
@pytest.mark.parametrize(
    "limits",
    [[TOKENS], [Concurrency(1)], [Concurrency(2), TOKENS, BRIEF]],
    ids=["rate", "semaphore", "all"],
)
async def test_names_in_a_slot_that_moves_go_on(
    name: str, cluster: Cluster, limits: list[Any], carried: str
) -> None:
    """S1, S7, L5: given a name that is known, when its slot is on its way, and none or all of its
    keys have gone, then callers come and go, wait and are handed places, by turns all and none of
    them, and no call is refused.
    """
    limiters = [
        Limiter(name, *limits, store=apart(cluster.user_url, number)) for number in range(2)
    ]
    room = Room()

    async def visit(limiter: Limiter) -> None:
        async with limiter:
            with room:
                await asyncio.sleep(0.001)

    for limiter in limiters:
        await visit(limiter)
        await limiter.aflush()  # A release that came while the keys are carried would be refused.
    move = on_its_way(cluster, name)
    if carried == "all keys":
        move.carry()

    async with asyncio.timeout(long()):
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


async def test_names_of_which_some_keys_have_gone_wait_for_the_others(
    name: str, cluster: Cluster
) -> None:
    """S7, F40: given a holder and a waiter, when one of two keys has gone, then the place changes
    hands as soon as both have.
    """
    limiters = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in range(2)
    ]
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


async def test_nodes_that_disagree_are_waited_for_by_who_has_just_come_too(
    name: str, cluster: Cluster
) -> None:
    """L5, F40: given a source that has given its slot away and a target that was not told yet, so
    that each names the other, when somebody comes who has met none of them, then the call goes to
    and fro, with pauses, and arrives when they agree.
    """
    move = on_its_way(cluster, name)
    move.source.ask("SETSLOT", move.slot, "NODE", move.target.identity)

    coming = asyncio.create_task(
        Limiter(name, Concurrency(1), store=cluster.user_url).acquire().__aenter__()
    )
    try:
        await eventually(lambda: coming.done() or refusals(move.target, "MOVED") >= 2)
        assert not coming.done()
    finally:
        move.close()

    assert await (await soon(coming)).arelease()


@pytest.mark.parametrize(
    "limits",
    [[TOKENS], [Concurrency(1)], [Concurrency(2), TOKENS, BRIEF]],
    ids=["rate", "semaphore", "all"],
)
async def test_a_name_that_is_new_in_a_slot_on_its_way_begins_where_it_goes(
    name: str, cluster: Cluster, limits: list[Any]
) -> None:
    """S8, L5, F40: given a slot on its way, when a name is used for the first time, by tasks and a
    thread, then it waits for nothing; all that is kept of it has a TTL; and it goes on when the
    slot has arrived.
    """
    limiters = [
        Limiter(name, *limits, store=apart(cluster.user_url, number)) for number in range(2)
    ]
    move = on_its_way(cluster, name)

    for limiter in limiters:
        async with asyncio.timeout(long()):
            async with limiter:
                pass
    await soon(asyncio.to_thread(blocking_visit, limiters[0]))
    kept = list(move.target.admin.scan_iter(f"headgate:{{{name}}}*"))
    assert not list(move.source.admin.scan_iter(f"headgate:{{{name}}}*"))
    status = used(await at_rest(limiters[0]))
    move.close()
    assert [key for key in kept if move.target.admin.pttl(key) <= 0] == []

    for limiter in limiters:
        assert used(await at_rest(limiter))[:2] == status[:2]
        async with limiter:
            pass


async def test_a_process_that_is_new_to_a_name_waits_for_no_more_than_its_keys(
    name: str, cluster: Cluster
) -> None:
    """L5, F40: given a name whose keys have gone, when another process comes, which knows of one
    key more, then it is served.
    """
    known, new = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in (4, 5)
    ]
    holder = await known.acquire()
    move = on_its_way(cluster, name).carry()

    waiter = asyncio.create_task(new.acquire().__aenter__())
    await waiting(known, 1)
    assert await soon(holder.arelease())
    permit = await soon(waiter)
    assert used(await known.astatus()) == [1]
    assert await permit.arelease()
    move.close()

    await at_rest(known)


async def test_what_has_not_gone_yet_is_never_begun_elsewhere(name: str, cluster: Cluster) -> None:
    """S1, S7, F40: given one of two keys that has gone, when callers come and the other follows,
    then its place there is free.
    """
    limiter, new = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in (4, 5)
    ]
    holder = await limiter.acquire()
    move = on_its_way(cluster, name)
    for key in ("", ":who"):
        move.carry(f"headgate:{{{name}}}{key}")
        coming = [asyncio.create_task(each.atry_acquire()) for each in (limiter, new)]
        if not key:
            await eventually(lambda: refusals(move.source) + refusals(move.target) >= 2)
    assert [bool(each) for each in await soon(asyncio.gather(*coming))] == [False, False]
    move.close()
    assert await soon(holder.arelease())
    await at_rest(limiter)
