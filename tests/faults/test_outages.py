"""A store that the process has reached before and that is away: how long an acquire looks for it,
and the lines in the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Permit, StoreError, log_writer
from headgate.stores.redis.transport import outages, reconnection
from tests.faults.scene import elsewhere, eventually, once_back, visit
from tests.servers import Server
from tests.world import at_rest, soon, waiting

Ask = Callable[[Limiter], Coroutine[Any, Any, Permit]]


async def by_task(limiter: Limiter) -> Permit:
    return await limiter.acquire()


async def by_thread(limiter: Limiter) -> Permit:
    return await asyncio.to_thread(limiter.acquire_sync)


WAYS = pytest.mark.parametrize("ask", [by_task, by_thread])


def test_a_new_event_loop_retries_a_store_that_this_process_has_reached(
    name: str, own_server: Server
) -> None:
    """Each job of the process runs in an `asyncio.run` of its own."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=60)
    asyncio.run(visit(limiter))
    own_server.kill()

    async def acquire_during_the_restart() -> None:
        waits = asyncio.create_task(visit(limiter))
        for _ in range(3):  # the first attempt fails
            await asyncio.to_thread(int)
        await asyncio.to_thread(own_server.start)
        await soon(waits)

    asyncio.run(acquire_during_the_restart())


def test_a_new_event_loop_makes_one_attempt_without_retries(name: str, own_server: Server) -> None:
    """`retry_for=0` ends no attempt to connect, although the process has reached the store."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)
    for _ in range(2):
        asyncio.run(visit(limiter))


def test_a_new_event_loop_does_not_retry_a_store_whose_outage_is_known(
    name: str, own_server: Server
) -> None:
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=60)
    asyncio.run(visit(limiter))
    own_server.kill()
    with pytest.raises(StoreError):
        asyncio.run(visit(Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)))

    with pytest.raises(StoreError):
        asyncio.run(soon(visit(limiter)))


# For how long -------------------------------------------------------------------------------------


@WAYS
async def test_an_acquire_that_does_not_retry_fails_while_others_wait_for_the_server(
    name: str, own_server: Server, ask: Ask
) -> None:
    """Given a server that was there and is gone, then `retry_for=0` fails, and 10 seconds suffice
    until it is back.
    """
    patient = Limiter(f"{name}-patient", Concurrency(1), store=own_server.url)
    hasty = Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)
    for limiter in (patient, hasty, hasty["key"]):
        await soon(visit(limiter))
        await asyncio.to_thread(limiter.status)
    own_server.kill()
    waits = asyncio.create_task(ask(patient))

    for limiter in (hasty, hasty["key"]):
        with pytest.raises(StoreError):
            await soon(ask(limiter))

    assert not waits.done()
    own_server.start()
    (await waits).release()
    await once_back(lambda: visit(hasty))


async def test_each_caller_of_a_name_retries_for_its_own_retry_for(
    name: str, own_server: Server
) -> None:
    patient = Limiter(name, Concurrency(2), store=own_server.url)
    hasty = Limiter(name, Concurrency(2), store=own_server.url, retry_for=0)
    await soon(visit(patient))
    own_server.kill()
    waits = asyncio.create_task(patient.acquire())

    with pytest.raises(StoreError):
        await soon(hasty.acquire())

    assert not waits.done()
    own_server.start()
    (await waits).release()
    await at_rest(patient)


@WAYS
async def test_an_acquire_can_retry_for_longer(
    name: str, own_server: Server, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given one acquire that looks for the server as long as usual, and fails, then another one
    that looks longer finds it again.
    """
    usual = elsewhere(f"{name}-usual", Concurrency(1), url=own_server.url)
    patient = Limiter(name, Concurrency(1), store=own_server.url, retry_for=60)
    for limiter in (usual, patient):
        await soon(visit(limiter))
        await asyncio.to_thread(limiter.status)
    own_server.kill()
    waits = asyncio.create_task(ask(patient))

    with monkeypatch.context() as usually, pytest.raises(StoreError):
        usually.setattr(reconnection, "OUTAGE", 0.2)
        await soon(ask(usual))

    own_server.start()
    (await soon(waits)).release()
    await at_rest(patient)


