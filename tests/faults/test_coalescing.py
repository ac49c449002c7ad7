"""Requests that come together travel together: one call for each limiter, one write for each
connection. A request that comes alone is sent at once.
"""

from __future__ import annotations

import asyncio
from asyncio.selector_events import _SelectorSocketTransport as Transport
from collections.abc import Callable

import pytest
from hiredis import ReplyError
from redis import Redis

from headgate import Concurrency, Limiter, Permit
from headgate.internals import queue_of
from headgate.stores.redis.session import next_call, polls
from headgate.stores.redis.transport.connection import Connection
from headgate.stores.redis.transport.node import Node
from tests.faults.scene import commands_of, elsewhere, enter, eventually
from tests.world import session_of, soon, waiting

PLENTY, ONE = Concurrency(1000), Concurrency(1)
SILENT = 3600.0  # seconds between heartbeats: none within a test


def of_calls(protocol: object) -> bool:
    """Whether this is a connection for calls, and not the one for notifications."""
    return isinstance(protocol, Connection) and isinstance(
        getattr(protocol._replied, "__self__", None), Node
    )


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All writes of calls to the server, as they are made. Connections for notifications are left
    out, because they subscribe at any time.
    """
    written: list[bytes] = []
    write: Callable[[Transport, bytes], None] = Transport.write

    def noted(self: Transport, data: bytes) -> None:
        if of_calls(self.get_protocol()):
            written.append(data)
        write(self, data)

    monkeypatch.setattr(Transport, "write", noted)
    return written


async def visits(limiters: list[Limiter], each: int) -> None:
    """So many tasks in and out of each limiter, all in the same turn of the loop."""
    permits = await asyncio.gather(*(enter(limiter) for limiter in limiters for _ in range(each)))
    await asyncio.gather(*(permit.arelease() for permit in permits))


async def test_the_calls_of_one_turn_leave_in_one_write(
    name: str, redis_url: str, admin: Redis, writes: list[bytes]
) -> None:
    """Given 50 limiters, when 20 tasks of each acquire together and release together, then each
    limiter makes one call for each. All calls leave in one write. Only the very first acquire has
    left by itself, because the session could not know that others would come.
    """
    limiters = [Limiter(f"{name}-{number}", PLENTY, store=redis_url) for number in range(50)]
    await visits(limiters, 1)

    admin.config_resetstat()
    writes.clear()
    await visits(limiters, 20)

    assert commands_of(admin)["fcall"] == 2 * len(limiters) + 1
    assert len(writes) <= 2 + 2


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all reads from the server on connections for calls."""
    read: list[int] = []
    received = Connection.data_received

    def noted(self: Connection, data: bytes) -> None:
        if of_calls(self):
            read.append(len(data))
        received(self, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    return read


async def test_calls_that_waited_for_replies_leave_in_one_write_for_each_read(
    name: str, redis_url: str, writes: list[bytes], reads: list[int]
) -> None:
    """Given calls of many limiters in flight, when more requests come for each, then they leave in
    one write for each read of replies.
    """
    limiters = [Limiter(f"{name}-{number}", PLENTY, store=redis_url) for number in range(50)]
    await visits(limiters, 1)
    writes.clear()
    reads.clear()

    first = [asyncio.create_task(enter(limiter)) for limiter in limiters]
    await asyncio.sleep(0)  # the tasks ask
    await asyncio.sleep(0)  # the session sends the calls
    second = [asyncio.create_task(enter(limiter)) for limiter in limiters]
    permits = await asyncio.gather(*first, *second)

    assert len(writes) <= 2 + len(
        reads
    )  # the very first, all the others of the first, and then as many as there were reads
    assert len(writes) < len(limiters)
    await asyncio.gather(*(permit.arelease() for permit in permits))


async def test_a_call_leaves_at_once_when_nothing_is_in_flight(
    name: str, redis_url: str, writes: list[bytes]
) -> None:
    """Given nothing in flight, when one task acquires, then its call has left by the end of the
    turn. It waits for no other request.
    """
    limiter = Limiter(name, PLENTY, store=redis_url)
    await visits([limiter], 1)
    writes.clear()

    caller = asyncio.create_task(enter(limiter))
    await asyncio.sleep(0)  # the task asks
    await asyncio.sleep(0)  # at the end of that turn the session sends the call
    assert len(writes) == 1
    await (await caller).arelease()


async def nothing_on_its_way(limiter: Limiter) -> None:
    """Wait until the session is subscribed and has the reply to its last call. Once subscribed, it
    asks for notifications.
    """
    session = queue_of(limiter).routing.session()
    await eventually(
        lambda: session.client.subscriptions.notifies(session) and session.traffic.sent is None
    )


async def test_a_release_that_others_wait_for_leaves_at_once_after_a_ping(
    name: str, redis_url: str, writes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two callers that asked together behind others, when the first is granted and releases,
    then the release has left before the turn is over. A PING goes before it in the same write,
    because the server answers that connection last (node.py, PING).
    """
    monkeypatch.setattr(next_call, "FAR", 1)
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    here, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    await (await enter(here)).arelease()
    theirs = await enter(other)
    before = asyncio.create_task(enter(other))
    await waiting(other, 1)
    first, second = [asyncio.create_task(enter(here)) for _ in range(2)]
    await waiting(other, 3)
    await nothing_on_its_way(here)
    await theirs.arelease()
    await (await soon(before)).arelease()
    permit = await soon(first)

    writes.clear()
    permit.release()

    assert len(writes) == 1
    assert writes[0].index(b"PING") < writes[0].index(b"release")
    await (await soon(second)).arelease()


@pytest.mark.parametrize("before", [0, 3])
async def test_a_release_and_the_next_acquire_of_one_turn_are_one_call_when_another_process_waits(
    name: str, redis_url: str, writes: list[bytes], before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two processes with one caller each, when each holds the permit until the other waits,
    then each visit is one call.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    here, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    for _ in range(before):
        await (await enter(here)).arelease()
    active = [here, other]

    async def visits(limiter: Limiter, beside: Limiter) -> None:
        for _ in range(50):
            permit = await limiter.acquire()
            await eventually(lambda: waits(beside) or beside not in active)
            permit.release()
        active.remove(limiter)

    await asyncio.gather(visits(here, other), visits(other, here))

    assert sum(data.count(b"FCALL") for data in writes) < 130


def waits(limiter: Limiter) -> bool:
    """Whether a caller of `limiter` waits, and no call is in flight."""
    session = queue_of(limiter).routing.session()
    return bool(session.traffic.waiting) and session.traffic.sent is None


async def granted_in_turn(here: Limiter, other: Limiter) -> Permit:
    """The permit of a caller that has waited until the other process gave it back."""
    theirs = await enter(other)
    mine = asyncio.create_task(enter(here))
    await waiting(other, 1)
    await nothing_on_its_way(here)
    await theirs.arelease()
    return await soon(mine)


async def test_a_process_that_acquires_after_each_release_sends_both_in_one_call(
    name: str, redis_url: str, writes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a caller that has waited, when it releases and acquires in one turn, that is one call.
    It is two the first time, if the release before it was alone in its call: the session could not
    know that an acquire would come.
    """
    monkeypatch.setattr(polls, "HEARTBEAT", SILENT)
    here, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    await (await granted_in_turn(here, other)).arelease()  # the process has subscribed
    permit, calls = await granted_in_turn(here, other), []
    for _ in range(3):
        writes.clear()
        permit.release()
        permit = await soon(enter(here))
        calls.append(sum(data.count(b"FCALL") for data in writes))
    await permit.arelease()

    assert calls == [2, 1, 1]


async def test_a_settlement_and_a_release_of_one_turn_are_one_call(
    name: str, redis_url: str, writes: list[bytes]
) -> None:
    """Given a caller that was granted at once, when it settles and releases in one turn, then both
    are one call.
    """
    permit = await enter(Limiter(name, PLENTY, "100/second", store=redis_url))

    writes.clear()
    permit.settle(requests=2)
    await permit.arelease()

    assert [data.count(b"FCALL") for data in writes] == [1]


@pytest.mark.parametrize(
    ("refusal", "said"), [("NOPERM 'ping'", False), ("LOADING Redis is loading", True)]
)
async def test_no_ping_is_sent_to_a_server_that_denies_ping_to_the_user(
    name: str,
    redis_url: str,
    writes: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    refusal: str,
    said: bool,
) -> None:
    """Given a user without the right to PING, when it releases a permit that others may wait for,
    then no PING goes before the release. After a server was not ready for one PING, the next one is
    sent.
    """
    limiter, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    theirs, mine = await enter(other), asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    await theirs.arelease()
    permit = await soon(mine)
    (node,) = session_of(limiter).client.nodes.values()
    monkeypatch.setattr(node.client.topology, "may_ping", True)  # other tests share it
    node._note_ping_reply(ReplyError(refusal))

    writes.clear()
    await permit.arelease()

    assert [b"PING" in written for written in writes] == [said]


def test_a_command_that_is_sent_during_a_write_is_written_after_it() -> None:
    """Given commands that are written together, when the collector releases a permit in the middle
    of that, then the release is written after them.
    """
    written: list[bytes] = []
    its = object.__new__(Connection)

    class Output:
        def write(self, data: bytes) -> None:
            if not written:
                its.send(b"dropped")
            written.append(data)

    its._transport, its._buffered = Output(), [b"first ", b"second"]  # type: ignore[assignment]  # all that it does with one

    its.write()

    assert (written, its.is_buffering()) == ([b"first second", b"dropped"], False)


async def test_a_release_without_waiters_is_sent_without_a_ping_before_it(
    name: str, redis_url: str, writes: list[bytes]
) -> None:
    """Given a caller that was granted at once, when it releases, then the release is all that the
    process sends.
    """
    permit = await enter(Limiter(name, ONE, store=redis_url))

    writes.clear()
    await permit.arelease()

    assert [b"PING" in written for written in writes] == [False]
