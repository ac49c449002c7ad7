"""The hooks get each event, in a thread of their own, and can do no harm."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from dataclasses import replace
from typing import Any, cast

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError, log_writer
from headgate.http.adoption import ONLY_LOWER, Adoption
from headgate.http.feedback import HEED_AT_MOST, Feedback
from headgate.http.rate_limit_headers import read
from headgate.http.redirects import depart
from headgate.stores.redis import RedisStore
from headgate.stores.redis.transport.outages import Outages
from headgate.stores.registry import store_of
from headgate.telemetry import (
    Granted,
    LeaseLost,
    LimitsChanged,
    Paused,
    Refused,
    Released,
    ResponseActedOn,
    Resumed,
    StoreAway,
    StoreBack,
    StoreCalled,
    add_hook,
    reading,
    remove_hook,
)
from tests.faults.scene import keys_of
from tests.processes import finished
from tests.servers import Server
from tests.telemetry.conftest import Events, acquires
from tests.world import World, renew_now, session_of, told, until, waiting

USER: contextvars.ContextVar[str] = contextvars.ContextVar("USER")
NOWHERE = contextvars.Context()


# Acquires -----------------------------------------------------------------------------------------


@told
async def test_a_grant_after_a_wait_is_an_event_with_its_cost_and_context(
    world: World, events: Events
) -> None:
    limiter = world.limiter(Concurrency(1), Rate(1000, per=1, unit="tokens"))

    async def ask() -> None:
        USER.set("ada")
        async with limiter.acquire(tokens=5):
            pass

    async with limiter:
        waiter = asyncio.ensure_future(ask())
        await waiting(limiter, 1)
        await world.sleep(world.beat)
    await waiter

    [found] = events.of(world.name)
    assert isinstance(found, Granted)
    assert (found.limiter, found.key, found.cost) == (world.name, None, {"tokens": 5})
    assert found.waited >= world.beat * 0.9
    assert found.context[USER] == "ada"


@told
async def test_a_refusal_is_an_event_with_its_reason(world: World, events: Events) -> None:
    limiter = world.limiter(Concurrency(1))["k"]
    async with limiter:
        assert not await limiter.atry_acquire()
    assert events.of(world.name) == [Refused(world.name, "k", "not_now", 0.0)]


@told
async def test_the_time_of_held_permits_is_an_event_if_a_program_asks_for_it(
    world: World, events: Events
) -> None:
    reading.switch_on(use_time=True)
    limiter = world.limiter(Concurrency(2))
    async with limiter:
        await world.sleep(world.beat)
    permit = await limiter.acquire()
    permit.release()
    permit.release()
    async with limiter.acquire():
        pass

    found = [each.held for each in events.of(world.name) if isinstance(each, Released)]
    assert len(found) == 3
    assert sum(acquires(world.name).held.counts) == 3
    assert acquires(world.name).held.sum == pytest.approx(sum(found))


@told
async def test_a_second_exporter_that_needs_no_times_leaves_the_first_its_own(
    world: World,
) -> None:
    reading.switch_on(use_time=True)
    reading.switch_on()
    async with world.limiter(Concurrency(2)):
        pass
    assert sum(acquires(world.name).held.counts) == 1


@told
async def test_a_permit_of_a_rate_has_no_time(world: World, events: Events) -> None:
    reading.switch_on(use_time=True)
    async with world.limiter(Rate(1000, per=1)):
        pass
    assert events.of(world.name) == []


@told
async def test_a_hook_gets_the_waits_of_blocks_without_any_exporter(
    world: World, events: Events
) -> None:
    reading.switch_off()
    limiter = world.limiter(Concurrency(1))

    async def enter() -> None:
        async with limiter:
            pass

    async with limiter:
        waiter, leaver = (asyncio.ensure_future(enter()) for _ in range(2))
        await waiting(limiter, 2)
        leaver.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaver
    await waiter
    assert sorted(type(each).__name__ for each in events.of(world.name)) == ["Granted", "Refused"]


# Changes ------------------------------------------------------------------------------------------


@told
async def test_changes_of_this_process_are_events(world: World, events: Events) -> None:
    limiter = world.limiter(Concurrency(2))
    async with limiter:
        limiter.pause(30)
        await limiter.aresume()
        await limiter.aupdate(Concurrency(3))
    words = "3 permits held at once for 30 s each"
    assert events.of(world.name) == [
        Paused(world.name, None, 30.0, "caller"),
        Resumed(world.name, None),
        LimitsChanged(world.name, None, words, "update"),
    ]
    assert acquires(world.name).pauses == {"caller": 1}


OTHER_PROCESS = """
import sys
from headgate import Concurrency, Limiter
limiter = Limiter(sys.argv[1], Concurrency(2), store=sys.argv[2])
limiter.update(Concurrency(3))
limiter.pause(30)
"""


def test_a_pause_and_an_update_of_another_process_are_events_of_the_fleet(
    redis_url: str, name: str, events: Events
) -> None:
    limiter = Limiter(name, Concurrency(2), store=redis_url)
    with limiter:
        pass
    finished(OTHER_PROCESS, name, redis_url)

    assert not limiter.try_acquire()

    changed, paused, refused = events.of(name)
    words = "3 permits held at once for 30 s each"
    assert changed == LimitsChanged(name, None, words, "fleet")
    assert isinstance(paused, Paused)
    assert (paused.reason, paused.seconds) == ("fleet", pytest.approx(30, abs=10))
    assert isinstance(refused, Refused)
    assert acquires(name).pauses == {}  # the other process counts it


@told
async def test_a_services_answer_is_an_event_and_pauses_by_the_server(
    world: World, events: Events
) -> None:
    limiter = world.limiter("100/minute")
    permit = await limiter.acquire()

    Feedback().apply([(limiter, permit)], depart("host"), 429, {"retry-after": "7"})

    assert events.of(world.name) == [
        Paused(world.name, None, 7.0, "server"),
        ResponseActedOn(world.name, None, 429, "throttled", "pause"),
    ]
    assert acquires(world.name).refusals == {(429, "throttled"): 1}
    assert acquires(world.name).pauses == {"server": 1}


@told
async def test_an_adopted_limit_and_a_drain_are_events(world: World, events: Events) -> None:
    limiter = world.limiter("100/minute")
    permit = await limiter.acquire()
    headers = {"x-ratelimit-limit": "60", "x-ratelimit-remaining": "12"}

    Feedback(HEED_AT_MOST, Adoption(ONLY_LOWER, HEED_AT_MOST)).apply(
        [(limiter, permit)], depart("host"), 200, headers
    )

    found = [(type(each), getattr(each, "action", "")) for each in events.of(world.name)]
    assert found == [(LimitsChanged, ""), (ResponseActedOn, "adopt"), (ResponseActedOn, "drain")]


@told
async def test_a_limit_adopted_before_the_first_acquire_has_that_reason_too(
    world: World, events: Events
) -> None:
    """The answer to a call of another limiter may come first."""
    limiter = world.limiter("100/minute")

    Adoption(ONLY_LOWER, HEED_AT_MOST).apply(limiter, 200, read(200, {"x-ratelimit-limit": "60"}))

    (changed,) = events.of(world.name)
    assert isinstance(changed, LimitsChanged)
    assert changed.reason == "adopted"


# Leases and stores --------------------------------------------------------------------------------


def test_a_lost_lease_is_an_event_and_counted(
    redis_url: str, admin_url: str, name: str, events: Events
) -> None:
    async def lose() -> int:
        limiter = Limiter(name, Concurrency(2), store=redis_url)
        permit = await limiter.acquire()
        with Redis.from_url(admin_url) as admin:
            admin.delete(*keys_of(admin, name))
        renew_now(session_of(limiter))
        await until(lambda status: permit.lost, limiter)
        permit.release()
        return permit.fence

    fence = asyncio.run(lose())
    assert events.of(name) == [LeaseLost(name, None, fence)]
    assert acquires(name).lost == 1


def test_a_store_that_goes_and_comes_back_is_two_events(
    own_server: Server, name: str, events: Events
) -> None:
    limiter = Limiter(name, Concurrency(2), store=own_server.url, retry_for=0)

    async def outage() -> None:
        async with limiter:
            pass
        own_server.kill()
        with pytest.raises(StoreError):
            await limiter.acquire()
        [state] = [each for each in reading.read_stores() if str(own_server.port) in each.name]
        assert not state.available
        own_server.start()
        async with asyncio.timeout(30):
            while not any(isinstance(each, StoreBack) for each in events.all):
                with_or_without = await asyncio.gather(limiter.acquire(), return_exceptions=True)
                [each.release() for each in with_or_without if hasattr(each, "release")]
                await asyncio.sleep(0.02)

    asyncio.run(outage())
    kinds = [type(each) for each in events.all if isinstance(each, (StoreAway, StoreBack))]
    assert kinds == [StoreAway, StoreBack]


async def test_the_name_of_a_server_of_a_cluster_is_no_part_of_a_sentence(events: Events) -> None:
    part = "10.0.0.2:7000"
    Outages("Cluster at 10.0.0.1:7000").begins(part, StoreError("store", "refused"))
    assert log_writer.flush()
    (away,) = (each for each in events.all if isinstance(each, StoreAway))
    assert away.store == "10.0.0.2:7000, Cluster at 10.0.0.1:7000"


def test_calls_to_a_server_are_timed(own_server: Server, name: str) -> None:
    found: list[Any] = []
    add_hook(found.append)
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    with limiter:
        pass
    limiter.flush()  # the release is a call of its own
    assert log_writer.flush()
    remove_hook(found.append)

    [state] = [each for each in reading.read_stores() if str(own_server.port) in each.name]
    [((server, error), times)] = state.calls.items()
    assert (server, error) == (f"127.0.0.1:{own_server.port}", "")
    calls = [each for each in found if isinstance(each, StoreCalled) and each.server == server]
    assert sum(times.counts) == len(calls) >= 1
    assert times.sum == pytest.approx(sum(each.seconds for each in calls))


def test_a_call_whose_script_the_server_lacked_has_no_error(own_server: Server, name: str) -> None:
    """The second acquire of a thread goes by the fast path: first the hash of a script, then its
    text. That is one call.
    """
    store = store_of(own_server.url)
    assert isinstance(store, RedisStore)
    store.topology.may_use_functions = False
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    for _ in range(2):
        with limiter:
            pass
    assert {error for _, error in store.calls()} == {""}


def test_a_call_of_a_thread_whose_connection_is_cut_has_an_error(
    own_server: Server, name: str
) -> None:
    """As that of a task. It is sent again, and that call has none."""
    store = store_of(own_server.url)
    assert isinstance(store, RedisStore)
    limiter = Limiter(name, Rate(10, per=1), store=own_server.url)
    for _ in range(2):
        with limiter:
            pass
    with Redis.from_url(own_server.url) as client:
        client.client_kill_filter(_type="normal", skipme=True)
    with limiter:
        pass
    assert len([error for _, error in store.calls() if error]) == 1


# Hooks --------------------------------------------------------------------------------------------


def test_a_hook_runs_in_the_thread_of_the_log(name: str) -> None:
    threads: list[str] = []

    def hook(event: object) -> None:
        threads.append(threading.current_thread().name)

    add_hook(hook)
    Limiter(name, Concurrency(1)).pause(0.001)
    assert log_writer.flush()
    remove_hook(hook)
    assert threads == ["headgate-log"]


def test_a_hook_that_raises_stops_neither_the_caller_nor_the_next_event(
    name: str, events: Events, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(event: object) -> None:
        raise KeyError("of the hook")

    add_hook(broken)
    limiter = Limiter(name, Concurrency(1))
    limiter.pause(30)
    limiter.resume()
    with limiter:
        pass
    assert [type(each) for each in events.of(name)] == [Paused, Resumed]
    remove_hook(broken)
    assert capfd.readouterr().err.count("KeyError: 'of the hook'") == 2


def test_a_hook_that_was_removed_gets_no_more_events(name: str, events: Events) -> None:
    found: list[object] = []
    add_hook(found.append)
    limiter = Limiter(name, Concurrency(1))
    limiter.pause(30)
    assert log_writer.flush()
    remove_hook(found.append)
    limiter.resume()
    assert len(events.of(name)) == 2
    assert len(found) == 1


def test_only_a_function_can_be_a_hook() -> None:
    with pytest.raises(TypeError, match=r"add_hook\('print'\): a hook is a function"):
        add_hook(cast(Any, "print"))
    with pytest.raises(ValueError, match="it is no hook"):
        remove_hook(print)


# Log lines ----------------------------------------------------------------------------------------


def test_a_pause_is_logged_once_a_minute_for_each_name(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headgate")
    for each, seconds in ((name, 30), (name, 30), (f"{name}-2", 86_400)):
        Limiter(each, Concurrency(1)).pause(seconds)
    assert log_writer.flush()
    lines = [
        (record.headgate_event, record.headgate_name, record.getMessage())  # type: ignore[attr-defined]  # of `extra`
        for record in caplog.records
        if name in record.getMessage()
    ]
    assert lines == [
        ("paused", name, f"limiter '{name}' is paused for 30 s."),
        ("paused", f"{name}-2", f"limiter '{name}-2' is paused for 24.0 h."),
    ]


def test_events_compare_by_their_values() -> None:
    one = Granted("a", None, 1.0, {}, NOWHERE)
    assert one == replace(one, context=contextvars.copy_context())
    assert one != replace(one, waited=2.0)
