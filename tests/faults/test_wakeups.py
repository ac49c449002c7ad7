"""Notifications are hints: each waiter gets its turn though notifications and connections are lost,
and no other process is disturbed.

F26, F49, F51: notifications lost, connections killed, thousands of waiters.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.redis.session import polls
from headgate.stores.redis.transport import subscriber
from tests.faults.haste import PATIENCE
from tests.faults.proxy import Proxy
from tests.faults.scene import Room, commands_of, elsewhere, enter, eventually, visit, waiters_of
from tests.servers import Server, as_user
from tests.world import at_rest, long, session_of, soon, used, waiting

SILENT = 3600.0  # seconds between heartbeats: none within a test


@pytest.fixture
def user_without_channels(admin: Redis, name: str, redis_url: str) -> Iterator[str]:
    """The URL of a user as Redis 7 makes them: every command and key, and no channel."""
    admin.acl_setuser(
        name, enabled=True, passwords=["+canary"], categories=["+@all"], keys=["*"], reset=True
    )
    yield as_user(redis_url, name)
    admin.acl_deluser(name)


async def all_get_their_turn(limiters: list[Limiter], rounds: int) -> None:
    """Callers of all limiters, in turn, through a limit of one."""
    room = Room()

    async def caller(limiter: Limiter) -> None:
        async with limiter:
            with room:
                await asyncio.sleep(0)

    async with limiters[0]:
        callers = []
        for limiter in limiters * rounds:
            callers.append(asyncio.create_task(caller(limiter)))
            await waiting(limiters[0], len(callers))
    async with asyncio.timeout(long()):
        await asyncio.gather(*callers)

    assert (room.visits, room.most) == (len(callers), 1)
    for limiter in limiters:
        assert used(await at_rest(limiter)) == [0]


@pytest.mark.usefixtures("hurried")
async def test_waiters_get_their_turn_though_the_user_may_not_publish_or_subscribe(
    name: str, user_without_channels: str
) -> None:
    """L2, S1, S7, F49, review R7: PUBLISH and SUBSCRIBE are denied. All callers get their turn, and
    the counts are right.
    """
    limiters = [elsewhere(name, Concurrency(1), url=user_without_channels) for _ in range(3)]

    await all_get_their_turn(limiters, rounds=3)


@pytest.mark.usefixtures("hurried")
async def test_waiters_get_their_turn_though_all_notifications_are_lost(
    name: str, proxy: Proxy
) -> None:
    """L2, S1, F49: every notification gets lost on the way, and no process notices it."""
    proxy.notifications.alter = lambda piece: piece if b"subscribe" in piece else b""
    limiters = [elsewhere(name, Concurrency(1), url=proxy.url) for _ in range(3)]

    await all_get_their_turn(limiters, rounds=3)

    assert any(b"message" in piece for piece in proxy.notifications.seen)


@pytest.mark.proof
async def test_a_grant_with_a_lost_notification_is_found_before_its_lease_ends(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, F49: two callers of another process have had their turn, and the notification of the
    third grant is lost.

    A lease is shorter than a heartbeat, and the third caller still gets a permit that it holds.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    proxy.notifications.alter = lambda piece: piece if b"subscribe" in piece else b""
    short = Concurrency(1, lease=6.0)  # a stall takes less than the rest of the lease at the look
    here, there = elsewhere(name, short, url=proxy.url), elsewhere(name, short, url=redis_url)
    first = await there.acquire()
    second = asyncio.create_task(enter(there))
    await waiting(there, 1)
    last = asyncio.create_task(enter(here))
    await waiting(there, 2)
    await eventually(lambda: any(b"subscribe" in piece for piece in proxy.notifications.seen))
    await here.astatus()  # it is subscribed, and has looked since

    first.release()
    await (await soon(second)).arelease()
    permit = await soon(last)

    assert not permit.lost
    assert await permit.arelease()


async def test_a_denied_notification_does_not_change_the_counts(
    name: str, user_without_channels: str, redis_url: str
) -> None:
    """S7, F35, review R7: permits by weight are released one by one. The caller that waits for all
    of them gets them.
    """
    limits = Concurrency(2, unit="w"), Rate(100, per=1_000_000, unit="tokens")
    silent = elsewhere(name, *limits, url=user_without_channels)
    limiter = elsewhere(name, *limits, url=redis_url)
    first, second = [await silent.acquire(w=1, tokens=1) for _ in range(2)]
    waiter = asyncio.create_task(enter(limiter, w=2, tokens=1))
    await waiting(limiter, 1)

    await first.arelease()
    await second.arelease()
    assert used(await limiter.astatus()) == [2, 3]  # a call brings the notification, too

    assert await (await soon(waiter)).arelease()
    assert used(await silent.astatus()) == [0, 3]


async def test_a_waiter_sends_its_heartbeats_though_it_gets_notifications(
    name: str, redis_url: str
) -> None:
    """L3, S6: given a waiter whose session has been silent for two seconds, when another
    notification names it the head, then its next call comes no later.

    A notification does not count as a heartbeat, and the waiter would lose its place.
    """
    here, other = (
        Limiter(name, Concurrency(1), store=redis_url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    permit, caller = await enter(other), asyncio.create_task(enter(here))
    await waiting(other, 1)
    its = session_of(here)
    await eventually(lambda: its._timer is not None)

    last = its.machine.numbering.last_reply
    last.asked_at -= 2.0
    its.on_notification(f"{its.machine.numbering.session_id} {last.server_time} 2900000")

    assert its.machine.next_moment() - monotonic() <= polls.HEARTBEAT - 2.0
    await permit.arelease()
    await (await soon(caller)).arelease()


async def test_a_session_asks_for_notifications_that_it_missed_without_a_subscription(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F26: the subscription breaks, and no connection receives the grant. With the next
    subscription the waiter has it.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    await eventually(lambda: b"subscribe" in b"".join(proxy.notifications.seen))
    await limiter.astatus()  # it has looked, and there was no notification

    proxy.rest.hold()  # greetings, too: it cannot connect again yet
    next(connection for connection in proxy.connections if connection.listens).reset()
    await holder.arelease()
    proxy.rest.resume()

    assert await (await soon(waiter)).arelease()


@pytest.mark.proof
@pytest.mark.usefixtures("hurried")
async def test_a_process_replaces_a_subscription_that_a_network_has_forgotten(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """L2, F22: given a subscription that receives nothing any more and does not end, then the
    process makes another one for its waiter.
    """
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await eventually(lambda: b"subscribe" in b"".join(proxy.notifications.seen))
    broken = next(connection for connection in proxy.connections if connection.listens)

    proxy.notifications.hold()
    await eventually(lambda: any(connection.listens for connection in proxy.connections - {broken}))
    proxy.notifications.resume()
    holder.release()

    assert await (await soon(waiter)).arelease()


async def test_a_process_checks_its_subscription_when_the_connection_for_calls_is_lost(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F22: given a subscription that a network has forgotten, when the connection for calls is
    lost, then the process checks its subscription at once. It makes another one.
    """
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await eventually(lambda: b"subscribe" in b"".join(proxy.notifications.seen))
    broken = next(connection for connection in proxy.connections if connection.listens)
    calls = next(connection for connection in proxy.connections if connection.calls)

    proxy.notifications.hold()
    monkeypatch.setattr(subscriber, "REPLY_TIMEOUT", PATIENCE)
    calls.reset()
    await eventually(lambda: any(connection.listens for connection in proxy.connections - {broken}))
    proxy.notifications.resume()
    holder.release()

    assert await (await soon(waiter)).arelease()


