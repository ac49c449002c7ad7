"""What comes together travels together: one call for each limiter, one write for each connection;
what comes alone goes at once.
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
from headgate.stores.redis.session import batching, session
from headgate.stores.redis.transport.connection import Connection
from headgate.stores.redis.transport.node import Node
from tests.faults.scene import commands_of, elsewhere, enter, eventually
from tests.world import session_of, soon, waiting

PLENTY, ONE = Concurrency(1000), Concurrency(1)
SILENT = 3600.0  # seconds between heartbeats: none within a test


def of_calls(protocol: object) -> bool:
    """Whether this is a connection of calls, and not the one that listens."""
    return isinstance(protocol, Connection) and isinstance(
        getattr(protocol._replied, "__self__", None), Node
    )


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """All writes of calls to the server, as they are made: what listens subscribes when it
    likes.
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


async def test_who_comes_in_one_turn_goes_out_in_one_write(
    name: str, redis_url: str, admin: Redis, writes: list[bytes]
) -> None:
    """Given 50 limiters, when 20 tasks each acquire together and release together, then each
    limiter makes one call for each, and all calls leave in one write; but the very first acquire,
    which did not know that others would come, has left by itself.
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
    """The sizes of all that is read from the server for calls, as it is read."""
    read: list[int] = []
    received = Connection.data_received

    def noted(self: Connection, data: bytes) -> None:
        if of_calls(self):
            read.append(len(data))
        received(self, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    return read


async def test_what_replies_set_free_leaves_in_one_write_as_well(
    name: str, redis_url: str, writes: list[bytes], reads: list[int]
) -> None:
    """Given calls of many limiters on their way, when more comes for each, then it leaves in one
    write for each read of replies.
    """
    limiters = [Limiter(f"{name}-{number}", PLENTY, store=redis_url) for number in range(50)]
    await visits(limiters, 1)
    writes.clear()
    reads.clear()

    first = [asyncio.create_task(enter(limiter)) for limiter in limiters]
    await asyncio.sleep(0)  # they ask, and
    await asyncio.sleep(0)  # it is sent
    second = [asyncio.create_task(enter(limiter)) for limiter in limiters]
    permits = await asyncio.gather(*first, *second)

    assert len(writes) <= 2 + len(
        reads
    )  # the very first, all the others of the first, and then as many as there were reads
    assert len(writes) < len(limiters)
    await asyncio.gather(*(permit.arelease() for permit in permits))


async def test_an_idle_store_sends_at_once(name: str, redis_url: str, writes: list[bytes]) -> None:
    """Given nothing on its way, when one task acquires, then its call has left by the end of the
    turn: nobody is waited for.
    """
    limiter = Limiter(name, PLENTY, store=redis_url)
    await visits([limiter], 1)
    writes.clear()

    caller = asyncio.create_task(enter(limiter))
    await asyncio.sleep(0)  # it asks, and
    await asyncio.sleep(0)  # at the end of that turn it is sent
    assert len(writes) == 1
    await (await caller).arelease()


async def nothing_on_its_way(limiter: Limiter) -> None:
    """Wait until the session is subscribed and has the reply to its last call: once subscribed, it
    asks for news.
    """
    session = queue_of(limiter).session()
    await eventually(lambda: session.client.counts(session) and session.traffic.sent is None)


async def test_what_others_wait_for_leaves_at_once_and_is_announced_before_it_is_answered(
    name: str, redis_url: str, writes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given two who asked together behind others, when the first is granted and gives back, then
    that has left before the turn is over, with a word before it in the same write: the server
    answers that connection last (node.py, PING).
    """
    monkeypatch.setattr(batching, "FAR", 1)
    monkeypatch.setattr(session, "HEARTBEAT", SILENT)
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
    monkeypatch.setattr(session, "HEARTBEAT", SILENT)
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
    session = queue_of(limiter).session()
    return bool(session.traffic.waiting) and session.traffic.sent is None


async def granted_in_turn(here: Limiter, other: Limiter) -> Permit:
    """The permit of a caller that has waited until the other process gave it back."""
    theirs = await enter(other)
    mine = asyncio.create_task(enter(here))
    await waiting(other, 1)
    await nothing_on_its_way(here)
    await theirs.arelease()
    return await soon(mine)


async def test_a_caller_whose_turn_came_gives_back_and_asks_again_in_one_call(
    name: str, redis_url: str, writes: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a process whose calls carried one request each, when it gives back a permit for which
    it has waited and asks again in the same turn, then that is one call.
    """
    monkeypatch.setattr(session, "HEARTBEAT", SILENT)
    here, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    await (await granted_in_turn(here, other)).arelease()  # the process has subscribed
    permit = await granted_in_turn(here, other)

    writes.clear()
    permit.release()
    again = await soon(enter(here))

    assert [data.count(b"FCALL") for data in writes] == [1]
    assert await again.arelease()


async def test_what_is_settled_goes_with_what_is_given_back(
    name: str, redis_url: str, writes: list[bytes]
) -> None:
    """Given one who was granted what it asked for at once, when it settles and gives back in one
    turn, then that is one call.
    """
    permit = await enter(Limiter(name, PLENTY, "100/second", store=redis_url))

    writes.clear()
    permit.settle(requests=2)
    await permit.arelease()

    assert [data.count(b"FCALL") for data in writes] == [1]


@pytest.mark.parametrize(
    ("refusal", "said"), [("NOPERM 'ping'", False), ("LOADING Redis is loading", True)]
)
async def test_a_server_that_lets_nobody_say_a_word_is_told_none(
    name: str, redis_url: str, writes: list[bytes], refusal: str, said: bool
) -> None:
    """Given a user who may not say PING, when somebody gives back what others may wait for, then it
    is sent as it is; but a server that was not ready for one is told the next.
    """
    limiter, other = Limiter(name, ONE, store=redis_url), elsewhere(name, ONE, url=redis_url)
    theirs, mine = await enter(other), asyncio.create_task(enter(limiter))
    await waiting(other, 1)
    await theirs.arelease()
    permit = await soon(mine)
    (peer,) = session_of(limiter).client.nodes.values()
    peer._note_ping_reply(ReplyError(refusal))

    writes.clear()
    await permit.arelease()

    assert [b"PING" in written for written in writes] == [said]


def test_what_is_said_while_something_is_written_is_written_behind_it() -> None:
    """Given commands that are written together, when the collector gives something back in the
    middle of that, then it follows.
    """
    written: list[bytes] = []
    its = object.__new__(Connection)

    class Link:
        def write(self, data: bytes) -> None:
            if not written:
                its.send(b"dropped")
            written.append(data)

    its._transport, its._kept = Link(), [b"first ", b"second"]  # type: ignore[assignment]  # all that it does with one

    its.write()

    assert (written, its.keeps()) == ([b"first second", b"dropped"], False)


async def test_what_nobody_waits_for_is_given_back_without_a_word_before_it(
    name: str, redis_url: str, writes: list[bytes]
) -> None:
    """Given one who was granted what it asked for at once, when it gives back, then that is all
    that is sent.
    """
    permit = await enter(Limiter(name, ONE, store=redis_url))

    writes.clear()
    await permit.arelease()

    assert [b"PING" in written for written in writes] == [False]
