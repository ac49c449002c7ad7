"""A pause of the whole limiter reaches the keys of every process, whatever is lost on the way."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, UnknownLimiterError
from headgate.internals import queue_of, status_in_use
from headgate.stores.redis.session import pause_watch, polls, whole_pause
from headgate.stores.redis.session.reservations import Reservations
from headgate.stores.redis.session.whole_pause import WholePause
from headgate.stores.redis.transport.portal import portal_loop
from tests.faults.proxy import Proxy
from tests.faults.scene import Slack, client_of_its_own, elsewhere, enter, eventually, visit
from tests.servers import Server
from tests.world import HOUR, long, soon, until, used, waiting

PLENTY = Rate(1000, per=1000 * HOUR)


@pytest.fixture
def news_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its first question a process learns of a pause by notifications alone."""
    monkeypatch.setattr(whole_pause, "TRUSTED", HOUR)
    monkeypatch.setattr(whole_pause, "ASK_AGAIN", HOUR)
    monkeypatch.setattr(polls, "HEARTBEAT", HOUR)


def known(limiter: Limiter) -> WholePause:
    """The pause of the whole limiter, as this process knows it."""
    pause: WholePause = queue_of(limiter).pause
    return pause


async def in_use(key: Limiter) -> None:
    await visit(key)
    await notified(key)


async def notified(key: Limiter) -> None:
    """Go on when the process receives the notifications of the whole limiter."""
    session: Any = queue_of(key).whole.routing.session()
    await eventually(lambda: session.client.subscriptions.notifies(session))


@pytest.mark.usefixtures("news_alone")
async def test_a_notification_holds_the_keys_of_another_process(name: str, redis_url: str) -> None:
    """Given a process that uses a key, when another one pauses the limiter and ends that, then
    notifications alone hold the key, and wake its waiter.
    """
    key = elsewhere(name, PLENTY, url=redis_url)["k"]
    other = elsewhere(name, PLENTY, url=redis_url)
    await in_use(key)

    await other.apause(HOUR)
    await eventually(lambda: known(key).ends)
    waiter = asyncio.create_task(enter(key))
    await waiting(key, 1)
    await other.aresume()

    assert await soon(waiter)


@pytest.mark.usefixtures("news_alone")
async def test_a_waiter_of_a_key_is_held_by_news_that_come_while_it_waits(
    name: str, redis_url: str
) -> None:
    """Given a waiter behind a holder, when another process pauses the limiter and the holder
    leaves, then the waiter is not granted before the end.
    """
    key = elsewhere(name, Concurrency(1), url=redis_url)["k"]
    other = elsewhere(name, Concurrency(1), url=redis_url)
    holder = await key.acquire()
    waiter = asyncio.create_task(enter(key))
    await waiting(key, 1)
    await notified(key)

    await other.apause(HOUR)
    await until(lambda status: status.paused > 0, key)
    await holder.arelease()

    assert (await key.astatus()).waiting == 1
    await other.aresume()
    await (await soon(waiter)).arelease()


async def test_with_every_notification_lost_a_key_is_held_in_time(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch, slack: Slack
) -> None:
    """Given a process whose notifications are all lost, when another one pauses the limiter, then
    no caller of the key passes later than TRUSTED after that.
    """
    trusted = 0.3
    monkeypatch.setattr(whole_pause, "TRUSTED", trusted)
    monkeypatch.setattr(whole_pause, "ASK_AGAIN", trusted)
    proxy.notifications.hold()
    key = elsewhere(name, PLENTY, url=proxy.url)["k"]
    other = elsewhere(name, PLENTY, url=redis_url)
    await visit(key)

    await other.apause(HOUR)
    paused, last = monotonic(), 0.0
    async with asyncio.timeout(long()):
        while await key.atry_acquire():
            last = monotonic()

    assert last - paused <= trusted + slack()


