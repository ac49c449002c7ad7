"""A client that has to wait before it goes on: it loses no call in a pause, survives every error of
connecting, and pauses for longer and longer.

F28, F29, F35. The error may come from the user's own code: a credential_provider may raise any
error, cancellations included.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions
from redis import Redis
from redis.credentials import CredentialProvider

from headgate import Concurrency, Limiter, Permit, Rate
from headgate.errors import StoreError
from headgate.internals import queue_of, store_of
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.transport import (
    availability,
    backoff,
    lifecycle,
    reconnection,
    subscriber,
)
from headgate.stores.redis.transport.client import Client
from headgate.stores.redis.transport.node import Call, Postponed
from tests.faults.proxy import Proxy
from tests.faults.scene import Breaths, client_of_its_own, elsewhere, enter, eventually, once_back
from tests.rights import PASSWORD, USER
from tests.servers import Server, as_user, dead_port
from tests.world import LONG, at_rest, long, session_of, soon, used, waiting

TEN = Rate(10, per=10_000_000, unit="tokens")  # no token comes back within a test


class Moody(CredentialProvider):
    """Knows the password, and raises the errors in `moods` before it returns it."""

    def __init__(self) -> None:
        self.moods: list[BaseException] = []
        self.asked = 0

    def get_credentials(self) -> tuple[str, str]:
        self.asked += 1
        if self.moods:
            raise self.moods.pop()
        return USER, PASSWORD

    async def get_credentials_async(self) -> tuple[str, str]:
        return self.get_credentials()


def with_moods(moody: Moody, port: int) -> Any:
    return redis.asyncio.Redis(port=port, credential_provider=moody)


def client_of(limiter: Limiter) -> Client:
    return session_of(limiter).client


REFUSED = b"$7\r\nrefused\r\n"


def refuse_once(proxy: Proxy, refusal: bytes, words: bytes = b"FCALL") -> None:
    """The server does not run the next call that has these words, and its reply is `refusal`.

    Other commands may share one write with it. The server runs those, and a PING in its place.
    """

    def stopped(request: bytes) -> bytes:
        commands = re.split(rb"(?=\*\d+\r\n)", request)
        found = [place for place, command in enumerate(commands) if words in command]
        if found:
            commands[found[0]] = b"*2\r\n$4\r\nPING\r\n" + REFUSED
            proxy.requests.alter, proxy.replies.alter = None, refused
        return b"".join(commands)

    def refused(reply: bytes) -> bytes:
        if REFUSED in reply:
            proxy.replies.alter = None
        return reply.replace(REFUSED, b"-" + refusal + b"\r\n")

    proxy.requests.alter = stopped


# The end of a loop --------------------------------------------------------------------------------


class Longest:
    """In place of chance: every pause is as long as it may be."""

    def uniform(self, least: float, most: float) -> float:
        return most


async def test_a_release_in_a_pause_arrives_though_the_loop_ends(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, F35: given a release that a loading server has put off, when the loop ends just then,
    then it is still sent.
    """
    monkeypatch.setattr(backoff, "JITTER", Longest())
    monkeypatch.setattr(
        backoff, "BACKOFF", 0.25
    )  # a pause of half a second: the end of a loop waits for longer
    hold, held = Postponed.add, list[Call]()

    def put_off(postponed: Postponed, call: Call, refusal: str) -> None:
        held.append(call)
        hold(postponed, call, refusal)

    monkeypatch.setattr(Postponed, "add", put_off)

    async def leave() -> None:
        limiter = Limiter(name, Concurrency(1), store=proxy.url)
        holder = await limiter.acquire()
        refuse_once(proxy, b"LOADING Redis is loading the dataset in memory", b"release")
        holder.release()
        await eventually(lambda: held)

    await soon(asyncio.to_thread(asyncio.run, leave()))

    assert used(await elsewhere(name, Concurrency(1), url=redis_url).astatus()) == [0]


# Errors of a credential_provider ------------------------------------------------------------------


