"""Hand-offs between processes: after a failover, beside a silent node, and while a slot moves.

The tests run without heartbeats. So a waiter without a notification waits for ever, and the test
fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from redis import Redis

from headgate import Concurrency, Limiter
from headgate.stores.redis.session import polls
from headgate.stores.redis.transport import node as transport_node
from headgate.stores.redis.transport import subscriber, topology
from tests.clusters import Cluster, Node
from tests.faults.scene import enter, eventually
from tests.machine import scaled
from tests.records import records
from tests.rights import USER
from tests.sentinels import Copy, Sentinels
from tests.servers import connections_of
from tests.topologies.test_cluster import Chance, key_of, listeners
from tests.world import at_rest, long, soon, waiting

SILENT = 3600.0  # seconds between two heartbeats: none within a test
MOMENT = 0.15  # seconds between two looks at what is still used
OVERDUE = scaled(0.5)  # seconds after which a reply is overdue
PROMOTION = 10.0  # seconds that a failover may take: about two
ROUNDS = 10  # hand-offs, each from one process to the other

Breaks = Callable[[Sentinels], Copy]


@pytest.fixture(autouse=True)
def without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)


def two_processes(name: str, url: str) -> list[Limiter]:
    """Two limiters of one name, each with connections of its own."""
    urls = [f"{url}{'&' if '?' in url else '?'}socket_connect_timeout={5 + n}" for n in range(2)]
    return [Limiter(name, Concurrency(1), store=its) for its in urls]


async def hand_over(limiters: Sequence[Limiter], rounds: int = ROUNDS) -> None:
    """A permit goes from one process to the other and back; its next holder waits already."""
    holder = await soon(limiters[0].acquire())
    for number in range(rounds):
        waiter = asyncio.create_task(enter(limiters[(number + 1) % 2]))
        await waiting(limiters[0], 1)
        assert await soon(holder.arelease())
        holder = await soon(waiter)
    assert await soon(holder.arelease())


@pytest.mark.parametrize(
    "breaks",
    [Sentinels.fail_over, Sentinels.kill_primary],
    ids=["planned", "killed"],
)
async def test_the_subscription_moves_to_the_new_primary(
    name: str, own_sentinels: Sentinels, breaks: Breaks
) -> None:
    """L2, L5, F57: given two processes that are subscribed, when another server becomes the
    primary, then both subscribe there, and notifications of grants reach them.
    """
    limiters = two_processes(name, own_sentinels.user_url)
    await hand_over(limiters, rounds=2)
    own_sentinels.copy()

    former = breaks(own_sentinels)
    await eventually(lambda: own_sentinels.promoted(former), PROMOTION)
    # A process that has not read the message of the failover yet may get a permit that only the
    # former primary knows.
    await eventually(lambda: connections_of(own_sentinels.primary.admin, "normal") == len(limiters))
    await hand_over(limiters)

    assert connections_of(own_sentinels.primary.admin, "pubsub") == len(limiters)
    await at_rest(limiters[0])


async def test_a_frozen_primary_that_was_replaced_keeps_no_subscriber(
    name: str, own_sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, S9, F57: given a primary that stands still, so that the connections for calls are lost
    first. When another server is the primary, then both processes subscribe there, and nowhere
    else.
    """
    monkeypatch.setattr(transport_node, "REPLY_TIMEOUT", OVERDUE)
    limiters = two_processes(name, own_sentinels.user_url)
    await hand_over(limiters, rounds=2)
    own_sentinels.copy()
    former = own_sentinels.primary

    former.pause()
    asked = [asyncio.create_task(limiter.astatus()) for limiter in limiters]
    await eventually(lambda: own_sentinels.promoted(former), PROMOTION)
    for status in asked:
        await soon(status)
    await hand_over(limiters)
    former.resume()

    await eventually(lambda: not subscribers(former))
    assert len(subscribers(own_sentinels.primary)) == len(limiters)
    await at_rest(limiters[0])


