"""The index of names in a Cluster and behind Sentinels: one list for all servers (S9)."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import headgate
from headgate import Concurrency, Limiter
from headgate.keys import encoded
from headgate.stores.redis.members import read_members
from headgate.stores.redis.protocol.index import NAMES
from headgate.stores.registry import store_of
from tests.clusters import Cluster
from tests.faults.scene import enter, eventually, visit
from tests.index import refreshed
from tests.machine import scaled
from tests.processes import finished, running
from tests.sentinels import Sentinels
from tests.servers import USER
from tests.world import soon, waiting

USE = """
import sys
from headgate import Limiter
with Limiter(sys.argv[2], "9/s", store=sys.argv[1]):
    pass
"""
PROMOTION = scaled(20.0)  # seconds until the replica is the primary: about two


async def names_of(store: Any, name: str) -> list[str]:
    await refreshed(store)
    return [each for each in await headgate.anames(store) if each.startswith(name)]


async def test_names_of_all_masters_are_in_one_list(name: str, cluster: Cluster) -> None:
    """S9: the longest queues are those of all masters, and so are the keys."""
    store = cluster.user_url
    names = sorted(cluster.name_on(node, f"{name}-{node.port}") for node in cluster.masters())
    limiters = [Limiter(each, Concurrency(1), store=store) for each in names]
    permits = [await enter(limiter) for limiter in limiters]
    waiters = [
        asyncio.create_task(enter(limiter))
        for number, limiter in enumerate(limiters)
        for _ in range(number)
    ]
    for number, limiter in enumerate(limiters):
        await waiting(limiter, number)

    assert await names_of(store, name) == names
    found = [each for each in await headgate.alongest_queues(store) if each.name in names]
    assert [(each.name, each.waiting) for each in found] == [(names[2], 2), (names[1], 1)]
    members = await read_members(store_of(store).topology, encoded(names[2]))  # type: ignore[attr-defined]
    assert (members.holding, members.waiting) == (1, 2)
    assert {each.label and each.label.pid for each in (*members.holders, *members.waiters)} == {
        os.getpid()
    }
    for permit in permits:
        permit.release()
    for permit in await soon(asyncio.gather(*waiters[:2])):
        permit.release()
    await (await soon(waiters[2])).arelease()


async def test_keys_are_found_on_each_master(name: str, cluster: Cluster) -> None:
    limiter = Limiter(name, "100/minute", store=cluster.user_url)
    keys = sorted(f"tenant-{number}" for number in range(20))
    for key in keys:
        await visit(limiter[key])
    for node in cluster.masters():
        node.admin.acl_setuser(USER, enabled=True, commands=["+scan"])
    assert await headgate.akeys_of(limiter) == keys
    for node in cluster.masters():
        node.admin.acl_setuser(USER, enabled=True, commands=["-scan"])


async def test_a_killed_process_leaves_the_index_of_a_cluster(name: str, cluster: Cluster) -> None:
    """Its name has an end, by the clock of the server."""
    with running("indexed", cluster.user_url, name) as process:
        await process.said()
        process.kill()
    admin = cluster.master_of(NAMES).admin
    assert await headgate.anames(cluster.user_url) != []
    admin.zadd(NAMES, {encoded(name): admin.time()[0]})
    assert name not in await headgate.anames(cluster.user_url)


async def test_a_process_of_a_moment_is_in_the_index_of_a_cluster(
    name: str, cluster: Cluster
) -> None:
    """Given a name on another primary than the index, to which the process has no connection."""
    other = next(node for node in cluster.masters() if node is not cluster.master_of(NAMES))
    its = cluster.name_on(other, name)
    await asyncio.to_thread(finished, USE, cluster.user_url, its)
    assert its in await headgate.anames(cluster.user_url)


async def test_the_index_follows_its_slot(name: str, cluster: Cluster) -> None:
    """Given a slot that has moved to another master, then refreshes and reads go there."""
    store = cluster.user_url
    await visit(Limiter(name, "100/minute", store=store))
    assert await names_of(store, name) == [name]
    former = cluster.master_of(NAMES)
    cluster.move(NAMES).open().carry().close()
    assert cluster.master_of(NAMES) is not former

    assert await headgate.anames(store) != []
    await visit(Limiter(f"{name}-2", "100/minute", store=store))
    assert await names_of(store, name) == [name, f"{name}-2"]


async def test_the_index_follows_a_failover(name: str, own_sentinels: Sentinels) -> None:
    """The new primary gets the refreshes that come after it."""
    store = own_sentinels.user_url
    await visit(Limiter(name, "100/minute", store=store))
    assert await names_of(store, name) == [name]
    own_sentinels.copy()

    former = own_sentinels.kill_primary()
    await eventually(lambda: own_sentinels.promoted(former), PROMOTION)
    await visit(Limiter(f"{name}-2", "100/minute", store=store))
    assert await names_of(store, name) == [name, f"{name}-2"]