@pytest.mark.usefixtures("hurried")
async def test_a_cancellation_from_a_credential_provider_ends_no_attempt_to_connect(
    name: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F29: given lost connections, when a credential_provider is cancelled while the client
    connects, then the client connects again.
    """
    monkeypatch.setattr(
        backoff, "BACKOFF", 0.001
    )  # all attempts come before the process gives up the store
    moody = Moody()
    limiter = Limiter(
        name,
        Concurrency(1),
        store=with_moods(moody, int(proxy.url.rpartition(":")[2].partition("/")[0])),
    )
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    moody.moods = [
        asyncio.CancelledError() for _ in range(4)
    ]  # for the connection for calls and the one for notifications
    proxy.reset()

    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()
    assert moody.moods == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("error", [asyncio.CancelledError, RuntimeError, KeyError, TimeoutError])
async def test_a_client_looks_for_its_store_after_any_error_of_a_credential_provider(
    name: str, redis_server: Server, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F29: given a store that is away, when a provider raises errors, then the process finds
    the store as soon as the provider answers.
    """
    monkeypatch.setattr(backoff, "BACKOFF", 0.001)
    moody = Moody()
    moody.moods = [error("canary") for _ in range(4)]
    store = with_moods(moody, redis_server.port)
    limiter = Limiter(name, Concurrency(2), store=store, on_store_error="local", processes=2)

    inside = await soon(limiter.acquire())  # by the share
    assert not await soon(
        limiter.atry_acquire()
    )  # the process looks for it from here on, without another call
    its = store_of(queue_of(limiter))._clients[asyncio.get_running_loop()]
    await eventually(lambda: not its.availability.unavailable)

    assert inside.fence == 0
    assert moody.moods == []
    permit = await soon(limiter.acquire())
    assert permit.fence > 0
    for each in (inside, permit):
        await each.arelease()
    await at_rest(limiter)


async def test_after_a_cancelled_credential_provider_each_attempt_to_subscribe_follows_a_pause(
    name: str, redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F29: given a credential_provider that is cancelled at each attempt to subscribe, then
    each pause is twice the one before, however often callers look. The notifications arrive at
    last.
    """
    breaths = Breaths()
    for module, word, value in (
        (backoff, "JITTER", breaths),
        (backoff, "BACKOFF", 0.001),
        (subscriber, "LONGEST", 0.02),
    ):
        monkeypatch.setattr(module, word, value)
    moody = Moody()
    limiter = Limiter(name, Concurrency(1), store=with_moods(moody, redis_server.port))
    holder = await limiter.acquire()
    moody.moods = [asyncio.CancelledError() for _ in range(6)]

    waiter = asyncio.create_task(enter(limiter))
    async with asyncio.timeout(long()):
        while moody.moods:
            await limiter.astatus()
    assert breaths.taken[:5] == [0.002, 0.004, 0.008, 0.016, 0.02]

    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()


async def test_a_client_without_the_right_to_subscribe_does_not_connect_again_for_each_waiter(
    name: str, own_proxy: Proxy, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9, F29: given a user who may not subscribe, when callers wait one after another, then they
    need no connection each. The refusal comes when no caller waits any more.
    """
    monkeypatch.setattr(backoff, "BACKOFF", 3600.0)
    monkeypatch.setattr(subscriber, "LONGEST", 3600.0)
    own_admin.acl_setuser(
        "deaf", enabled=True, nopass=True, categories=["+@all"], commands=["-subscribe"], keys=["*"]
    )
    limiter = Limiter(name, Concurrency(1), store=as_user(own_proxy.url, "deaf"))
    permit = await limiter.acquire()
    own_proxy.notifications.hold()
    its = client_of(limiter).subscriptions

    async def wait_for_a_moment(former: Permit) -> Permit:
        waiter = asyncio.create_task(enter(limiter))
        await waiting(limiter, 1)
        await eventually(
            lambda: (
                own_proxy.met >= 2
                and any(task is not None and not task.done() for task in its.tasks())
            )
        )
        former.release()
        return await soon(waiter)

    permit = await wait_for_a_moment(permit)
    own_proxy.notifications.resume()
    await eventually(lambda: all(task is not None and task.done() for task in its.tasks()))
    met = own_proxy.met
    for _ in range(5):
        permit = await wait_for_a_moment(permit)

    assert own_proxy.met == met
    assert await permit.arelease()


# A server that goes on refusing -------------------------------------------------------------------


@pytest.mark.usefixtures("hurried")
async def test_a_demoted_server_is_asked_less_and_less_often(
    name: str, own_server: Server, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35, L5, S6: given a server that takes every connection and answers READONLY to every call,
    then each pause is twice the one before, up to the longest. A waiter is granted when the server
    may write again.
    """
    breaths = Breaths()
    for module, word, value in (
        (backoff, "JITTER", breaths),
        (backoff, "BACKOFF", 0.001),
        (availability, "LONGEST", 0.02),
    ):
        monkeypatch.setattr(module, word, value)
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    await limiter.astatus()
    del breaths.taken[:]

    own_admin.config_resetstat()
    own_admin.replicaof("127.0.0.1", dead_port())  # a primary that is not there
    await eventually(lambda: len(breaths.taken) >= 7)
    own_admin.replicaof("NO", "ONE")

    assert breaths.taken[:7] == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02]
    assert not waiter.done()
    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()
    assert (
        own_admin.info("stats")["total_connections_received"] <= len(breaths.taken) + 1
    )  # and one for notifications
    await at_rest(limiter)


async def test_many_backlogs_for_a_server_that_is_away_are_sent_together_and_less_and_less_often(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35, S9: given a server that no process has reached, when many names have a backlog for it,
    then they send it together.

    The pauses grow as those of one name do.
    """
    attempts: list[int] = []

    def at_once(attempt: int, longest: float) -> float:
        if longest == backoff.REVIVAL:
            attempts.append(attempt)
        return 0.0

    monkeypatch.setattr(availability, "backoff", at_once)
    monkeypatch.setattr(lifecycle, "DRAIN_TIMEOUT", 0.0)
    nowhere = client_of_its_own("redis://localhost:1")
    limiters = [Limiter(f"{name}-{number}", Concurrency(1), store=nowhere) for number in range(20)]

    outcomes = await soon(
        asyncio.gather(*(limiter.acquire() for limiter in limiters), return_exceptions=True)
    )
    await eventually(lambda: len(attempts) >= 6)

    assert {type(each) for each in outcomes} == {StoreError}
    assert attempts[:6] == [1, 2, 3, 4, 5, 6]
    assert all(queue_of(limiter).routing.last._failed_deliveries >= 5 for limiter in limiters)


async def test_a_backlog_is_sent_as_soon_as_another_name_finds_the_server_back(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7, L5: given a call of unknown outcome to a server that is gone, when another name finds the
    server back, then the backlog is sent.
    """
    monkeypatch.setattr(reconnection, "OUTAGE", 0.2)
    store = client_of_its_own(own_server.user_url)
    limiter, other = [
        Limiter(f"{name}-{number}", Concurrency(1), store=store) for number in range(2)
    ]
    await other.astatus()
    own_server.pause()
    asked = asyncio.create_task(enter(limiter))
    await eventually(
        lambda: (
            (loop_session := queue_of(limiter).routing.last) is not None
            and loop_session.traffic.sent
        )
    )
    own_server.kill()
    monkeypatch.setattr(
        availability,
        "backoff",
        lambda attempt, longest: 0.0 if longest == backoff.LONGEST else LONG * 10,
    )
    with pytest.raises(StoreError):
        await soon(asked)
    owing = queue_of(limiter).routing.last
    assert owing.traffic.owes

    own_server.start()
    await once_back(other.astatus)
    await eventually(lambda: not owing.traffic.owes)


def endless(port: int) -> None:
    # Without a timeout: redis-py's own would make the call again, and end the wait for the first.
    with (
        Redis(port=port, socket_timeout=None) as client,
        contextlib.suppress(redis.exceptions.ResponseError),
    ):
        client.eval("while true do end", 0)


def is_busy(admin: Redis) -> bool:
    try:
        return not admin.ping()
    except redis.exceptions.ResponseError as refusal:
        return "BUSY" in str(refusal)


@contextlib.asynccontextmanager
async def busy(admin: Redis, server: Server) -> AsyncIterator[None]:
    """An endless script, which makes the server refuse all calls."""
    admin.config_set("lua-time-limit", 1)
    script = asyncio.create_task(asyncio.to_thread(endless, server.port))
    await eventually(lambda: is_busy(admin))
    try:
        yield
    finally:
        admin.script_kill()
        await script


def refusals(admin: Redis) -> int:
    return int(admin.info("errorstats").get("errorstat_BUSY", {}).get("count", 0))


async def test_one_caller_asks_for_all_when_a_server_is_not_ready(
    name: str, own_server: Server, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F35, L5: given forty names at a server that refuses all calls, then one asks for all, with
    pauses that grow. All are served when the server is ready.
    """
    breaths = Breaths()
    for module, word, value in (
        (backoff, "JITTER", breaths),
        (backoff, "BACKOFF", 0.001),
        (availability, "LONGEST", 0.02),
    ):
        monkeypatch.setattr(module, word, value)
    limiters = [
        Limiter(f"{name}-{number}", Concurrency(1), store=own_server.url) for number in range(40)
    ]
    for limiter in limiters:
        await (await limiter.acquire()).arelease()

    async with busy(own_admin, own_server):
        callers = [asyncio.create_task(enter(limiter)) for limiter in limiters]
        await eventually(lambda: len(breaths.taken) >= 9)
    async with asyncio.timeout(long()):
        for permit in await asyncio.gather(*callers):
            assert await permit.arelease()

    assert breaths.taken[:9] == [0.002, 0.004, 0.008, 0.016, 0.02, 0.02, 0.02, 0.02, 0.02]
    assert refusals(own_admin) <= len(limiters) + len(breaths.taken) + 1  # or saw that it is busy


@pytest.mark.usefixtures("hurried")
async def test_each_caller_has_an_error_in_time_when_another_asks_a_server_that_is_not_ready(
    name: str, own_server: Server, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, F35: given names whose turn does not come while a server refuses all calls, then all have
    an error in time, with the server's words.
    """
    limiters = [
        Limiter(f"{name}-{number}", Concurrency(1), store=own_server.url, retry_for=1)
        for number in range(4)
    ]
    for limiter in limiters:
        await (await limiter.acquire()).arelease()
    monkeypatch.setattr(backoff, "JITTER", Breaths())
    monkeypatch.setattr(backoff, "BACKOFF", 3600.0)
    monkeypatch.setattr(availability, "LONGEST", 3600.0)

    async with busy(own_admin, own_server):
        callers = [asyncio.create_task(enter(limiter)) for limiter in limiters]
        for outcomes in await soon(asyncio.gather(*callers, return_exceptions=True)):
            assert isinstance(outcomes, StoreError)
            assert "BUSY" in str(outcomes)

    monkeypatch.setattr(backoff, "BACKOFF", 0.001)
    for limiter in limiters:
        await at_rest(limiter)


# A call that is refused ---------------------------------------------------------------------------


def first_notification_lost(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The notifications of grants from now on, of which the session does not get the first."""
    on_notification, notifications = LoopSession.on_notification, []

    def hears(loop_session: LoopSession, notification: str) -> None:
        if len(notification.split()) > 3:  # it brings a grant
            notifications.append(notification)
        if notifications != [notification]:
            on_notification(loop_session, notification)

    monkeypatch.setattr(LoopSession, "on_notification", hears)
    return notifications


async def test_a_notification_kept_for_a_refused_call_sends_no_second_call(
    name: str, proxy: Proxy, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3, S7, F35: given a notification for a caller that has given up, kept for the reply in
    flight. When that reply is a refusal and another caller comes in the same moment, then one call
    is sent and not two. Its reply belongs to it, and no token is lost.
    """
    limiter, other = Limiter(name, TEN, store=proxy.url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    callers = [asyncio.create_task(enter(limiter, tokens=1)) for _ in range(2)]
    await waiting(other, 2)
    await eventually(lambda: proxy.notifications.seen)
    loop_session, failed = session_of(limiter), Session.failed
    come, notifications = asyncio.Event(), first_notification_lost(monkeypatch)

    def fails_as_one_comes(its: Session, error: StoreError, now: float) -> None:
        come.set()
        failed(its, error, now)

    async def newcomer() -> None:
        await come.wait()
        await limiter.acquire(tokens=1)

    monkeypatch.setattr(Session, "failed", fails_as_one_comes)
    await asyncio.gather(
        limiter.astatus(), limiter.astatus()
    )  # so that the next request waits for company
    refuse_once(proxy, b"NOREPLICAS Not enough good replicas to write.")
    seen = len(proxy.replies.seen)
    proxy.replies.hold()
    loop_session.poll()
    await eventually(lambda: len(proxy.replies.seen) > seen)
    callers[1].cancel()
    await asyncio.wait(callers[1:])
    permit.settle(tokens=9)
    await eventually(lambda: notifications)
    permit.settle(tokens=8)
    await eventually(lambda: loop_session.machine._out_of_order)

    coming = asyncio.create_task(newcomer())
    met = proxy.met
    proxy.replies.resume()
    with pytest.raises(StoreError, match="NOREPLICAS"):
        await soon(callers[0])
    await soon(coming)

    assert used(await limiter.astatus()) == [9]
    assert proxy.met == met