@pytest.mark.parametrize("by_sentinel", [False, True], ids=["one server", "Sentinel"])
async def test_a_subscription_outlasts_the_connection_for_calls(
    name: str, own_sentinels: Sentinels, by_sentinel: bool
) -> None:
    """L2, F26: given two processes that are subscribed, when only their connections for calls are
    lost, then both keep their subscriptions."""
    server = own_sentinels.primary
    limiters = two_processes(name, own_sentinels.user_url if by_sentinel else server.user_url)
    await hand_over(limiters, rounds=2)
    former = subscribers(server)

    assert server.admin.client_kill_filter(_type="normal", user=USER) == len(limiters)
    await hand_over(limiters)

    assert subscribers(server) == former
    await at_rest(limiters[0])


async def test_a_name_with_waiters_keeps_its_channel_when_a_connection_for_calls_is_lost(
    name: str, cluster: Cluster
) -> None:
    """L2, F26, F58: given a waiter in one process, when the connections for calls to its node are
    lost, then the process keeps its subscription there.
    """
    node = cluster.masters()[0]
    limiters = two_processes(cluster.name_on(node, name), cluster.user_url)
    holder = await soon(limiters[0].acquire())
    waiter = asyncio.create_task(enter(limiters[1]))
    await eventually(lambda: channels(node, limiters[0].name))
    former = subscribers(node)

    assert node.admin.client_kill_filter(_type="normal", user=USER) == len(limiters)
    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()

    assert former
    assert former <= subscribers(node)


def subscribers(server: Copy | Node) -> set[str]:
    """The connections by which the user of docs/redis.md is subscribed."""
    clients = server.admin.client_list(_type="pubsub")
    return {client["id"] for client in clients if client["user"] == USER}


async def test_a_server_that_became_a_replica_loses_its_subscribers(
    name: str, own_sentinels: Sentinels
) -> None:
    """L2, F35, F57: given the URL of one server, which answers READONLY to two processes, when they
    are served again, then both have subscribed again. The address may lead to another server by
    now.
    """
    server = own_sentinels.primary
    limiters = two_processes(name, server.user_url)
    await hand_over(limiters, rounds=2)
    former = subscribers(server)

    server.admin.replicaof("127.0.0.1", own_sentinels.replica.port)
    asked = [asyncio.create_task(limiter.astatus()) for limiter in limiters]
    await eventually(lambda: not former & subscribers(server))
    server.admin.replicaof("NO", "ONE")
    for status in asked:
        await soon(status)
    await hand_over(limiters)

    assert len(former) == len(subscribers(server)) == len(limiters)
    await at_rest(limiters[0])


