"""A cluster whose slots move and whose masters die: no error, no permit too many, none lost, and
the order is kept (F40).

While a slot moves, both sides refuse a script of several keys unless all its keys are on one. So
callers wait, and the tests stay in the middle of a move for a moment only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hiredis import HiredisError

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.redis.fast_path import FastPath
from headgate.stores.redis.session import polls
from headgate.stores.redis.transport import availability, backoff, topology
from headgate.stores.redis.transport import node as transport_node
from headgate.stores.redis.transport.endpoint import Endpoint
from tests.clusters import Cluster, Move, Node
from tests.faults.scene import Breaths, Puppet, Room, commands_of, enter, eventually
from tests.machine import scaled_now
from tests.servers import connections_of
from tests.world import at_rest, long, session_of, soon, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
SILENT = 3600.0  # seconds between heartbeats: none within a test
PROMOTION = 10.0  # seconds until a replica is a master: about three
BOUND = 5.0  # seconds from then until all callers go on
MOMENT = 0.15  # seconds for which a test stays in the middle of a move: several attempts
TOKENS = Rate(1000, per=AGES, unit="tokens")

Puppets = Callable[..., Puppet]


def apart(url: str, number: int) -> str:
    """The same place for a limiter as of another process."""
    return f"{url}?socket_connect_timeout={5 + number}"


def key_of(name: str) -> str:
    return f"headgate:{{{name}}}"


async def refused(move: Move) -> None:
    """Go on when one of the two sides refuses calls, or sends them to the other."""
    await eventually(lambda: any(errors_of(node) for node in (move.source, move.target)))


def errors_of(node: Node) -> int:
    """How often a node has refused a call for now or redirected it, since `config_resetstat`."""
    stats: dict[str, Any] = node.admin.info("errorstats")
    return sum(
        stats.get(f"errorstat_{word}", {}).get("count", 0) for word in ("TRYAGAIN", "ASK", "MOVED")
    )


# Everywhere ---------------------------------------------------------------------------------------


async def test_limiters_are_spread_over_all_masters(name: str, cluster: Cluster) -> None:
    """S1, S6, S9: given names on each master, when all are used at once, then each is used there,
    and no states are mixed up.
    """
    names = {
        node: [cluster.name_on(node, f"{name}-{number}") for number in range(3)]
        for node in cluster.masters()
    }
    limiters = {
        its: Limiter(its, Concurrency(2), TOKENS, store=cluster.user_url)
        for each in names.values()
        for its in each
    }
    rooms = {its: Room() for its in limiters}

    async def visit(its: str) -> None:
        async with limiters[its].acquire(tokens=1):
            with rooms[its]:
                await asyncio.sleep(0)

    async with asyncio.timeout(long()):
        await asyncio.gather(*(visit(its) for its in limiters for _ in range(10)))

    assert {room.most for room in rooms.values()} == {2}
    for node, its in names.items():
        assert all(node.admin.exists(key_of(each)) for each in its)
    for limiter in limiters.values():
        assert used(await at_rest(limiter)) == [0, 10]


async def test_a_thread_makes_one_call_for_a_new_name_on_any_master(
    name: str, cluster: Cluster
) -> None:
    """S1: given a thread with a connection to each master, when it uses a new name on each, then
    the master of the name is asked, once.
    """

    def on(node: Node, its: str) -> Limiter:
        return Limiter(cluster.name_on(node, its), TOKENS, store=cluster.user_url)

    for node in cluster.masters():
        for _ in range(2):  # by the portal, then directly
            await asyncio.to_thread(on(node, name).acquire_sync, tokens=1)
    for node in cluster.masters():
        await on(node, name).aflush()
        node.admin.config_resetstat()
        new = on(node, f"{name}-new")

        permit = await soon(asyncio.to_thread(new.acquire_sync, tokens=1))

        assert isinstance(permit.home, FastPath)
        assert commands_of(node.admin)["fcall"] == 1
        assert used(await new.astatus()) == [1]


def listeners(cluster: Cluster) -> Callable[[], list[Node]]:
    """The nodes with subscribers that were not there when this was called: clients of other tests
    may live on.
    """
    before = Counter(cluster.listened_to())
    return lambda: list((Counter(cluster.listened_to()) - before).elements())


# A slot that moves --------------------------------------------------------------------------------


@pytest.mark.parametrize("carried", ["nothing", "one key", "all keys"])
async def test_callers_wait_while_a_slot_moves_and_see_no_error(
    name: str, cluster: Cluster, carried: str
) -> None:
    """S1, S6, S7, S4: given a holder, a queue and newcomers, when the slot moves meanwhile, then no
    caller notices it.
    """
    limiters = [
        Limiter(name, Concurrency(2), TOKENS, store=apart(cluster.user_url, number))
        for number in range(2)
    ]
    holders = [await limiter.acquire(tokens=1) for limiter in limiters]
    order: dict[int, int] = {}  # by fence
    room = Room()

    async def visit(number: int) -> None:
        async with limiters[number % 2].acquire(tokens=1) as permit:
            with room:
                order[permit.fence] = number
                await asyncio.sleep(0)

    visits = []
    for number in range(6):
        visits.append(asyncio.create_task(visit(number)))
        await waiting(limiters[0], number + 1)
    move = moving(cluster, name)
    if carried != "nothing":
        move.carry(*([key_of(name)] if carried == "one key" else []))

    released = [asyncio.create_task(holder.arelease()) for holder in holders]
    newcomers = [asyncio.create_task(visit(number)) for number in range(6, 12)]
    if carried != "nothing":
        await refused(move)
        await asyncio.sleep(MOMENT)
    move.close()
    async with asyncio.timeout(long()):
        assert await asyncio.gather(*released) == [True, True]
        await asyncio.gather(*visits, *newcomers)

    assert [number for _, number in sorted(order.items())][:6] == list(range(6))
    assert room.most <= 2
    for limiter in limiters:
        assert used(await at_rest(limiter)) == [0, 14]
    assert cluster.master_of(key_of(name)) is move.target


def moving(cluster: Cluster, name: str) -> Move:
    """The slot of `name`, while it moves; no process has noticed yet."""
    move = cluster.move(key_of(name))
    for node in (move.source, move.target):
        node.admin.config_resetstat()
    return move.open()


async def test_a_permit_is_handed_over_in_full_or_not_at_all_while_its_slot_moves(
    name: str, cluster: Cluster
) -> None:
    """S7, fact 10: given the last holder and waiter of a name, when the permit is handed over
    during a move, then only the waiter has it. Their keys end with them, and no script stops at a
    key that has just gone. F40.
    """
    limiter, other = [
        Limiter(name, Concurrency(1), store=apart(cluster.user_url, number)) for number in range(2)
    ]
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(other))
    await waiting(limiter, 1)

    move = moving(cluster, name)
    released = asyncio.create_task(holder.arelease())
    await asyncio.sleep(MOMENT)
    move.close()

    assert await soon(released)
    permit = await soon(waiter)
    assert used(await limiter.astatus()) == [1]
    assert await permit.arelease()
    assert used(await at_rest(limiter)) == [0]


async def test_a_slot_moves_round_under_load(name: str, cluster: Cluster) -> None:
    """S1, S3, S7: given forty tasks at work in two processes, when the slot goes round all masters,
    then no task is one too many. F40.
    """
    limiters = [
        Limiter(name, Concurrency(3), TOKENS, store=apart(cluster.user_url, number))
        for number in range(2)
    ]
    room, moved, charged = Room(), False, 0

    async def work(limiter: Limiter) -> None:
        nonlocal charged
        while not moved:
            async with limiter.acquire(tokens=1):
                charged += 1
                with room:
                    await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(work(limiter)) for limiter in limiters for _ in range(20)]
    await eventually(lambda: room.visits > 20)
    for target in cluster.masters():
        if cluster.master_of(key_of(name)) is target:
            continue
        visits, move = room.visits, cluster.move(key_of(name), target).open()
        await asyncio.sleep(0.01)
        move.carry(key_of(name))
        await asyncio.sleep(0.01)
        move.carry()
        await asyncio.sleep(0.01)
        move.close()
        await eventually(partial(busier, room, visits + 20))
    moved = True
    async with asyncio.timeout(long()):
        await asyncio.gather(*tasks)

    assert room.most <= 3
    for limiter in limiters:
        assert used(await at_rest(limiter)) == [0, charged]


def busier(room: Room, visits: int) -> bool:
    return room.visits > visits


async def test_a_thread_follows_a_slot_that_moves(name: str, cluster: Cluster) -> None:
    """S1, S7: given a thread with a connection of its own, when the slot has moved, or is moving,
    then the thread still enters.
    """
    limiter = Limiter(name, Concurrency(1), store=cluster.user_url)
    room = Room()

    def visit() -> None:
        with limiter, room:
            pass

    await asyncio.to_thread(visit)
    await asyncio.to_thread(visit)
    move = moving(cluster, name).carry()
    visiting = asyncio.create_task(asyncio.to_thread(visit))
    await refused(move)
    move.close()
    await soon(visiting)
    await soon(asyncio.to_thread(visit))

    assert (room.visits, room.most) == (4, 1)
    await at_rest(limiter)


# Nodes that are gone ------------------------------------------------------------------------------


async def test_holders_and_waiters_survive_the_death_of_a_master(
    name: str, cluster: Cluster
) -> None:
    """S1, S6, S7, L5, F40: given names on all masters, when one is killed, then its replica goes on
    where it was, and so do all callers.
    """
    dying = cluster.masters()[0]
    mine, alive = cluster.name_on(dying, name), cluster.name_on(cluster.masters()[1], name)
    limiters = [
        Limiter(mine, Concurrency(1), TOKENS, store=apart(cluster.user_url, number))
        for number in range(2)
    ]
    beside = Limiter(alive, Concurrency(1), TOKENS, store=cluster.user_url)
    holder = await limiters[0].acquire(tokens=1)
    order: dict[int, int] = {}

    async def visit(number: int) -> None:
        async with limiters[number % 2].acquire(tokens=1) as permit:
            order[permit.fence] = number

    visits = []
    for number in range(6):
        visits.append(asyncio.create_task(visit(number)))
        await waiting(limiters[0], number + 1)
    cluster.copy(dying)

    dying.kill()
    others = asyncio.create_task(
        enter(beside, tokens=1)
    )  # a cluster that lacks slots serves no caller
    await eventually(lambda: cluster.serves(key_of(mine), without=dying), PROMOTION)
    assert not order
    assert await soon(holder.arelease())
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*visits)

    assert [number for _, number in sorted(order.items())] == list(range(6))
    assert used(await at_rest(limiters[0])) == [0, 7]
    assert await (await soon(others)).arelease()
    await at_rest(beside)


@pytest.mark.parametrize("moment", [0.0, 0.01], ids=["together", "later"])
async def test_a_silent_node_delays_no_name_of_another(
    name: str, cluster: Cluster, moment: float
) -> None:
    """L5, F36: given two nodes that the process has not reached yet, when one stands still, then
    the other node grants its names at once. The first one grants as soon as it goes on.
    """
    known, silent, healthy = cluster.masters()
    url = f"{cluster.user_url}?socket_connect_timeout=60"  # longer than anything here
    limiters = {
        node: Limiter(cluster.name_on(node, name), Concurrency(1), store=url)
        for node in (known, silent, healthy)
    }
    holders = [await limiters[known].acquire()]

    silent.pause()
    asking = asyncio.create_task(enter(limiters[silent]))
    await asyncio.sleep(moment)
    holders.append(await soon(limiters[healthy].acquire()))
    assert not asking.done()
    silent.resume()

    holders.append(await soon(asking))
    for holder in holders:
        assert await holder.arelease()


async def test_a_dead_master_is_asked_less_and_less_often_though_another_one_answers(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F28, F40: given a master that is gone and another one that answers, then the pauses before
    calls to the former double, up to the longest.
    """
    breaths = Breaths()
    for module, word, value in (
        (backoff, "JITTER", breaths),
        (backoff, "BACKOFF", 0.001),
        (availability, "LONGEST", 0.02),
    ):
        monkeypatch.setattr(module, word, value)
    gone, there = cluster.masters()[:2]
    url = apart(cluster.user_url, 3)
    lost, served = [
        Limiter(cluster.name_on(node, name), Concurrency(1), store=url) for node in (gone, there)
    ]
    for limiter in (lost, served):
        await (await limiter.acquire()).arelease()

    gone.kill()
    asking = asyncio.create_task(enter(lost))
    async with asyncio.timeout(long()):
        while len(breaths.taken) < 7:
            await (await served.acquire()).arelease()
    assert breaths.taken[:7] == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02]

    asking.cancel()
    await asyncio.wait([asking])


