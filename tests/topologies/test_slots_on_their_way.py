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
    """How often a node has refused a call because keys are missing, or with another word, since
    `config_resetstat`.
    """
    stats: dict[str, Any] = node.admin.info("errorstats")
    return int(stats.get(f"errorstat_{word}", {}).get("count", 0))


def moving(cluster: Cluster, name: str) -> Move:
    """The slot of `name`, while it moves; no process has noticed yet."""
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
    """S1, S7, L5: given a known name whose slot moves, when none or all of its keys have moved,
    then callers enter, leave, wait and are granted. No call is refused.
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
    move = moving(cluster, name)
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


async def test_a_name_that_one_process_uses_goes_on_in_a_slot_that_moves(
    name: str, cluster: Cluster
) -> None:
    """L5: without a second session, too, both keys of the name exist."""
    limiter = Limiter(name, TOKENS, store=cluster.user_url)
    assert await limiter.atry_acquire(tokens=1)
    move = moving(cluster, name)

    for carried in (False, True):
        if carried:
            move.carry()
        async with asyncio.timeout(long()):
            await limiter.acquire(tokens=1)
    assert [refusals(node) for node in (move.source, move.target)] == [0, 0]
    move.close()


def blocking_visit(limiter: Limiter) -> None:
    with limiter:
        pass


async def test_callers_of_a_name_wait_while_some_of_its_keys_have_moved(
    name: str, cluster: Cluster
) -> None:
    """S7, F40: given a holder and a waiter, when one of two keys has moved, then the permit is
    handed over as soon as both have.
    """
    limiters = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in range(2)
    ]
    holder = await limiters[0].acquire()
    waiter = asyncio.create_task(limiters[1].acquire().__aenter__())
    await waiting(limiters[0], 1)
    move = moving(cluster, name).carry(f"headgate:{{{name}}}:who")

    released = asyncio.create_task(holder.arelease())
    await eventually(lambda: refusals(move.source) + refusals(move.target))
    move.carry()

    assert await soon(released)
    permit = await soon(waiter)
    assert used(await limiters[0].astatus()) == [1]
    assert await permit.arelease()
    move.close()
    assert used(await at_rest(limiters[0])) == [0]


async def test_a_new_process_waits_until_the_nodes_agree_about_a_slot(
    name: str, cluster: Cluster
) -> None:
    """L5, F40: given nodes of a slot that name each other, when a new process comes, then its call
    goes to and fro, with pauses. It arrives when they agree.
    """
    move = moving(cluster, name)
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
async def test_a_new_name_in_a_slot_that_moves_begins_at_the_target(
    name: str, cluster: Cluster, limits: list[Any]
) -> None:
    """S8, L5, F40: given a slot that moves, when tasks and a thread use a name for the first time,
    then they wait for nothing. All keys of it have a TTL, and it goes on when the slot has arrived.
    """
    limiters = [
        Limiter(name, *limits, store=apart(cluster.user_url, number)) for number in range(2)
    ]
    move = moving(cluster, name)

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


async def test_a_thread_with_a_connection_begins_a_new_name_at_the_target(
    name: str, cluster: Cluster
) -> None:
    """S8, L5, F40: given a slot that moves, when a thread with a connection to its source uses a
    name for the first time, then it waits for nothing, and is charged once.
    """
    move = moving(cluster, name)
    beside = Limiter(cluster.name_on(move.source, f"{name}-known"), TOKENS, store=cluster.user_url)
    for _ in range(2):  # by the portal, then directly
        await asyncio.to_thread(beside.acquire_sync, tokens=1)
    limiter = Limiter(name, TOKENS, store=cluster.user_url)

    await soon(asyncio.to_thread(limiter.acquire_sync, tokens=1))

    assert used(await limiter.astatus()) == [1]
    move.close()
    assert used(await limiter.astatus()) == [1]


async def test_a_process_that_is_new_to_a_name_waits_only_for_the_keys_that_exist(
    name: str, cluster: Cluster
) -> None:
    """L5, F40: given a name whose keys have moved, when another process comes, which knows of one
    key more, then it is served.
    """
    known, new = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in (4, 5)
    ]
    holder = await known.acquire()
    move = moving(cluster, name).carry()

    waiter = asyncio.create_task(new.acquire().__aenter__())
    await waiting(known, 1)
    assert await soon(holder.arelease())
    permit = await soon(waiter)
    assert used(await known.astatus()) == [1]
    assert await permit.arelease()
    move.close()

    await at_rest(known)


async def test_a_key_that_has_not_moved_yet_is_never_begun_at_the_target(
    name: str, cluster: Cluster
) -> None:
    """S1, S7, F40: given one of two keys that has moved, when callers come and the other key
    follows, then they get no permit before that.
    """
    limiter, new = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in (4, 5)
    ]
    holder = await limiter.acquire()
    move = moving(cluster, name)
    for key in ("", ":who"):
        move.carry(f"headgate:{{{name}}}{key}")
        coming = [asyncio.create_task(each.atry_acquire()) for each in (limiter, new)]
        if not key:
            await eventually(lambda: refusals(move.source) + refusals(move.target) >= 2)
    assert [bool(each) for each in await soon(asyncio.gather(*coming))] == [False, False]
    move.close()
    assert await soon(holder.arelease())
    await at_rest(limiter)