@pytest.mark.parametrize("others", [1, 2])
async def test_a_silent_node_delays_no_hand_off_of_names_that_other_nodes_keep(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """L2, L5, F36, F58: given two processes with names on all masters, when one master stands
    still, then names that the others keep are handed over at once.
    """
    silent, *healthy = cluster.masters()
    monkeypatch.setattr(topology, "CHANCE", Chance(silent.port))
    names = [cluster.name_on(node, name) for node in (silent, *healthy[:others])]
    processes = [two_processes(its, cluster.user_url) for its in names]
    for limiters in processes:
        await hand_over(limiters, rounds=2)

    silent.pause()
    for limiters in processes[1:]:
        await hand_over(limiters)


async def test_the_subscription_follows_a_slot_that_moves(name: str, cluster: Cluster) -> None:
    """L2, F40, F58: given a holder and a waiter in two processes, when the slot of their name
    moves, then the waiter is granted at the target.
    """
    limiters = two_processes(name, cluster.user_url)
    await hand_over(limiters, rounds=2)
    holder = await soon(limiters[0].acquire())
    waiter = asyncio.create_task(enter(limiters[1]))
    await waiting(limiters[0], 1)

    move = cluster.move(key_of(name)).open().carry()
    move.close()
    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()
    await hand_over(limiters)

    assert channels(move.target, name)
    assert not channels(move.source, name)


async def test_a_waiter_is_notified_of_its_grant_while_the_slot_of_its_name_moves(
    name: str, cluster: Cluster
) -> None:
    """L2, F40, F58: given a holder and a waiter in two processes, when all keys of their name have
    moved without the slot, then the waiter is notified. Later waiters are notified, too, and the
    waiter counts as alive for as long as before.
    """
    limiters = two_processes(name, cluster.user_url)
    await hand_over(limiters, rounds=2)
    holder = await soon(limiters[0].acquire())
    waiter = asyncio.create_task(enter(limiters[1]))
    await waiting(limiters[0], 1)
    await eventually(lambda: listening(cluster.master_of(key_of(name)), name))

    move = cluster.move(key_of(name)).open().carry()
    alive = moments(move.target, name)
    assert await soon(holder.arelease())
    permit = await soon(waiter)
    after = moments(move.target, name)
    assert all(after[session] >= moment for session, moment in alive.items())

    assert await permit.arelease()
    await hand_over(limiters)
    move.close()
    await hand_over(limiters)
    await at_rest(limiters[0])


@contextmanager
def keys_of(node: Node) -> Iterator[Redis]:
    """A client that may ask `node` once for a key of a slot on its way there."""
    with Redis(port=node.port, single_connection_client=True) as raw:
        raw.execute_command("ASKING")
        yield raw


def listening(node: Node, name: str) -> list[bytes]:
    """The sessions of `name` that have asked the server for notifications (reply_cache.lua)."""
    with keys_of(node) as raw:
        return [session for session, each in records(raw, key_of(name)).items() if each.is_notified]


def moments(node: Node, name: str) -> dict[bytes, float]:
    """The sessions of `name`, and until when each counts as alive (membership.lua)."""
    with keys_of(node) as raw:
        members = raw.zrange(f"{key_of(name)}:who", 0, -1, withscores=True)
    return {member: score for member, score in members if b":" not in member}


def channels(node: Node, name: str) -> list[str]:
    """The sharded channels of `name` that have subscribers on `node`."""
    return list(node.admin.pubsub_shardchannels(f"{key_of(name)}:*"))


async def test_only_names_with_waiters_are_subscribed(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9, F58: given two names of one node, when one has no waiter any more, then the process
    leaves its channel, and stays in the other one's.
    """
    monkeypatch.setattr(subscriber, "REPLY_TIMEOUT", MOMENT)
    node = cluster.masters()[0]
    left, kept = [
        Limiter(cluster.name_on(node, f"{name}-{its}"), Concurrency(1), store=cluster.user_url)
        for its in range(2)
    ]
    holders = [await limiter.acquire() for limiter in (left, kept)]
    waiters = [asyncio.create_task(enter(limiter)) for limiter in (left, kept)]
    for limiter in (left, kept):
        await eventually(lambda its=limiter.name: channels(node, its))

    assert await holders[0].arelease()
    assert await (await soon(waiters[0])).arelease()
    async with asyncio.timeout(long()):
        while channels(node, left.name):
            await kept.astatus()

    assert channels(node, kept.name)
    assert await holders[1].arelease()
    assert await (await soon(waiters[1])).arelease()


async def test_a_node_that_is_not_used_any_more_keeps_no_subscriber(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9, F58: given a name that had waiters, when its node gets no calls any more, then both
    connections to it are closed.
    """
    monkeypatch.setattr(transport_node, "REPLY_TIMEOUT", MOMENT)
    monkeypatch.setattr(transport_node, "IDLE", MOMENT)
    listening = listeners(cluster)
    limiters = two_processes(name, cluster.user_url)
    await hand_over(limiters, rounds=2)
    assert len(listening()) == len(limiters)

    await eventually(lambda: not listening())

    await hand_over(limiters, rounds=2)


@pytest.fixture
def without_sharded_channels(cluster: Cluster) -> Iterator[None]:
    """The user of docs/redis.md may not use them: as on Redis 6.2, which has none."""
    words = ["ssubscribe", "sunsubscribe", "spublish"]
    for node in cluster.nodes:
        node.admin.acl_setuser(USER, enabled=True, commands=[f"-{word}" for word in words])
    yield
    for node in cluster.nodes:
        node.admin.acl_setuser(USER, enabled=True, commands=[f"+{word}" for word in words])


@pytest.mark.usefixtures("without_sharded_channels")
async def test_without_sharded_channels_one_subscription_serves_all_nodes(
    name: str, cluster: Cluster
) -> None:
    """L2, S9, F40, F58: given names on all masters, when sharded channels cannot be used, then each
    process has one subscription, on any node. All names are handed over.
    """
    listening = listeners(cluster)
    names = [cluster.name_on(node, name) for node in cluster.masters()]
    processes = [two_processes(its, cluster.user_url) for its in names]

    for limiters in processes:
        await hand_over(limiters)

    assert len(listening()) == 2