async def test_two_hundred_callers_survive_the_killing_of_every_connection(
    name: str, own_server: Server, own_admin: Redis, hurried: None
) -> None:
    """S1, S7, L5, L6, F26: CLIENT KILL of everything, again and again: no caller hangs, none is one
    too many, and no permit is lost.
    """
    capacity = 5
    limiters = [elsewhere(name, Concurrency(capacity), url=own_server.url) for _ in range(4)]
    room, killed, peace = Room(), 0, asyncio.Event()

    async def caller(limiter: Limiter) -> None:
        while not peace.is_set():
            with contextlib.suppress(StoreError):
                async with limiter:
                    with room:
                        await asyncio.sleep(0.001)

    callers = [asyncio.create_task(caller(limiter)) for limiter in limiters for _ in range(50)]
    while killed < 40:
        killed += sum(
            own_admin.client_kill_filter(_type=kind, skipme=True) for kind in ("normal", "pubsub")
        )
        await asyncio.sleep(0.01)
    peace.set()
    async with asyncio.timeout(long()):
        await asyncio.gather(*callers)

    assert room.most <= capacity
    assert room.visits >= 40
    assert used(await at_rest(elsewhere(name, Concurrency(capacity), url=own_server.url))) == [0]


async def test_a_release_before_two_thousand_waiters_is_a_few_commands(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9, F51: the work of one release does not grow with the number of waiters, and wakes one of
    them. It needs no more connections either.
    """
    holding, here, there = [elsewhere(name, Concurrency(1), url=own_server.url) for _ in range(3)]
    holder = await holding.acquire()
    waiters = []
    for limiter in (here, there):
        waiters += [asyncio.create_task(enter(limiter)) for _ in range(1000)]
        await waiting(holding, len(waiters))
    await eventually(lambda: len(own_admin.client_list(_type="pubsub")) == 2)
    for limiter in (here, there):
        await limiter.astatus()
    assert len(own_admin.client_list()) <= 1 + 3 * 3  # the test's, and three for each of three

    own_admin.config_resetstat()
    await holder.arelease()
    first = await soon(waiters[0])
    commands = commands_of(own_admin)

    assert sum(task.done() for task in waiters) == 1
    calls = commands.pop("fcall")
    assert calls <= 3, commands
    assert sum(commands.values()) <= 20 * calls, commands
    assert commands["publish"] <= 2
    for task in waiters:
        task.cancel()
    await asyncio.wait(waiters)
    assert await first.arelease()
    await at_rest(holding)


async def test_a_storm_of_reconnections_is_one_connection_each(
    name: str, own_server: Server, own_admin: Redis, hurried: None
) -> None:
    """F51, L5: all connections are killed while a thousand callers wait. One or two connections for
    each process come back, and all callers get through.
    """
    limiters = [elsewhere(name, Concurrency(50), url=own_server.url) for _ in range(2)]
    holders = [await limiters[0].acquire() for _ in range(50)]
    visits = [asyncio.create_task(visit(limiter)) for limiter in limiters for _ in range(500)]
    await waiting(limiters[0], len(visits))
    await eventually(lambda: len(own_admin.client_list(_type="pubsub")) == 2)
    before = own_admin.info("stats")["total_connections_received"]

    for kind in ("normal", "pubsub"):
        own_admin.client_kill_filter(_type=kind, skipme=True)
    for holder in holders:
        holder.release()
    async with asyncio.timeout(long()):
        results = await asyncio.gather(*visits, return_exceptions=True)

    assert {type(result) for result in results} <= {type(None), StoreError}
    assert own_admin.info("stats")["total_connections_received"] - before <= 3 * len(limiters)
    await at_rest(limiters[0])


async def test_a_hundred_threads_that_wait_share_three_connections(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9, F27: threads do not bring connections with them, and each gets its turn."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    room = Room()

    def thread() -> None:
        with limiter, room:
            pass

    with limiter:  # by the portal, so that later callers are known to the server
        pass
    holder = await asyncio.to_thread(limiter.acquire_sync)
    async with asyncio.TaskGroup() as group:
        for _ in range(30):
            group.create_task(asyncio.to_thread(thread))
        await eventually(lambda: waiters_of(own_admin, name) >= 5)
        assert len(own_admin.client_list()) <= 1 + 3
        holder.release()

    assert (room.visits, room.most) == (30, 1)
    assert waiters_of(own_admin, name) == 0