@pytest.mark.usefixtures("news_alone")
async def test_a_grant_that_was_under_way_is_taken_back(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """T1, T5: given a grant of a key on its way to the process, when the news of the pause is
    faster, then the caller waits on, and the grant is undone.
    """
    ten = Rate(10, per=1000 * HOUR)
    key = elsewhere(name, ten, url=proxy.url)["k"]
    seen = elsewhere(name, ten, url=redis_url)["k"]
    other = elsewhere(name, ten, url=redis_url)
    await in_use(key)

    proxy.replies.hold()
    caller = asyncio.create_task(enter(key))
    await until(lambda status: used(status) == [2], seen)
    await other.apause(HOUR)
    await eventually(lambda: known(key).ends)
    proxy.replies.resume()
    status = await waiting(seen, 1)

    assert used(status) == [1]
    assert not caller.done()
    await other.aresume()
    assert await soon(caller)


async def test_a_whole_limiter_that_does_not_answer_stops_no_key(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a server of the whole limiter that does not answer, when a caller enters a key that
    another server keeps, then it passes after PATIENCE.
    """
    monkeypatch.setattr(pause_watch, "PATIENCE", 0.05)
    key = elsewhere(name, PLENTY, url=redis_url)["k"]
    whole = queue_of(key).whole.routing.session()
    monkeypatch.setattr(whole, "_schedule", lambda: None)  # its calls never leave

    await soon(visit(key))
    await soon(visit(key))

    assert used(await elsewhere(name, PLENTY, url=redis_url)["k"].astatus()) == [2]


def test_a_question_of_a_loop_that_was_closed_stops_no_key(name: str, redis_url: str) -> None:
    """Given a loop that was closed before the answer came, when the portal has taken over the
    session that asked, then a thread that acquires a key gets its permit.
    """
    store = client_of_its_own(redis_url)
    key = Limiter(name, PLENTY, store=store)["k"]
    whole = queue_of(key).whole.routing

    async def ask() -> None:
        whole.watch()._ask(monotonic())

    loop = asyncio.new_event_loop()
    loop.run_until_complete(ask())
    loop.close()
    for _ in range(2):  # the portal takes over between two of its calls
        Limiter(f"{name}-other", PLENTY, store=store).status()
    assert whole.last.client.loop is portal_loop()

    key.acquire_sync(max_sleep=long()).release()


async def test_a_question_that_fails_stops_no_key(name: str, redis_url: str, admin: Redis) -> None:
    """Given a key of the whole limiter that belongs to another program, so that each question
    fails, when callers enter a key of the limiter, then they pass.
    """
    limiter = elsewhere(name, PLENTY, url=redis_url)
    admin.set(queue_of(limiter).key, "another program's")

    for _ in range(3):
        await soon(visit(limiter["k"]))

    assert used(await limiter["k"].astatus()) == [3]


@pytest.mark.usefixtures("news_alone")
async def test_another_loop_of_the_process_is_held_and_woken(name: str, redis_url: str) -> None:
    """Given a waiter of a key in another loop, when this loop pauses the limiter and ends that,
    then the waiter is held, and goes on at once.
    """
    limiter = elsewhere(name, Concurrency(1), url=redis_url)
    key, entered = limiter["k"], threading.Event()
    holder = await key.acquire()

    async def waits() -> None:
        async with key:
            entered.set()

    thread = threading.Thread(target=lambda: asyncio.run(waits()))
    thread.start()
    await waiting(key, 1)
    await limiter.apause(HOUR)
    await holder.arelease()
    assert (await key.astatus()).waiting == 1
    assert not entered.is_set()

    await limiter.aresume()

    await eventually(entered.is_set)
    await asyncio.to_thread(thread.join, long())


def pass_in_child(key: Limiter, passed: Any) -> None:
    passed.put(bool(key.try_acquire()))


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_a_child_process_is_held_too(name: str, redis_url: str, way: Any) -> None:
    """Given a process that has used a key and paused the limiter, then its child is held."""
    context = multiprocessing.get_context(way)
    limiter = Limiter(name, PLENTY, store=redis_url)
    key, passed = limiter["k"], context.Queue()
    assert key.try_acquire()
    limiter.pause(HOUR)
    limiter.flush()

    child = context.Process(target=pass_in_child, args=(key, passed))
    child.start()

    assert passed.get(timeout=long() + 20) is False
    child.join(long())
    assert os.getpid() != child.pid


async def test_a_share_of_a_key_is_held_while_the_store_is_away(
    name: str, own_server: Server
) -> None:
    """Given a store that is away, when the limiter is paused, then the share of each key is held,
    also of a new one.
    """
    limiter = elsewhere(
        name, PLENTY, url=own_server.url, on_store_error="local", processes=2, retry_for=0
    )
    await visit(limiter["k"])
    own_server.stop()
    assert await limiter["k"].atry_acquire()

    limiter.pause(HOUR)

    assert not await limiter["k"].atry_acquire()
    assert not await limiter["new"].atry_acquire()
    limiter.resume()
    assert await limiter["new"].atry_acquire()


# What a process knows -----------------------------------------------------------------------------


def test_news_that_come_late_change_nothing() -> None:
    pause = WholePause()
    assert pause.note(1_000_000, 5_000_000, 10.0)
    assert pause.note(2_000_000, 0, 11.0)

    assert not pause.note(1_500_000, 4_500_000, 11.1)

    assert pause.ends == 0.0


def test_an_answer_counts_although_the_servers_clock_has_gone_back() -> None:
    """T6: given news of a server, when another server with an earlier clock answers a later
    question, then its answer counts.
    """
    pause = WholePause()
    pause.note(9_000_000, 60_000_000, 10.0)

    assert pause.note(5_000_000, 0, 12.0, asked_at=11.0)

    assert pause.left(12.0) == 0


def test_the_same_pause_again_does_not_become_longer() -> None:
    pause = WholePause()
    pause.note(1_000_000, 5_000_000, 10.0)

    assert not pause.note(2_000_000, 4_000_000, 11.5)

    assert pause.ends == 15.0


def test_a_longer_pause_is_news() -> None:
    pause = WholePause()
    pause.note(1_000_000, 5_000_000, 10.0)

    assert pause.note(2_000_000, 9_000_000, 11.0)

    assert pause.ends == 20.0


def test_an_answer_to_a_question_from_before_the_process_paused_the_limiter_is_too_old() -> None:
    pause = WholePause()
    pause.trust(10.0)

    pause.distrust(11.0)
    pause.trust(10.9)
    assert not pause.passes(11.1)
    pause.trust(11.1)

    assert pause.passes(11.2)


async def test_a_process_that_pauses_all_the_time_does_not_hold_up_a_key_for_ever(
    name: str, redis_url: str
) -> None:
    """L5: each answer is to a question from before the last pause, and so too old."""
    limiter = elsewhere(name, PLENTY, url=redis_url)
    key = limiter["k"]
    await visit(key)

    async def pause_all_the_time() -> None:
        while True:
            limiter.pause(0.000_001)
            await asyncio.sleep(0)

    pausing = asyncio.create_task(pause_all_the_time())
    await eventually(lambda: known(limiter).trusted_until == 0)
    await soon(visit(key))

    pausing.cancel()


def test_a_permit_is_handed_on_only_while_the_last_answer_is_fresh() -> None:
    """A local hand-off makes no call, so it cannot ask."""
    whole = WholePause()
    reserved = Reservations(whole)
    assert not reserved.may_hand_over(10.0)

    whole.trust(10.0)

    assert reserved.may_hand_over(10.0 + whole_pause.TRUSTED - 0.1)
    assert not reserved.may_hand_over(10.0 + whole_pause.TRUSTED)
    whole.note(1_000_000, 5_000_000, 10.5)
    assert not reserved.may_hand_over(11.0)


async def test_a_process_without_limits_sees_the_pause_that_holds_a_key(
    name: str, redis_url: str
) -> None:
    """Given a limiter with only a key in use, when it is paused, then an attached limiter of
    another process shows the pause of the key and of the whole, and declares nothing.
    """
    limiter = elsewhere(name, PLENTY, url=redis_url)
    await visit(limiter["k"])
    await limiter.apause(HOUR)

    def attached() -> Limiter:
        return Limiter.attach(name, store=client_of_its_own(redis_url))

    assert (await attached()["k"].astatus()).paused > HOUR / 2
    assert (await status_in_use(attached())).paused > HOUR / 2
    with pytest.raises(UnknownLimiterError):
        await attached().acquire(max_sleep=0)
