"""Holders, waiters and newcomers while the server goes and comes back: `on_store_error` from end to
end.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, LeaseLostError, Limiter, StoreError, Waiting, log_writer
from headgate.internals import queue_of, store_of
from headgate.stores import fallback
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.store import RedisStore
from tests.faults.absence import (
    FAULTS,
    TOKENS,
    WAYS,
    by_task,
    by_thread,
    forbidden,
    found,
    inside,
    killed,
    local,
    opened,
)
from tests.faults.scene import Room, elsewhere, enter, eventually
from tests.machine import scaled
from tests.servers import Server
from tests.world import at_rest, held, soon, waiting

pytestmark = pytest.mark.usefixtures("hurried")
Doors = Callable[[Limiter], Any]
each_fault = pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[pytest.mark.proof] * (fault is not killed)) for fault in FAULTS],
)


# There and back -----------------------------------------------------------------------------------


@pytest.mark.proof
async def test_tasks_leave_by_the_store_that_granted_them_when_the_server_goes_and_comes(
    name: str, own_server: Server
) -> None:
    """S1, S4, S7: tasks enter at the server, without it, and at the server again. They leave in any
    order, and all permits are free.
    """
    limiter, room = local(name, own_server, Concurrency(4, lease=scaled(1.5))), Room()
    other = elsewhere(name, Concurrency(4, lease=scaled(1.5)), url=own_server.url)
    doors = [asyncio.Event() for _ in range(6)]

    async def two(first: int) -> list[asyncio.Task[None]]:
        visits = [
            asyncio.create_task(inside(limiter, door, room)) for door in doors[first : first + 2]
        ]
        await eventually(lambda: room.visits == first + 2)
        return visits

    visits = await two(0)
    own_server.kill()
    visits += await two(2)
    assert not await soon(limiter.atry_acquire())
    own_server.start()
    await found(limiter)
    visits += await two(4)
    assert held(await other.astatus()) == 2

    for visit, left in ((2, 2), (5, 1)):
        doors[visit].set()
        await soon(visits[visit])
        assert held(await soon(limiter.astatus())) == left
    for door in doors:
        door.set()
    await soon(asyncio.gather(*visits))

    await at_rest(other)
    own_server.kill()
    assert held(await soon(limiter.astatus())) == 0


async def test_a_nested_block_without_the_server_releases_no_permit_of_the_outer_block(
    name: str, own_server: Server
) -> None:
    """S1: given a block that holds a permit of the server, when a nested block passes without the
    server, then it releases only its own.
    """
    limiter = opened(name, own_server, Concurrency(1))
    async with limiter:
        with forbidden(own_server):
            async with limiter:
                pass
        assert held(await limiter.astatus()) == 1
    await at_rest(limiter)


@pytest.mark.proof
async def test_threads_leave_by_the_store_that_granted_them(name: str, own_server: Server) -> None:
    """S4, S7: given a thread that entered before the outage, one during it and one after, then they
    leave in order of arrival.
    """
    limiter = local(name, own_server, Concurrency(2, lease=scaled(1.5)))
    other = elsewhere(name, Concurrency(2, lease=scaled(1.5)), url=own_server.url)
    doors, entered = [threading.Event() for _ in range(3)], []

    def visit(number: int) -> None:
        with limiter:
            entered.append(number)
            doors[number].wait()

    async def one_more() -> asyncio.Task[None]:
        number = len(entered)
        task = asyncio.create_task(asyncio.to_thread(visit, number))
        await eventually(lambda: len(entered) > number)
        return task

    visits = [await one_more()]
    own_server.kill()
    visits.append(await one_more())
    own_server.start()
    await found(limiter)
    visits.append(await one_more())

    assert held(await soon(other.astatus())) == 1
    for door, visit_of in zip(doors, visits, strict=True):
        door.set()
        await soon(visit_of)
    await at_rest(other)
    own_server.kill()
    assert held(await soon(limiter.astatus())) == 0


@pytest.mark.parametrize("door", ["block", pytest.param("acquire", marks=pytest.mark.proof)])
async def test_a_watched_block_leaves_by_the_store_that_granted_it(
    name: str, own_server: Server, door: str
) -> None:
    """S1, S2, S7: given on_lost="cancel", then a permit of the server is lost with it, and one of
    the share is not. All are free at the end.
    """
    limiter = local(name, own_server, Concurrency(2, lease=scaled(1.5)), on_lost="cancel")
    came, leave = [], asyncio.Event()

    async def stay() -> None:
        async with limiter if door == "block" else limiter.acquire():
            came.append(await limiter.astatus())
            await leave.wait()

    early = asyncio.create_task(stay())
    await eventually(lambda: len(came) == 1)
    own_server.kill()
    late = asyncio.create_task(stay())
    with pytest.raises(LeaseLostError):
        await soon(early)
    await eventually(lambda: len(came) == 2)
    assert not await soon(limiter.atry_acquire())
    leave.set()
    await soon(late)

    assert [held(status) for status in came] == [1, 1]
    assert held(await soon(limiter.astatus())) == 0


async def test_a_waiter_for_the_share_gets_a_permit_of_the_share_though_the_server_is_back(
    name: str, own_server: Server
) -> None:
    """S1, S6, L2: newcomers go to the server. A caller that waits for the share goes on to wait for
    a permit of the share.
    """
    limiter = local(name, own_server, Concurrency(2))
    other = elsewhere(name, Concurrency(2), url=own_server.url)
    own_server.kill()
    holder = await soon(limiter.acquire())
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    own_server.start()
    await found(limiter)

    shared = [await soon(limiter.acquire()) for _ in range(2)]
    assert held(await soon(other.astatus())) == 2
    assert not waiter.done()
    for permit in shared:
        assert await permit.arelease()
    assert not waiter.done()

    assert await holder.arelease()
    assert await (await soon(waiter)).arelease()
    assert held(await soon(other.astatus())) == 0


async def test_a_store_that_is_known_to_be_away_is_not_asked(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a store that knows that it is away, when a caller acquires, then it goes without the
    store at once. Later callers use the store again.
    """
    limiter = elsewhere(name, Concurrency(2), url=redis_url, on_store_error="local", processes=2)
    with monkeypatch.context() as while_away:
        while_away.setattr(RedisStore, "away", lambda self, key: True)
        while_away.setattr(RedisStore, "session", None)
        while_away.setattr(RedisStore, "fast_path", None)
        for ask in WAYS:
            permit = await soon(ask(limiter))
            assert permit.fence == 0
            assert not await soon(limiter.atry_acquire())
            permit.release()
        assert (await limiter.astatus()).limits[0].capacity == 1
        assert "at present without it" in repr(limiter)

    permit = await soon(limiter.acquire())
    assert permit.fence > 0
    assert await permit.arelease()
    assert "at present" not in repr(limiter)


