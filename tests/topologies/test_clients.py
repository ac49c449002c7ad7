"""Each way to name the store, for each topology: the same limiter, and few connections."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate
from tests.clusters import MASTERS, Cluster
from tests.faults.scene import Room, enter, eventually
from tests.portals import end_portal
from tests.rights import USER
from tests.sentinels import GUEST, Sentinels
from tests.servers import Server, connections_of
from tests.topologies.clients import LIBRARIES, client_of, closed
from tests.world import at_rest, long, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
SECURE = pytest.param("secure_server", marks=pytest.mark.proof)
PLACES = ["redis_server", SECURE, "sentinels", "secure_sentinels", "cluster", "secure_cluster"]

Place = Server | Sentinels | Cluster


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["URL", *LIBRARIES])
async def store(request: pytest.FixtureRequest, place: Place) -> AsyncIterator[Any]:
    """The store of the limiter: a URL, or a client that the user has anyway."""
    await asyncio.to_thread(
        end_portal
    )  # the connections of earlier tests must not end in the middle of this one
    gc.collect()
    await eventually(lambda: connections(place, "pubsub") == 0)
    if request.param == "URL":
        yield place.user_url
    else:
        client = client_of(place, request.param)
        yield client
        await closed(client)
    if any(
        task.get_name() == "headgate-subscriber" for task in asyncio.all_tasks()
    ):  # TLS that is cut off in its greeting logs it
        await eventually(lambda: connections(place, "pubsub") > 0)


def servers_of(place: Place) -> list[Server]:
    """The servers that keep the state of limiters."""
    return (
        [place]
        if isinstance(place, Server)
        else [*(place.copies if isinstance(place, Sentinels) else place.nodes)]
    )


def connections(place: Place, kind: str = "normal") -> int:
    return sum(connections_of(server.admin, kind) for server in servers_of(place))


async def test_all_tasks_enter_in_order_and_never_exceed_the_capacity(
    name: str, store: Any
) -> None:
    """S1, S6, T1, L6: given two permits and twenty tasks, when each enters once, then all do, in
    order, and all calls were counted.
    """
    limiter = Limiter(name, Concurrency(2), Rate(100, per=AGES, unit="tokens"), store=store)
    room, order = Room(), []

    async def visit(number: int) -> None:
        async with limiter.acquire(tokens=1):
            with room:
                order.append(number)
                await asyncio.sleep(0)

    async with asyncio.timeout(long()):
        await asyncio.gather(*map(visit, range(20)))

    assert room.most == 2
    assert order == list(range(20))
    assert used(await at_rest(limiter)) == [0, 20]


async def test_threads_and_a_task_share_one_permit(name: str, store: Any) -> None:
    """S1, S9: given one permit, when five threads and a task acquire again and again, then one has
    it at a time.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    room = Room()

    def thread() -> None:
        for _ in range(3):
            with limiter, room:
                pass

    async def task() -> None:
        for _ in range(3):
            async with limiter:
                with room:
                    await asyncio.sleep(0)

    async with asyncio.timeout(long()):
        await asyncio.gather(task(), *(asyncio.to_thread(thread) for _ in range(5)))

    assert (room.most, room.visits) == (1, 18)
    await at_rest(limiter)


def clients(place: Place, *kinds: str) -> set[tuple[int, str]]:
    """The connections of the user of docs/redis.md, by the port of the server and the server's
    number of each.
    """
    return {
        (server.port, client["id"])
        for server in servers_of(place)
        for kind in kinds or ("normal", "pubsub")
        for client in server.admin.client_list(_type=kind)
        if client["user"] == USER
    }


async def test_three_hundred_waiters_for_fifty_limiters_share_a_few_connections(
    name: str, store: Any, place: Place
) -> None:
    """S9, F27: to each server that keeps names there is one connection for calls and one for
    notifications. All waiters get their turn.
    """
    servers = MASTERS if isinstance(place, Cluster) else 1
    before = clients(place)
    asked = sum(
        connections_of(watcher.admin, "pubsub", GUEST) for watcher in getattr(place, "watchers", [])
    )
    limiters = [Limiter(f"{name}-{number}", Concurrency(1), store=store) for number in range(50)]
    holders = await asyncio.gather(*(limiter.acquire() for limiter in limiters))
    waiters = [asyncio.create_task(visit(limiter)) for limiter in limiters for _ in range(6)]
    for limiter in limiters:
        await waiting(limiter, 6)
    await eventually(lambda: len(clients(place, "pubsub") - before) == servers)

    if isinstance(place, Sentinels):
        assert (
            sum(connections_of(watcher.admin, "pubsub", GUEST) for watcher in place.watchers)
            - asked
            <= 1
        )
    assert len(clients(place) - clients(place, "pubsub") - before) <= servers

    for holder in holders:
        holder.release()
    await gathered(waiters)
    await asyncio.gather(*map(at_rest, limiters))


async def visit(limiter: Limiter) -> None:
    (await enter(limiter)).release()


async def gathered(tasks: Iterable[asyncio.Task[None]]) -> None:
    async with asyncio.timeout(long()):
        await asyncio.gather(*tasks)