class Chance:
    """In place of chance: the server at `port` comes first."""

    def __init__(self, port: int) -> None:
        self._port = port

    def choice(self, servers: Sequence[Endpoint]) -> Endpoint:
        return self.sample(servers, len(servers))[0]

    def sample(self, servers: Sequence[Endpoint], count: int) -> list[Endpoint]:
        return sorted(servers, key=lambda server: f":{self._port}/" not in str(server))


async def test_a_silent_master_is_not_asked_for_its_successor(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, S7, F36: given a silent master and a promoted replica, when a call is lost at the master,
    then the process asks other nodes for the name. It does not first ask the one that has just
    failed.
    """
    silent = cluster.masters()[0]
    monkeypatch.setattr(topology, "CHANCE", Chance(silent.port))
    # The promoted replica loads the library within this time, also on a busy machine.
    monkeypatch.setattr(transport_node, "REPLY_TIMEOUT", scaled_now(1.0))
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    limiter = Limiter(
        cluster.name_on(silent, name),
        Concurrency(1),
        store=f"{cluster.user_url}?socket_connect_timeout=60",
    )
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    cluster.copy(silent)

    silent.pause()
    await eventually(lambda: cluster.serves(key_of(limiter.name), without=silent), PROMOTION)

    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()


async def test_two_processes_share_a_limiter_while_its_slot_moves(
    name: str, cluster: Cluster, puppet: Puppets
) -> None:
    """S1, S6, S7: given one process that holds and another that waits, when the slot moves, then
    the permit is handed over.
    """
    limit = Concurrency(1)
    one, two = [puppet(cluster.user_url, limit) for _ in range(2)]
    await one.hears("acquire a", until="a asks")
    await one.says("a inside")
    await two.hears("acquire b", until="b asks")

    move = moving(cluster, name).carry(key_of(name))
    one.process.tell("release a")
    await refused(move)
    move.close()
    await one.says("a left True")
    await two.says("b inside")
    await two.hears("release b", until="b left True")

    await at_rest(Limiter(name, limit, store=cluster.user_url))


async def test_a_process_asks_the_next_node_when_the_first_is_gone(
    name: str, cluster: Cluster
) -> None:
    """Given a URL whose first node is gone, then the process asks the second one for the
    topology.
    """
    url = cluster.url_at("127.0.0.1:1", f"127.0.0.1:{cluster.nodes[0].port}")
    for node in cluster.masters():
        limiter = Limiter(cluster.name_on(node, name), Concurrency(1), store=url)
        assert await (await soon(limiter.acquire())).arelease()


async def test_a_process_asks_the_next_node_when_the_first_is_silent(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F22: given a URL whose first node stands still, then the process asks the second one,
    however long a connection may take.
    """
    silent, healthy = cluster.masters()[:2]
    monkeypatch.setattr(topology, "CHANCE", Chance(silent.port))
    url = f"{cluster.url_by(silent, healthy)}?socket_connect_timeout=60"

    silent.pause()

    assert await (
        await soon(Limiter(cluster.name_on(healthy, name), Concurrency(1), store=url).acquire())
    ).arelease()


async def test_a_url_of_a_replica_leads_to_the_masters(name: str, cluster: Cluster) -> None:
    """Given a URL that names a replica only, then the process finds the masters of the names."""
    limiter = Limiter(
        name, Concurrency(1), store=cluster.url_by(cluster.replica_of(cluster.masters()[0]))
    )

    assert await (await soon(limiter.acquire())).arelease()
    await at_rest(limiter)


async def test_the_error_without_any_node_names_all_nodes_of_the_url(
    name: str, cluster: Cluster
) -> None:
    limiter = Limiter(name, Concurrency(1), store=cluster.url_at("127.0.0.1:1", "127.0.0.1:2"))

    with pytest.raises(StoreError, match=r"Cluster at 127\.0\.0\.1:1, 127\.0\.0\.1:2") as caught:
        await soon(limiter.acquire())

    assert str(caught.value).endswith("accepts the login.")


async def test_the_error_for_a_node_of_a_cluster_names_the_url_of_clusters(
    name: str, cluster: Cluster
) -> None:
    """Given a redis:// URL of a node, when a name is another node's, then the StoreError says how
    the URL begins.
    """
    node, other = cluster.masters()[:2]
    limiter = Limiter(cluster.name_on(other, name), Concurrency(1), store=node.user_url)

    with pytest.raises(StoreError, match=r"redis\+cluster://"):
        await soon(limiter.acquire())


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("heals", [True, False])
async def test_calls_wait_for_a_slot_without_a_node_and_not_for_ever(
    name: str, cluster: Cluster, heals: bool
) -> None:
    """F35, L5, S7: given a slot that was taken from its node, then calls wait for it, and raise if
    it does not come back.
    """
    limiter = Limiter(name, Concurrency(1), TOKENS, store=cluster.user_url)
    holder = await limiter.acquire(tokens=1)

    with cluster.nobody_has(key_of(name)):
        waiter = asyncio.create_task(enter(limiter, tokens=1))
        if heals:
            await asyncio.sleep(MOMENT)
            assert not waiter.done()
        else:
            with pytest.raises(StoreError, match=f"{name}.*CLUSTERDOWN"):
                await soon(waiter)
            waiter = None

    waiter = waiter or asyncio.create_task(enter(limiter, tokens=1))
    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()
    assert used(await at_rest(limiter)) == [0, 2]


async def test_a_process_has_two_connections_to_a_master_at_most(
    name: str, cluster: Cluster
) -> None:
    """S9: given waiters on all masters, and slots that moved since, then each master has one
    connection for calls and one for notifications.
    """
    before, listening = (
        {node: connections_of(node.admin, "normal") for node in cluster.nodes},
        listeners(cluster),
    )
    url = apart(cluster.user_url, 7)
    names = [
        cluster.name_on(node, f"{name}-{number}")
        for node in cluster.masters()
        for number in range(5)
    ]
    limiters = [Limiter(its, Concurrency(1), store=url) for its in names]
    holders = [await limiter.acquire() for limiter in limiters]
    waiters = [asyncio.create_task(enter(limiter)) for limiter in limiters for _ in range(5)]
    for limiter in limiters:
        await waiting(limiter, 5)
    move = cluster.move(key_of(limiters[0].name))
    move.open().carry()
    move.close()
    for limiter in limiters:
        await soon(limiter.astatus())

    await eventually(lambda: set(listening()) == set(cluster.masters()))
    assert all(listening().count(node) <= 1 for node in cluster.nodes)
    made = {node: connections_of(node.admin, "normal") - before[node] for node in cluster.nodes}
    assert all(made[node] == (node in cluster.masters()) for node in cluster.nodes), made
    for task in waiters:
        task.cancel()
    await asyncio.wait(waiters)
    for holder in holders:
        assert await holder.arelease()


async def test_the_connection_to_an_unused_master_is_closed(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: given names on two masters, when one of them is used no more, then the connection there
    is closed, and the other is not. It is made again for the next caller.
    """
    # Longer than the process may stand still. Otherwise the other connection would count as unused,
    # too.
    for time_limit in ("REPLY_TIMEOUT", "IDLE"):
        monkeypatch.setattr(transport_node, time_limit, scaled_now(2.0))
    quiet, lively = cluster.masters()[:2]
    before = {node: connections_of(node.admin, "normal") for node in (quiet, lively)}
    url = apart(cluster.user_url, 9)
    limiters = {
        node: Limiter(cluster.name_on(node, name), Concurrency(1), store=url)
        for node in (quiet, lively)
    }
    for limiter in limiters.values():
        await (await limiter.acquire()).arelease()
    assert all(connections_of(node.admin, "normal") == before[node] + 1 for node in (quiet, lively))
    kept = session_of(limiters[lively]).node

    async with asyncio.timeout(long()):
        while connections_of(quiet.admin, "normal") > before[quiet]:
            await (await limiters[lively].acquire()).arelease()

    assert session_of(limiters[lively]).node is kept
    assert await (await soon(limiters[quiet].acquire())).arelease()


async def test_a_release_while_the_topology_is_looked_for_arrives_though_the_loop_ends(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, L4: given a lost connection and a node that does not answer with the topology, when the
    loop ends just then, then the release arrives.
    """
    silent, kept = cluster.masters()[:2]
    its = cluster.name_on(kept, name)
    monkeypatch.setattr(topology, "CHANCE", Chance(silent.port))

    async def leave() -> None:
        limiter = Limiter(its, Concurrency(1), store=apart(cluster.user_url, 11))
        holder = await limiter.acquire()
        silent.pause()
        loop_session = session_of(limiter)
        loop_session.node.connection.cut(ConnectionError("cut off"))
        holder.release()
        await eventually(
            lambda: any(task.get_name() == "headgate-ask" for task in asyncio.all_tasks())
        )

    await soon(asyncio.to_thread(asyncio.run, leave()))

    assert used(
        await soon(Limiter(its, Concurrency(1), store=apart(cluster.user_url, 12)).astatus())
    ) == [0]


class Minority:
    """A node that answers CLUSTERDOWN to every call, as one without a majority does, from when it
    is cut off.
    """

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cut_off = False
        replied = transport_node.Node._replied

        def refuses(its: transport_node.Node, reply: Any) -> None:
            call = its.calls[0]
            is_call = isinstance(call, transport_node.Call) and f":{node.port}/" in str(
                its.endpoint
            )
            replied(
                its,
                HiredisError("CLUSTERDOWN The cluster is down")
                if is_call and self.cut_off
                else reply,
            )

        monkeypatch.setattr(transport_node.Node, "_replied", refuses)


async def test_callers_leave_a_master_without_a_majority_when_another_one_has_its_names(
    name: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F40, S7: given a master that answers only CLUSTERDOWN, when other nodes have given its
    names to its replica, then all callers are served there without error. Holders keep their
    permits.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    lonely = cluster.masters()[0]
    minority = Minority(lonely, monkeypatch)
    url = apart(cluster.user_url, 13)
    limiters = [
        Limiter(cluster.name_on(lonely, f"{name}-{number}"), Concurrency(1), TOKENS, store=url)
        for number in range(3)
    ]
    holders = [await limiter.acquire(tokens=1) for limiter in limiters]
    cluster.copy(lonely)

    minority.cut_off = True
    released = [asyncio.create_task(holder.arelease()) for holder in holders]
    cluster.replica_of(lonely).ask("FAILOVER", "TAKEOVER")
    async with asyncio.timeout(long()):
        assert await asyncio.gather(*released) == [True] * 3
    for limiter in limiters:
        assert await (await soon(limiter.acquire(tokens=1))).arelease()
        assert used(await at_rest(limiter)) == [0, 2]
