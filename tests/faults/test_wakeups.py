"""Wake-ups are hints: whoever's turn it is gets it, whatever becomes of announcements and
connections; nobody else is disturbed.

F26, F49, F51: announcements lost, connections killed, thousands who wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from headgate.stores.redis.session import session
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
    """Callers from everywhere, in turn, through a gate for one."""
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
async def test_announcements_that_nobody_may_send_or_hear_are_not_missed(
    name: str, user_without_channels: str
) -> None:
    """L2, S1, S7, F49, review R7: PUBLISH and SUBSCRIBE are denied; all get their turn, and what
    was counted is right.
    """
    limiters = [elsewhere(name, Concurrency(1), url=user_without_channels) for _ in range(3)]

    await all_get_their_turn(limiters, rounds=3)


@pytest.mark.usefixtures("hurried")
async def test_announcements_that_are_lost_are_not_missed(name: str, proxy: Proxy) -> None:
    """L2, S1, F49: every announcement gets lost on the way, and nobody notices that it is lost."""
    proxy.announcements.alter = lambda piece: piece if b"subscribe" in piece else b""
    limiters = [elsewhere(name, Concurrency(1), url=proxy.url) for _ in range(3)]

    await all_get_their_turn(limiters, rounds=3)

    assert any(b"message" in piece for piece in proxy.announcements.seen)


@pytest.mark.proof
async def test_a_grant_that_was_not_announced_is_found_before_its_lease_ends(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, F49: two callers of another process are through, and the announcement of the third grant
    is lost.

    A lease is shorter than a heartbeat, and the third caller still gets a permit that it holds.
    """
    monkeypatch.setattr(session, "HEARTBEAT", SILENT)
    proxy.announcements.alter = lambda piece: piece if b"subscribe" in piece else b""
    short = Concurrency(1, lease=6.0)  # a stall takes less than what is left at the look
    here, there = elsewhere(name, short, url=proxy.url), elsewhere(name, short, url=redis_url)
    first = await there.acquire()
    second = asyncio.create_task(enter(there))
    await waiting(there, 1)
    last = asyncio.create_task(enter(here))
    await waiting(there, 2)
    await eventually(lambda: any(b"subscribe" in piece for piece in proxy.announcements.seen))
    await here.astatus()  # it listens, and has looked since

    first.release()
    await (await soon(second)).arelease()
    permit = await soon(last)

    assert not permit.lost
    assert await permit.arelease()


async def test_a_denied_announcement_changes_nothing_that_is_counted(
    name: str, user_without_channels: str, redis_url: str
) -> None:
    """S7, F35, review R7: permits by weight, released one by one; the one who waits for all of them
    gets them.
    """
    limits = Concurrency(2, unit="w"), Rate(100, per=1_000_000, unit="tokens")
    silent = elsewhere(name, *limits, url=user_without_channels)
    limiter = elsewhere(name, *limits, url=redis_url)
    first, second = [await silent.acquire(w=1, tokens=1) for _ in range(2)]
    waiter = asyncio.create_task(enter(limiter, w=2, tokens=1))
    await waiting(limiter, 1)

    await first.arelease()
    await second.arelease()
    assert used(await limiter.astatus()) == [2, 3]  # asking brings the news, too

    assert await (await soon(waiter)).arelease()
    assert used(await silent.astatus()) == [0, 3]


async def test_who_hears_of_others_again_and_again_still_shows_that_it_lives(
    name: str, redis_url: str
) -> None:
    """L3, S6: given one who waits and has asked nothing for two seconds, when the head is announced
    to it once more, then it asks when it would have asked: what it hears shows nobody that it
    lives, and its place would be lost.
    """
    here, other = (
        Limiter(name, Concurrency(1), store=redis_url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    permit, caller = await enter(other), asyncio.create_task(enter(here))
    await waiting(other, 1)
    its = session_of(here)
    await eventually(lambda: its._timer is not None)

    last = its.machine.last_reply
    last.asked_at -= 2.0
    its.on_notification(f"{its.machine.numbering.session_id} {last.server} 2900000")

    assert its.machine.next_moment() - monotonic() <= session.HEARTBEAT - 2.0
    await permit.arelease()
    await (await soon(caller)).arelease()


async def test_what_was_announced_while_nobody_listened_is_asked_for(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F26: the subscription breaks, the grant is announced to nobody; with the next
    subscription the waiter has it.
    """
    monkeypatch.setattr(session, "HEARTBEAT", SILENT)
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    await eventually(lambda: b"subscribe" in b"".join(proxy.announcements.seen))
    await limiter.astatus()  # it has looked, and heard that there is nothing

    proxy.rest.hold()  # greetings, too: it cannot connect again yet
    next(connection for connection in proxy.connections if connection.listens).reset()
    await holder.arelease()
    proxy.rest.resume()

    assert await (await soon(waiter)).arelease()


@pytest.mark.proof
@pytest.mark.usefixtures("hurried")
async def test_a_subscription_that_a_network_has_forgotten_is_made_anew(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """L2, F22: given a subscription on which nothing comes any more and which does not end, then
    another is made for who waits.
    """
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await eventually(lambda: b"subscribe" in b"".join(proxy.announcements.seen))
    deaf = next(connection for connection in proxy.connections if connection.listens)

    proxy.announcements.hold()
    await eventually(lambda: any(connection.listens for connection in proxy.connections - {deaf}))
    proxy.announcements.resume()
    holder.release()

    assert await (await soon(waiter)).arelease()


async def test_a_subscription_is_asked_whether_it_stands_when_the_connection_for_calls_is_lost(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F22: given a subscription that a network has forgotten, when the connection for calls is
    lost, then the process asks at once whether its subscription stands, and makes another."""
    limiter, other = (
        Limiter(name, Concurrency(1), store=proxy.url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    holder = await other.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await eventually(lambda: b"subscribe" in b"".join(proxy.announcements.seen))
    deaf = next(connection for connection in proxy.connections if connection.listens)
    calls = next(connection for connection in proxy.connections if connection.calls)

    proxy.announcements.hold()
    monkeypatch.setattr(subscriber, "REPLY_TIMEOUT", PATIENCE)
    calls.reset()
    await eventually(lambda: any(connection.listens for connection in proxy.connections - {deaf}))
    proxy.announcements.resume()
    holder.release()

    assert await (await soon(waiter)).arelease()


async def test_two_hundred_callers_survive_the_killing_of_every_connection(
    name: str, own_server: Server, own_admin: Redis, hurried: None
) -> None:
    """S1, S7, L5, L6, F26: CLIENT KILL of everything, again and again: nobody hangs, nobody is one
    too many, nothing is lost.
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
    """S9, F51: the work of one release does not grow with those who wait, and one of them is woken;
    no more connections either.
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
    assert len(own_admin.client_list()) <= 1 + 3 * 3  # ours, and three for each of the three

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
    """F51, L5: everybody's connections are killed while a thousand wait: they come back by ones and
    twos, and all get through.
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

    with limiter:  # by the portal, so that what follows is known to the server
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