# Servers that are there and refuse ----------------------------------------------------------------


@each_fault
async def test_calls_use_the_share_in_any_fault_of_the_server_and_go_back_afterwards(
    name: str, own_server: Server, fault: Doors
) -> None:
    """S1, S7, F29, F32, F36, F42: calls use the share while the fault lasts. Afterwards the
    server's limits hold, and no permit is missing.
    """
    limits = Concurrency(4, lease=scaled(1.5)), TOKENS
    limiter = local(name, own_server, *limits, retry_for=1)
    other = elsewhere(name, *limits, url=own_server.url)
    before = await soon(limiter.acquire(tokens=1))
    with fault(own_server):
        room = Room()

        async def visit() -> None:
            async with limiter.acquire(tokens=1):
                with room:
                    await asyncio.sleep(0)

        await soon(asyncio.gather(*(visit() for _ in range(10))))
        assert room.most == 2

    await found(limiter)
    before.release()
    after = [await soon(limiter.acquire()) for _ in range(4)]
    assert [permit.fence > 0 for permit in after] == [True] * 4
    assert not await soon(other.atry_acquire())
    for permit in after:
        assert await permit.arelease()
    await at_rest(other)


@pytest.mark.parametrize("ask", [by_task, pytest.param(by_thread, marks=pytest.mark.proof)])
async def test_on_wait_is_called_once_for_a_caller_that_has_to_queue_twice(
    name: str, own_server: Server, ask: Doors
) -> None:
    """Given callers that wait at the server, when the server goes and the share has no room either,
    then `on_wait` is not called again.
    """
    logged: list[Waiting] = []
    limiter = local(name, own_server, Concurrency(2), on_wait=logged.append, retry_for=1)
    other = elsewhere(name, Concurrency(2), url=own_server.url)
    holders = [await soon(other.acquire()) for _ in range(2)]
    waiters = [asyncio.create_task(ask(limiter)) for _ in range(2)]
    await eventually(lambda: len(logged) == 2)

    own_server.kill()
    first = await soon(next(asyncio.as_completed(waiters)))
    await waiting(limiter, 1)
    first.release()
    for permit in [*holders, *await soon(asyncio.gather(*waiters))]:
        permit.release()

    assert len(logged) == 2


