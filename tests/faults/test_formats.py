"""A state that another version of headgate has written: the server drops an older one, and leaves a
newer one alone.

And replies that no server has sent, as far as we know.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit, StoreError
from headgate.internals import queue_of
from tests.faults.proxy import Proxy
from tests.faults.scene import elsewhere, once_back, visit
from tests.world import at_rest, soon

OLD, OLDEST, NEWER = b"\x01 and numbers", b"\x8e, as MessagePack began", "\x7f and whatever"


@pytest.mark.parametrize("state", [OLD, OLDEST])
async def test_a_state_of_an_older_format_begins_afresh(
    name: str, redis_url: str, admin: Redis, state: bytes
) -> None:
    """F47: given a state of an older format, when a caller enters, then no permit counts as held.
    The next caller finds a state of the present format.
    """
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    await soon(visit(limiter))
    admin.hset(f"headgate:{{{name}}}", "state", state)

    for _ in range(2):
        await soon(visit(limiter))

    assert (await limiter.astatus()).limits[0].capacity == 1


async def test_a_state_of_a_newer_format_is_left_alone(
    name: str, redis_url: str, admin: Redis
) -> None:
    """F47: given a state of a newer format, when a caller acquires, then the error says what to do,
    and the state is as it was.
    """
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    await soon(visit(limiter))
    admin.hset(f"headgate:{{{name}}}", "state", NEWER)

    with pytest.raises(StoreError, match="update this one, too"):
        await soon(limiter.acquire())

    assert admin.hget(f"headgate:{{{name}}}", "state") == NEWER


REQUESTS: dict[str, Callable[[Limiter, Permit], Awaitable[object]]] = {
    "acquire": lambda limiter, permit: limiter.acquire(),
    "release": lambda limiter, permit: permit.arelease(),
    "status": lambda limiter, permit: limiter.astatus(),
    "pause": lambda limiter, permit: limiter.apause(0.001),
}


@pytest.mark.parametrize(
    "words", [rb" ok (\d+)", pytest.param(rb"(grant|done|status) \d+", marks=pytest.mark.proof)]
)
@pytest.mark.parametrize("request_of", REQUESTS)
async def test_a_caller_with_a_malformed_reply_has_a_store_error(
    name: str, proxy: Proxy, request_of: str, words: bytes
) -> None:
    """L6, S7: given a number in a reply that is none, then the caller has a StoreError, and no
    permit stays held.
    """
    limiter = Limiter(name, Concurrency(2), store=proxy.url)
    permit = await limiter.acquire()
    whole = re.compile(rb"\$\d+\r\n([^$]*)\r\n")
    proxy.replies.alter = lambda piece: whole.sub(
        lambda reply: bulk(re.sub(words, rb" ok none", reply[1], count=1)), piece
    )

    with pytest.raises(StoreError):
        await soon(REQUESTS[request_of](limiter, permit))

    proxy.replies.alter = None
    permit.release()
    await at_rest(limiter)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param((rb"\|", rb"| x"), id="notifications"),
        pytest.param((rb"(done|released) \d+", rb"\1 x"), id="answer"),
        pytest.param((rb"( ok \d+ -?\d+ \d)[^|]*\|", rb"\1 |"), id="no answer"),
    ],
)
async def test_a_call_with_a_malformed_reply_is_not_sent_for_ever(
    name: str, proxy: Proxy, damage: tuple[bytes, bytes]
) -> None:
    """L6: given a malformed reply that the server repeats, then its caller has a StoreError, and
    later calls of the name are sent.
    """
    limiter = Limiter(name, Concurrency(2), store=proxy.url)
    permit = await limiter.acquire()
    second = re.compile(rb"\$\d+\r\n([^$]*\.\d+s? 2 ok [^$]*)\r\n")
    damaged: list[bytes] = []

    def changed(reply: bytes) -> bytes:
        if damaged and reply.split()[0] != damaged[0].split()[0]:
            return reply  # the second call of a later session
        damaged.append(re.sub(*damage, reply, count=1))
        assert damaged[-1] != reply
        return damaged[-1]

    proxy.replies.alter = lambda piece: second.sub(lambda reply: bulk(changed(reply[1])), piece)
    with pytest.raises(StoreError):
        await soon(permit.arelease())

    await once_back(lambda: visit(limiter))
    assert damaged
    await at_rest(limiter)


async def test_a_thread_with_a_malformed_reply_asks_by_the_portal(name: str, proxy: Proxy) -> None:
    """L6: the thread's own connection gets a malformed reply, and the portal's does not."""
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    for _ in range(2):  # the second acquire goes by the thread's own connection
        (await asyncio.to_thread(limiter.acquire_sync)).release()
    await at_rest(limiter)
    quick = re.compile(rb"\$\d+\r\n(\w+\.0 \d+ ok \d+ [^$]*)\r\n")
    damaged = []

    def alter(piece: bytes) -> bytes:
        damaged.extend(quick.findall(piece))
        return quick.sub(lambda reply: bulk(reply[1].replace(b" ok ", b" ok x", 1)), piece)

    proxy.replies.alter = alter
    (await asyncio.to_thread(limiter.acquire_sync)).release()

    assert damaged
    await at_rest(limiter)


async def test_a_process_does_not_adopt_limits_that_were_damaged_on_the_way(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S1: given limits that no process can have declared, then the call fails. The process keeps
    its own limits until a reply is well-formed.
    """
    limiter, other = (
        Limiter(name, Concurrency(2), store=proxy.url),
        elsewhere(name, Concurrency(2), url=redis_url),
    )
    await soon(visit(limiter))
    await other.aupdate(Concurrency(3))
    ours = queue_of(limiter).declared.program
    whole = re.compile(rb"\$\d+\r\n([^$]*)\r\n")
    proxy.replies.alter = lambda piece: whole.sub(
        lambda reply: bulk(reply[1].replace(b"permits 3 ", b"permits 0 ")), piece
    )

    with pytest.raises(StoreError):
        await soon(limiter.acquire())
    assert queue_of(limiter).declared.program == ours

    proxy.replies.alter = None
    await once_back(lambda: visit(limiter))
    assert (await limiter.astatus()).limits[0].capacity == 3
    await at_rest(limiter)


@pytest.mark.parametrize(
    "limits", ["slots permits 0 30000000", "slats permits 2 30000000", "slots permits 2"]
)
async def test_limits_that_are_damaged_on_the_server_are_declared_anew(
    name: str, redis_url: str, admin: Redis, limits: str
) -> None:
    """Given a process that has declared them before, and a new process."""
    for declares in (
        Limiter(name, Concurrency(2), store=redis_url),
        elsewhere(name, Concurrency(2), url=redis_url),
    ):
        await soon(visit(declares))
        admin.hset(f"headgate:{{{name}}}", "limits", limits)

        await soon(visit(declares))

        assert admin.hget(f"headgate:{{{name}}}", "limits") == "slots permits 2 30000000"
        assert (await declares.astatus()).limits[0].capacity == 2


def bulk(reply: bytes) -> bytes:
    """A text as RESP has it."""
    return b"$%d\r\n%s\r\n" % (len(reply), reply)
