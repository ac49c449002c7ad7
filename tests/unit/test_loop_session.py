"""A session in its event loop, with a client that a test looks into instead of a server.

The client says at each call of `counts` what happens in the middle of the call's writing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate import Concurrency, StoreError
from headgate.closing import Closing
from headgate.gate.compile import Declaration, rules_of
from headgate.request import Request
from headgate.stores.redis.limit_sync import LimitSync
from headgate.stores.redis.protocol.operations import Caller, Release
from headgate.stores.redis.protocol.replies import OtherReplyError
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.traffic import IN_FLIGHT
from headgate.stores.redis.session.whole_pause import WholePause
from headgate.stores.redis.transport.client import Client
from tests.world import soon

SLOTS = Declaration(rules_of([Concurrency(1, lease=30)]))
RELEASE = Release(Caller("s", 9, "-"))


class Place(str):
    several = False  # it is no Cluster


class Stub:
    """A client: it notes the requests of the session."""

    topology, of_portal, closed, here = Place("a server"), False, False, True

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()
        self.asked: list[LoopSession] = []  # sessions that have something to send
        self.listening: list[LoopSession] = []
        self.attempts: list[int] = []
        self.during: Callable[[], object] = lambda: None  # runs while a call is written
        self.availability = SimpleNamespace(
            backlog=SimpleNamespace(add=lambda session, attempt: self.attempts.append(attempt)),
            note_outage=lambda session, error: None,  # no other session is there to know it
        )
        self.sending = SimpleNamespace(ready=self.asked.append, check_flush=lambda: None)
        self.subscriptions = SimpleNamespace(listen=self.listening.append, notifies=self.notifies)

    def new_session_id(self) -> str:
        return "s"

    def notifies(self, session: LoopSession) -> bool:
        during, self.during = self.during, lambda: None
        during()
        return False


class Home:
    """The queue of the session, and its other sessions: there is one loop."""

    name, key, limits, issuer = "k", "k", LimitSync("k", SLOTS), None
    whole, pause = None, WholePause()  # it is no key

    @property
    def routing(self) -> Home:
        return self

    def leave_closed(self) -> None:
        """No loop is closed."""


@pytest.fixture
async def client() -> Stub:
    return Stub()


@pytest.fixture
async def session(client: Stub) -> LoopSession:
    Home.limits = LimitSync("k", SLOTS)
    return LoopSession(cast(Client, client), cast(Any, Home()))


def request(max_sleep: float | None = None) -> Request:
    most = None if max_sleep is None else round(max_sleep * 1_000_000)
    return Request({}, most, None, None, None, True, Closing("k"))


def reply(session: LoopSession, verdict: str) -> None:
    numbers = session.machine.numbering
    session.answered(f"{numbers.session_id} {numbers.call} {verdict}".encode())


async def begun(session: LoopSession, max_sleep: float | None = None) -> asyncio.Task[Any]:
    task = asyncio.create_task(session.acquire(request(max_sleep)))
    await asyncio.sleep(0)
    return task


async def test_a_release_in_the_middle_of_a_calls_writing_makes_no_second_call(
    session: LoopSession, client: Stub
) -> None:
    """S3: a signal handler or a finalizer releases there. One call at a time is in flight."""
    task = await begun(session)
    client.during = lambda: session.run([RELEASE])

    first = session.command()

    assert (client.asked, session.traffic.state) == ([session], IN_FLIGHT)
    assert session.traffic.sent is not None
    assert session.traffic.sent.command is first
    reply(session, "ok 7 0 0 done 1 1 0 grant 1 0 0 |")
    (await soon(task)).held = False  # no queue is there to get it back


async def test_an_exception_in_the_middle_of_a_calls_writing_loses_no_call(
    session: LoopSession, client: Stub
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    task = await begun(session)
    client.during = interrupt
    with pytest.raises(KeyboardInterrupt):
        session.command()

    session.run([RELEASE])

    assert client.asked == [session, session]
    session.command()
    reply(session, "ok 7 0 0 done 1 1 0 grant 1 0 0 |")
    (await soon(task)).held = False  # no queue is there to get it back


async def test_the_exception_of_a_signal_handler_does_not_stop_the_timer(
    session: LoopSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7: the leases are renewed, and the callers wake up, after it."""
    task = await begun(session, max_sleep=5.0)
    on_time = session.machine.on_time

    def interrupt(now: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.machine, "on_time", interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.on_time()

    assert session._timer is not None
    monkeypatch.setattr(session.machine, "on_time", on_time)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_only_a_session_with_waiters_receives_notifications(
    session: LoopSession, client: Stub
) -> None:
    """A caller whose call is in flight may be granted at once."""
    task = await begun(session)
    session.command()
    session.on_time()
    assert client.listening == []

    reply(session, "ok 7 0 0 wait 1 0 0 |")

    assert client.listening == [session]
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_caller_with_a_max_sleep_gets_its_permit_after_a_wait(session: LoopSession) -> None:
    task = await begun(session, max_sleep=60.0)
    session.command()
    reply(session, "ok 7 0 0 wait 1 0 0 |")

    session.on_notification(f"{session.machine.numbering.session_id} 8 -1 1 1 0 0 30000000")

    permit = await soon(task)
    assert permit.held
    permit.held = False  # no queue is there to get it back
    assert session.machine.deadlines._deadlines == []


async def test_offers_to_a_server_without_sensible_replies_come_less_and_less_often(
    session: LoopSession, client: Stub
) -> None:
    session.run([RELEASE])
    for _ in range(3):
        session.command()
        with pytest.raises(OtherReplyError):
            session.answered(b"other 99 ok 7 0 0 |")
        session.failed(StoreError("no sense"))
        session.poll()

    assert client.attempts == [1, 2, 3]


async def test_a_session_whose_renewal_is_planned_is_idle_once_nothing_is_held(
    session: LoopSession,
) -> None:
    task = await begun(session)
    session.command()
    reply(session, "ok 7 0 0 grant 1 0 0 |")
    (await soon(task)).held = False  # no queue is there to get it back
    session.machine.renewal.moment = 1e9

    assert session.machine.idle


async def test_a_caller_that_ends_in_another_thread_keeps_its_deadline_until_the_loop_ends_it(
    session: LoopSession, client: Stub
) -> None:
    """The deadlines belong to the loop's thread."""
    coroutine = session.acquire(request(max_sleep=60.0))
    coroutine.send(None)
    session.command()
    reply(session, "ok 7 0 0 wait 1 0 0 |")
    client.here = False

    thread = threading.Thread(target=coroutine.close)
    thread.start()
    thread.join()
    client.here = True
    assert len(session.machine.deadlines._deadlines) == 1
    await asyncio.sleep(0)

    assert session.machine.deadlines._deadlines == []
    assert session.traffic.operations