@each_fault
async def test_any_fault_of_the_server_is_an_error_by_default(
    name: str, own_server: Server, fault: Doors
) -> None:
    """Promise 8: no caller passes without the server unless its limiter allows that."""
    limiter = elsewhere(name, Concurrency(4), url=own_server.url, retry_for=1)
    (await soon(limiter.acquire())).release()
    assert type(queue_of(limiter)) is RedisQueue  # by default there is no fallback queue before it
    with fault(own_server):
        answers = await soon(
            asyncio.gather(*(ask(limiter) for ask in WAYS), return_exceptions=True)
        )
        assert [type(answer) for answer in answers] == [StoreError] * len(WAYS)


# New limits ---------------------------------------------------------------------------------------


async def test_new_limits_are_divided_as_well(name: str, own_server: Server) -> None:
    """S1, L2: given a waiter for the share, when the limits are raised, then the share is raised at
    once, and is lowered in the same way.
    """
    limiter = local(name, own_server, Concurrency(2))
    own_server.kill()
    first = await soon(limiter.acquire())
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    limiter.update(Concurrency(4))
    second = await soon(waiter)
    assert not await soon(limiter.atry_acquire())
    with pytest.raises(ValueError, match="less than one for each"):
        limiter.update(Concurrency(1))
    assert (await soon(limiter.astatus())).limits[0].capacity == 2

    first.release()
    second.release()


async def test_limits_that_another_process_declared_are_divided_here(
    name: str, own_server: Server
) -> None:
    """S1: the last declaration wins, without the server too. When it leaves no share, no caller
    passes.
    """
    limiter = local(name, own_server, Concurrency(8))
    async with limiter:
        pass
    for capacity in (2, 1):
        await (
            await soon(elsewhere(name, Concurrency(capacity), url=own_server.url).acquire())
        ).arelease()
        async with limiter:
            pass  # the process learns of it

        with forbidden(own_server):
            if capacity == 2:
                async with limiter:
                    assert not await soon(limiter.atry_acquire())
            else:
                with pytest.raises(StoreError, match="less than one for each") as refused:
                    await soon(limiter.acquire())
                assert isinstance(refused.value.__cause__, StoreError)


