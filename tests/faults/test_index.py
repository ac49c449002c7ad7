"""The index of names and the labels of sessions: it has all that is in use and forgets the rest. No
caller notices it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import socket
import threading
from collections.abc import Callable
from weakref import ref

import pytest
from redis import Redis

import headgate
from headgate import Concurrency, Limiter, UnknownLimiterError
from headgate.keys import encoded
from headgate.stores import process_label
from headgate.stores.redis import index
from headgate.stores.redis.members import read_members
from headgate.stores.redis.protocol import index as protocol_index
from headgate.stores.redis.protocol.index import (
    LABELS,
    LIFETIME,
    MOST,
    NAMES,
    Label,
    write_label,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.registry import store_of
from tests.clocks import ServerClock
from tests.faults.scene import client_of_its_own, commands_of, enter, eventually, visit
from tests.index import calls_of, indexed, labels, refreshed, refresher_of
from tests.processes import finished, running
from tests.servers import Server
from tests.world import session_of, soon, waiting

HOSTILE = [
    "a b",
    "line\nbreak",
    "a:b",
    "{a}",
    "}{",
    "a/b",
    "/index",
    "%41",
    "snow ☃",
    "*?[a]\\",
    " ",
    "\x00",
    "é" * 100,
]


# In the index -------------------------------------------------------------------------------------


async def test_a_name_in_use_and_its_process_are_in_the_index(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Both end by themselves, by the server's clock, and so do their keys."""
    await visit(Limiter(name, "100/minute", store=own_server.user_url))
    await refreshed(own_server.user_url)

    assert headgate.names(own_server.user_url) == [name]
    [label] = labels(own_admin).values()
    assert label == Label(socket.gethostname(), os.getpid(), process_label.program())
    assert LIFETIME - 60 < indexed(own_admin)[encoded(name)] <= LIFETIME
    keys = list(own_admin.scan_iter("headgate:{/index}:*"))
    assert len(keys) == 2
    assert all(0 < own_admin.pttl(key) <= LIFETIME * 1000 for key in keys)


async def test_the_timer_of_a_client_refreshes_again_and_again(
    name: str, own_server: Server, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "FIRST", 0.01)
    monkeypatch.setattr(index, "EVERY", 0.01)
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    permit = await limiter.acquire()  # a holder uses its name, with or without further calls
    for _ in range(2):
        await eventually(lambda: own_admin.zcard(NAMES))
        own_admin.delete(NAMES)
    await permit.arelease()