async def test_a_waiter_that_retries_for_longer_waits_on_when_the_server_is_back(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten all, so the waiter is the first in the queue."""
    usual = elsewhere(f"{name}-usual", Concurrency(1), url=own_server.url)
    patient = Limiter(name, Concurrency(1), store=own_server.url, retry_for=60)
    await soon(visit(usual))
    held = await patient.acquire()
    waits = asyncio.create_task(patient.acquire())
    await waiting(patient, 1)
    own_server.kill()

    with monkeypatch.context() as usually, pytest.raises(StoreError):
        usually.setattr(reconnection, "OUTAGE", 0.2)
        await soon(usual.acquire())
    assert not waits.done()

    own_server.start()
    held.release()
    (await soon(waits)).release()
    await at_rest(patient)


# The log ------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture, port: int) -> list[str]:
    """The lines that headgate has logged of the server at `port`. An outage of an earlier test may
    end only now.
    """
    assert log_writer.flush()
    messages = [record.getMessage() for record in caplog.records]
    return [message for message in messages if f"The Redis server at 127.0.0.1:{port}/" in message]


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says sooner that a server that answers is back."""
    monkeypatch.setattr(outages, "CALM", 0.05)


@pytest.mark.parametrize("ask", [by_thread, pytest.param(by_task, marks=pytest.mark.proof)])
@pytest.mark.usefixtures("calm")
async def test_an_outage_is_logged_when_it_begins_and_when_it_ends(
    name: str, own_server: Server, ask: Ask, caplog: pytest.LogCaptureFixture
) -> None:
    """Once each, though several limiters, keys, tasks and threads find it out."""
    limiters = [
        Limiter(f"{name}-{number}", Concurrency(1), store=own_server.url, retry_for=0)
        for number in range(3)
    ]
    limiters.append(limiters[0]["key"])
    for limiter in limiters:
        await soon(visit(limiter))
        await asyncio.to_thread(limiter.status)
    own_server.kill()
    for limiter in limiters:
        for way in (ask, by_task, by_thread):
            with pytest.raises(StoreError):
                await soon(way(limiter))

    (said,) = logged(caplog, own_server.port)
    assert said.startswith(f"The Redis server at 127.0.0.1:{own_server.port}/0 cannot be asked")
    assert said.endswith("Acquires raise StoreError until it answers again.")
    assert {record.levelno for record in caplog.records} == {logging.WARNING}

    own_server.start()
    for limiter in limiters:
        await once_back(lambda limiter=limiter: visit(limiter))
    await eventually(lambda: len(logged(caplog, own_server.port)) == 2)
    assert (
        f"The Redis server at 127.0.0.1:{own_server.port}/0 answers again, after "
        in logged(caplog, own_server.port)[1]
    )


@pytest.mark.usefixtures("calm")
async def test_a_server_that_refuses_all_calls_is_not_back(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """D9: given a server without memory, then its refusals are no end of the outage."""
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)
    await soon(visit(limiter))
    own_server.admin.config_set("maxmemory", 1)
    for _ in range(3):
        with pytest.raises(StoreError):
            await soon(limiter.acquire())
        await asyncio.sleep(2 * outages.CALM)
    assert len(logged(caplog, own_server.port)) == 1

    own_server.admin.config_set("maxmemory", 0)
    await once_back(lambda: visit(limiter))
    await eventually(lambda: len(logged(caplog, own_server.port)) == 2)


@pytest.mark.usefixtures("calm")
async def test_each_outage_is_logged(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)
    for number in range(1, 3):
        await once_back(lambda: visit(limiter))
        await eventually(
            lambda number=number: len(logged(caplog, own_server.port)) == 2 * (number - 1)
        )
        own_server.kill()
        with pytest.raises(StoreError):
            await soon(limiter.acquire())
        assert len(logged(caplog, own_server.port)) == 2 * number - 1
        own_server.start()


async def test_a_server_that_fails_again_at_once_is_not_logged_twice(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flapping server does not fill the log."""
    monkeypatch.setattr(outages, "CALM", 60.0)
    limiter = Limiter(name, Concurrency(1), store=own_server.url, retry_for=0)
    for _ in range(3):
        await once_back(lambda: visit(limiter))
        own_server.kill()
        with pytest.raises(StoreError):
            await soon(limiter.acquire())
        own_server.start()

    assert len(logged(caplog, own_server.port)) == 1


@pytest.mark.usefixtures("calm")
async def test_a_server_that_was_never_there_is_logged_once(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter(name, Concurrency(1), store=f"redis://127.0.0.1:1?client_name={name}")
    for way in (by_task, by_thread, by_task):
        with pytest.raises(StoreError):
            await soon(way(limiter))

    assert len(logged(caplog, 1)) == 1


async def test_the_log_of_an_acquire_that_passes_without_the_store_does_not_say_that_it_raises(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = Limiter(
        name, Concurrency(1), store=own_server.url, on_store_error="open", retry_for=0
    )
    await soon(visit(limiter))
    own_server.kill()

    await soon(visit(limiter))

    (said,) = logged(caplog, own_server.port)
    assert "goes without its store" in said
    assert "raise StoreError" not in said