async def test_updates_back_and_forth_are_not_logged_as_a_disagreement(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """S1: given updates to other limits and back, by this process or by others, then the share
    follows. No log line blames the program.
    """
    caplog.set_level(logging.WARNING, "headgate")
    limiter = local(name, own_server, Concurrency(2))
    for capacity in (4, 2, 4, 2, 6):
        await limiter.aupdate(Concurrency(capacity))
    assert logged(caplog, own_server) == []

    for capacity in (2, 8, 4):
        await elsewhere(name, Concurrency(2), url=own_server.url).aupdate(Concurrency(capacity))
        async with limiter:
            pass  # the process learns of it
        with forbidden(own_server):
            (await soon(limiter.acquire())).release()
            assert (await soon(limiter.astatus())).limits[0].capacity == capacity / 2


async def test_keys_work_at_the_server_under_limits_that_leave_no_share(
    name: str, own_server: Server
) -> None:
    """S1: given limits of another process that leave no share, then keys work while the server is
    there. Without the server no caller passes.
    """
    limiter = local(name, own_server, Concurrency(8), processes=4)
    async with limiter:
        pass
    await elsewhere(name, Concurrency(2), url=own_server.url).aupdate(Concurrency(2))
    async with limiter:
        pass  # the process learns of it

    tenant = limiter["tenant"]
    async with tenant:
        pass
    with forbidden(own_server), pytest.raises(StoreError, match="less than one for each"):
        await soon(tenant.acquire())
    with pytest.raises(ValueError, match="less than one for each"):
        local(name, own_server, Concurrency(2), processes=4)


# The log ------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture, server: Server) -> list[str]:
    """The lines that headgate has logged of `server`. The server of an earlier test may answer
    again only now.
    """
    assert log_writer.flush()
    return [message for message in caplog.messages if f"127.0.0.1:{server.port}/" in message]


@pytest.mark.proof
async def test_the_log_has_one_line_when_an_outage_begins_and_one_when_it_ends(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each call, nor for each key; with the name, the store, the mode and the cause."""
    monkeypatch.setattr(fallback, "CALM", 0.0)
    caplog.set_level(logging.WARNING, "headgate")
    limiter = local(name, own_server, Concurrency(2))
    for _ in range(2):
        caplog.clear()
        own_server.kill()
        for one in (limiter, limiter["a"], limiter["b"], limiter):
            (await soon(one.acquire())).release()
        begun = logged(caplog, own_server)
        own_server.start()
        await found(limiter)
        for one in (limiter["a"], limiter, limiter["b"]):
            (await soon(one.acquire())).release()

        words = (name, f"127.0.0.1:{own_server.port}", "on_store_error='local'", "cannot be asked")
        assert [[word in message for word in words] for message in begun] == [[True] * 4]
        (ended,) = logged(caplog, own_server)[1:]
        assert "is back at its store" in ended
        assert name in ended


async def test_a_flapping_store_does_not_fill_the_log(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """S9: the store takes a call and refuses the next, by turns. The log says it once."""
    caplog.set_level(logging.WARNING, "headgate")
    limiter = opened(name, own_server, Concurrency(2))
    for _ in range(5):
        with forbidden(own_server):
            assert not (await soon(limiter.acquire())).held
        (await soon(limiter.acquire())).release()
    assert len(logged(caplog, own_server)) == 1


async def test_limiters_made_for_each_request_share_the_log_lines_of_an_outage(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: an outage and its end are not logged again for each request. Another name, and another
    mode, have lines of their own.
    """
    monkeypatch.setattr(fallback, "CALM", 0.0)
    monkeypatch.setattr(fallback, "MOST", 3)
    caplog.set_level(logging.WARNING, "headgate")
    store = Redis.from_url(own_server.url)

    async def request(of: str = name, **options: Any) -> None:
        (
            await soon(
                Limiter(
                    of, TOKENS, store=store, **(options or {"on_store_error": "open"})
                ).acquire()
            )
        ).release()

    own_server.kill()
    for _ in range(5):
        await request()
    assert len(logged(caplog, own_server)) == 1
    await request(on_store_error="local", processes=2)
    await request(f"{name}2")
    assert len(logged(caplog, own_server)) == 3

    own_server.start()
    await found(Limiter(name, TOKENS, store=store, on_store_error="open"))
    for _ in range(5):
        await request()
    assert len(logged(caplog, own_server)) == 4
    assert "is back at its store" in logged(caplog, own_server)[3]

    for number in range(9):
        await request(f"{name}3.{number}")
    assert len(fallback._absences[store_of(Limiter(name, TOKENS, store=store))]) <= 3  # type: ignore[index]  # the store behind it


async def test_a_password_is_in_no_message(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    url = own_server.url.replace("redis://", "redis://guest:canary@")
    limiter = Limiter(name, TOKENS, store=url, on_store_error="local", processes=2)
    for server_is in ("strict", "gone"):
        with pytest.raises(StoreError) as refused:
            await soon(limiter.acquire(tokens=501))
        said = [
            str(refused.value),
            str(refused.value.__cause__),
            repr(limiter),
            *logged(caplog, own_server),
        ]
        assert [text for text in said if "canary" in text] == [], server_is
        own_server.kill()
    assert len(logged(caplog, own_server)) == 1