LIMITED = """
import asyncio, multiprocessing, sys, threading
from headgate import Limiter
def use():
    with Limiter(sys.argv[2], "100/minute", store=sys.argv[1]):
        pass
async def ause():
    async with Limiter(sys.argv[2], "100/minute", store=sys.argv[1]):
        pass
"""
WAYS = {
    "in a loop": "asyncio.run(ause())",
    "in a loop of a thread": "threading.Thread(target=asyncio.run, args=[ause()]).start()",
    "without a loop": "use()",
    "in a thread": "threading.Thread(target=use).start()",
    "in a child": (
        "child = multiprocessing.get_context('fork').Process(target=use)\n"
        "child.start(); child.join(); assert child.exitcode == 0"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_process_of_a_moment_is_in_the_index(way: str, name: str, own_server: Server) -> None:
    """As it ends, it names what it has used, in one call: such as a cron job of a second."""
    finished(LIMITED + WAYS[way], own_server.user_url, name)
    assert headgate.names(own_server.url) == [name]


def test_the_loops_of_one_process_name_a_limiter_once_a_minute(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    limiter = Limiter(name, "100/minute", store=own_server.url)
    for _ in range(2):
        asyncio.run(visit(limiter))
    own_admin.delete(NAMES)
    asyncio.run(visit(limiter))
    assert indexed(own_admin) == {}
    store_of(own_server.url)._named[encoded(name)] -= 60  # type: ignore[attr-defined]
    asyncio.run(visit(limiter))
    assert list(indexed(own_admin)) == [encoded(name)]


def test_a_loop_that_only_looks_names_nothing_as_it_ends(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Promise 10."""
    finished(LIMITED + WAYS["in a loop"], own_server.user_url, name)
    own_admin.delete(NAMES)
    asyncio.run(Limiter.attach(name, store=own_server.url).astatus())
    assert indexed(own_admin) == {}


async def test_a_silent_server_holds_the_end_of_a_loop_back_for_a_moment(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "LAST", 0.02)
    await visit(Limiter(name, "100/minute", store=own_server.url))
    own_server.pause()
    await soon(refresher_of(own_server.url).finish())
    own_server.resume()


async def test_hostile_names_come_back_as_they_are(own_server: Server) -> None:
    """S9: the list has each name once, with any characters in it."""
    for name in HOSTILE:
        await visit(Limiter(name, Concurrency(1), store=own_server.url)["a:{key}\n"])
        async with headgate.Semaphore(name, 1, store=own_server.url):  # no limiter of that name
            pass
    await refreshed(own_server.url)

    assert await headgate.anames(own_server.url) == sorted(HOSTILE)
    for name in HOSTILE:
        limiter = Limiter.attach(name, store=own_server.url)
        assert await headgate.akeys_of(limiter) == ["a:{key}\n"]


async def test_many_names_are_named_in_several_calls(own_server: Server) -> None:
    """The server is busy with one call of a refresh for a moment only."""
    names = [f"name-{number}" for number in range(MOST + 1)]
    await asyncio.gather(*(visit(Limiter(each, "9/s", store=own_server.url)) for each in names))
    await refreshed(own_server.url)
    assert headgate.names(own_server.url) == sorted(names)


async def test_a_refresh_keeps_the_calls_of_the_one_before(
    own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol_index, "MOST", 1)
    limiters = [Limiter(f"name-{n}", "9/s", store=own_server.url) for n in range(3)]
    for limiter in limiters[:2]:
        await visit(limiter)
    own_server.pause()
    refresher, last = refresher_of(own_server.url), limiters[2]
    refresher.refresh()
    caller = asyncio.create_task(visit(last))
    await eventually(lambda: calls_of(refresher._client, session_of(last)))
    refresher.refresh()
    own_server.resume()
    await soon(caller)
    await refreshed(own_server.url)
    assert headgate.names(own_server.url) == [limiter.name for limiter in limiters]


async def test_a_call_of_a_refresh_that_was_not_written_is_the_next_one_again(
    name: str, own_server: Server
) -> None:
    """H1: a signal handler raises before the client writes the call."""
    await visit(Limiter(name, "9/s", store=own_server.url))
    refresher = refresher_of(own_server.url)
    refresher.refresh()
    call = refresher.command()
    refresher.put_off()
    await refreshed(own_server.url)
    assert call is not None
    assert headgate.names(own_server.url) == [name]


async def test_a_process_that_only_looks_is_not_in_the_index(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Promise 10: an exporter that looks at all names keeps none alive, and an unknown name stays
    unknown.
    """
    user = client_of_its_own(own_server.url)
    store_of(user).topology.may_index = False  # type: ignore[attr-defined]  # the end of its client would name the limiter
    await visit(Limiter(name, Concurrency(1), store=user))
    looker = Limiter.attach(name, store=own_server.url)
    unknown = Limiter.attach(f"{name}-unknown", store=own_server.url)

    await looker.astatus()
    with pytest.raises(UnknownLimiterError):
        await unknown.astatus()
    await refreshed(own_server.url)
    assert headgate.names(own_server.url) == []
    assert headgate.keys_of(looker) == []
    assert headgate.longest_queues(own_server.url) == []
    assert (await read_members(store_of(own_server.url).topology, f"{name}-unknown")).holding == 0  # type: ignore[attr-defined]
    assert list(own_admin.scan_iter("headgate:{/index}:*")) == []
    assert list(own_admin.scan_iter("*unknown*")) == []


async def test_an_idle_process_leaves_the_index(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """A refresh names only what was used since the one before."""
    limiter = Limiter(name, "100/minute", store=own_server.url)
    await visit(limiter)
    await refreshed(own_server.url)
    own_admin.delete(NAMES)
    await refreshed(own_server.url)
    assert indexed(own_admin) == {}
    await visit(limiter)
    await refreshed(own_server.url)
    assert list(indexed(own_admin)) == [encoded(name)]


async def test_a_killed_process_leaves_the_index_by_itself(
    name: str, own_server: Server, own_admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name and its label expire. The refresh of any other process removes them, and without
    another process the keys end.
    """
    with running("indexed", own_server.url, name) as process:
        pid = int(await process.said())
        process.kill()
    assert [label.pid for label in labels(own_admin).values()] == [pid]
    assert indexed(own_admin)[encoded(name)] <= LIFETIME

    own_admin.zadd(NAMES, {encoded(name): own_admin.time()[0]})  # its time is over
    assert headgate.names(own_server.url) == []
    ServerClock(monkeypatch).forward(LIFETIME + 1)
    mine = f"{name}-of-mine"
    await visit(Limiter(mine, "100/minute", store=own_server.url))
    await refreshed(own_server.url)
    assert list(indexed(own_admin)) == [encoded(mine)]


async def test_each_event_loop_of_a_process_has_a_label(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    def in_another_loop() -> None:
        async def use() -> None:
            await visit(Limiter(name, "100/minute", store=own_server.url))
            await refreshed(own_server.url)

        asyncio.run(use())

    await visit(Limiter(name, "100/minute", store=own_server.url))
    await refreshed(own_server.url)
    await soon(asyncio.to_thread(in_another_loop))
    assert [label.pid for label in labels(own_admin).values()] == [os.getpid()] * 2
    assert headgate.names(own_server.url) == [name]
    # The loop of the thread has closed, and its client is gone with the next one.
    store_of(own_server.url).end_closed()  # type: ignore[attr-defined]
    assert list(store_of(own_server.url)._refreshers) == [asyncio.get_running_loop()]  # type: ignore[attr-defined]


async def test_threads_that_pass_at_once_are_in_the_index(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Their calls go over a connection of their own, past all sessions of loops."""
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    await visit(limiter)
    await refreshed(own_server.url)
    own_admin.delete(NAMES)

    permit = await soon(asyncio.to_thread(limiter.acquire_sync))
    await refreshed(own_server.url)
    assert list(indexed(own_admin)) == [encoded(name)]
    [holder] = (await read_members(store_of(own_server.url).topology, name)).holders  # type: ignore[attr-defined]
    assert holder.session_id.endswith(".0")
    assert holder.label is not None
    assert holder.label.pid == os.getpid()
    permit.release()


def test_a_child_of_a_fork_sends_nothing_for_its_parent(name: str, own_server: Server) -> None:
    """The child is in the index when it uses the store itself."""
    assert finished("fork_indexed", own_server.url, name).splitlines() == [
        "child sends None",
        "child 0",
        "index has True",
    ]


# No caller notices it -----------------------------------------------------------------------------


async def test_the_index_adds_no_call_to_acquires(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """One call for each acquire, as without an index, and two for a refresh of one name."""
    limiter = Limiter(name, "1000000/minute", store=own_server.url)
    await visit(limiter)
    own_admin.config_resetstat()
    for _ in range(500):
        await limiter.acquire()
    assert commands_of(own_admin)["fcall"] == 500
    await refreshed(own_server.url)
    assert commands_of(own_admin)["fcall"] == 502


@pytest.mark.parametrize(
    ("host", "program"),
    [("worker-07.eu", "celery"), ("production-7d9f8b6c5d-x2k4q-", "a-long-program")],
    ids=["usual", "longest"],
)
def test_a_label_takes_less_than_100_bytes(
    own_server: Server, own_admin: Redis, host: str, program: str
) -> None:
    """Of an event loop, however many there are, with the keys. 4,194,304 is the highest process id
    of Linux.
    """
    own_admin.function_load(library().text.decode())
    for first, last in ((0, 10), (10, 100), (100, 1000), (1000, 4000)):
        pipeline = own_admin.pipeline(transaction=False)
        for number in range(first, last):
            call = write_label(secrets.token_hex(16), Label(host, 4_194_304 - number, program))
            pipeline.execute_command("FCALL", library().index.function, *call.words)
        pipeline.execute()
        total = sum(own_admin.memory_usage(key, samples=0) or 0 for key in LABELS)
        assert len(labels(own_admin)) == last
        assert total / last < 100, f"{total / last} bytes for each of {last}"


async def test_a_label_stays_in_the_key_that_got_it(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Given a full first key, then the label is in the next one, and its refreshes go there."""
    own_admin.zadd(LABELS[0], {f"{number}": 2**40 for number in range(120)})
    limiter = Limiter(name, "100/minute", store=own_server.user_url)
    for _ in range(2):
        await visit(limiter)
        await refreshed(own_server.user_url)
        assert [own_admin.zcard(key) for key in LABELS[:3]] == [120, 1, 0]
        own_admin.delete(LABELS[0])
        own_admin.zadd(LABELS[0], {f"{number}": 2**40 for number in range(120)})
    own_admin.delete(LABELS[0])
    await visit(limiter)
    await refreshed(own_server.user_url)
    assert [own_admin.zcard(key) for key in LABELS[:3]] == [0, 1, 0]


async def test_without_the_right_to_its_keys_acquires_work_and_one_call_is_refused(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Each refusal is a line of the ACL LOG."""
    own_admin.acl_setuser(
        "guest",
        enabled=True,
        nopass=True,
        keys=[f"headgate:{{{name}}}*"],
        channels=["*"],
        categories=["+@all"],
    )
    url = own_server.url.replace("redis://", "redis://guest:x@")
    limiter = Limiter(name, Concurrency(1), store=url)
    for _ in range(3):
        await visit(limiter)
        await refreshed(url)
    assert [entry["count"] for entry in own_admin.acl_log()] == [1]
    async with limiter:
        [holder] = (await read_members(store_of(url).topology, name)).holders  # type: ignore[attr-defined]
    assert holder.label is None
    with pytest.raises(headgate.StoreError, match=r"headgate\.names\(\): .*no permission"):
        await headgate.anames(url)


async def test_a_server_that_is_away_costs_callers_nothing(
    name: str,
    own_server: Server,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """L5: a refresh that fails is no outage: it logs nothing, and later calls are retried."""
    monkeypatch.setattr(index, "RETRY_PERIOD", 0.05)
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    await visit(limiter)
    own_server.kill()
    refresher = refresher_of(own_server.url)
    refresher.refresh()
    client = refresher._client
    await eventually(lambda: not (client.sending.has_backlog or calls_of(client, refresher)))
    assert not store_of(own_server.url).away(f"headgate:{{{name}}}")  # type: ignore[attr-defined]

    new = Limiter(f"{name}-new", "9/s", store=own_server.url)
    caller = asyncio.create_task(enter(new))
    await eventually(lambda: calls_of(client, session_of(new)))
    own_server.start()
    assert await soon(caller)
    assert caplog.messages == []


async def test_the_end_of_a_loop_waits_for_no_refresh(name: str, own_server: Server) -> None:
    """A silent server would hold it back for a second, and the end of the process for five."""
    await visit(Limiter(name, "100/minute", store=own_server.url))
    refresher = refresher_of(own_server.url)
    client = refresher._client
    own_server.pause()
    refresher.refresh()
    await eventually(lambda: calls_of(client, refresher))
    assert not client.retry_backlog()
    assert client.lifecycle.keeper.unsent(client) == []
    own_server.resume()


async def test_a_store_that_is_dropped_leaves_no_refresh_behind(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: the timer of the next refresh keeps nothing alive."""
    monkeypatch.setattr(index, "FIRST", 3600.0)
    store = client_of_its_own(own_server.url)
    await visit(Limiter(name, "100/minute", store=store))
    refresher = ref(refresher_of(store))
    assert refresher() is not None
    del store
    await eventually(lambda: gc.collect() and refresher() is None)


# The holders and waiters of a name ----------------------------------------------------------------


async def test_holders_and_waiters_are_listed_with_their_processes(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Each with its cost; a holder with the rest of its lease, and a waiter with its place."""
    limits = Concurrency(3, lease=20), headgate.Rate(1000, per=1, unit="tokens")
    limiter = Limiter(name, *limits, store=own_server.url)
    permit = await limiter.acquire(permits=3, tokens=7)
    waiters = [asyncio.create_task(enter(limiter, permits=cost)) for cost in (1, 2)]
    await waiting(limiter, 2)
    await refreshed(own_server.url)

    found = await read_members(store_of(own_server.url).topology, name)  # type: ignore[attr-defined]
    assert (found.holding, found.waiting) == (1, 2)
    [holder] = found.holders
    assert holder.units == {"permits": 3, "tokens": 7}
    assert 0 < holder.lease_left <= 20
    assert [waiter.units for waiter in found.waiters] == [{"permits": 1}, {"permits": 2}]
    assert [waiter.position for waiter in found.waiters] == [0, 1]
    assert all(waiter.alive_for and 0 < waiter.alive_for <= 10 for waiter in found.waiters)
    session = session_of(limiter).machine.numbering.session_id
    for member in (holder, *found.waiters):
        assert member.session_id == session
        assert member.label is not None
        assert member.label.pid == os.getpid()
    assert headgate.longest_queues(own_server.url) == [headgate.QueueLength(name, None, 2)]

    await permit.arelease()
    for waiter in waiters:
        await (await soon(waiter)).arelease()


async def lives_beside(
    limiter: Limiter, url: str, sessions: Callable[[str], dict[str, int]], admin: Redis
) -> list[float | None]:
    """How long each waiter counts as alive, after `sessions` of the waiter's session are written.
    There is one waiter.
    """
    permit = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    its_session = session_of(limiter).machine.numbering.session_id
    admin.zadd(f"headgate:{{{limiter.name}}}:who", sessions(its_session))
    found = await read_members(store_of(url).topology, limiter.name)  # type: ignore[attr-defined]
    await permit.arelease()
    await (await soon(waiter)).arelease()
    return [each.alive_for for each in found.waiters]


async def test_a_silent_waiter_is_listed_without_a_life(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """Its session has expired, and no call has removed it yet."""
    limiter, url = Limiter(name, Concurrency(1), store=own_server.url), own_server.url
    assert await lives_beside(limiter, url, lambda its: {its: 1}, own_admin) == [None]


async def test_a_living_waiter_is_listed_as_alive_beside_thousands_of_sessions(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    limiter, url = Limiter(name, Concurrency(1), store=own_server.url), own_server.url
    seconds, _ = own_admin.time()
    others = {f"other-{number}.1": seconds * 1_000_000 for number in range(6000)}
    (life,) = await lives_beside(limiter, url, lambda _: others, own_admin)
    assert life is not None


# Keys ---------------------------------------------------------------------------------------------


async def test_the_keys_of_a_limiter_need_a_right_of_their_own(
    name: str, own_server: Server
) -> None:
    limiter = Limiter(name, "100/minute", store=own_server.user_url)
    await visit(limiter["b"])
    with pytest.raises(headgate.StoreError, match=r"keys_of\(\): .*scan"):
        await headgate.akeys_of(limiter)
    own_server.admin.acl_setuser("headgate", enabled=True, commands=["+scan"])
    assert await headgate.akeys_of(limiter) == ["b"]


def test_a_thread_may_ask_for_all_of_it(name: str, own_server: Server) -> None:
    limiter = Limiter(name, "100/minute", store=own_server.url)
    limiter["b"].acquire_sync()
    limiter["a"].acquire_sync()
    assert headgate.keys_of(limiter) == ["a", "b"]
    assert headgate.longest_queues(own_server.url) == []
    assert headgate.names(own_server.url) == []  # it has used the name for less than some seconds


Asking = Callable[[str], object]


@pytest.mark.parametrize("ask", [headgate.names, headgate.longest_queues])
def test_a_server_that_is_not_there_is_an_error(ask: Asking, own_server: Server) -> None:
    own_server.kill()
    with pytest.raises(headgate.StoreError) as refused:
        ask(own_server.url)
    assert refused.value.reason == "refused"
    assert threading.active_count() < 100
