"""Each acquire is counted once, under its name and outcome."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    QueueFullError,
    Rate,
    Semaphore,
    StoreError,
)
from headgate.events import Granted
from headgate.hooks import add_hook, remove_hook
from headgate.log_writer import flush
from headgate.stores.memory import acquires as memory_acquires
from headgate.stores.redis.session import loop_session
from headgate.telemetry import reading
from tests.faults.scene import enter, visit
from tests.servers import Server, dead_port
from tests.telemetry.conftest import acquires, outcomes
from tests.world import World, at_rest, told, waiting

# At once ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [Concurrency(2), Rate(1000, per=1)], ids=["slots", "rate"])
@told
async def test_each_way_of_a_task_that_passes_at_once_is_counted(
    world: World, limit: Concurrency | Rate
) -> None:
    limiter = world.limiter(limit)
    for _ in range(3):
        async with limiter:
            pass
    (await limiter.acquire()).release()
    async with limiter.acquire():
        pass
    permit = await limiter.atry_acquire()
    assert permit
    permit.release()
    assert outcomes(world.name) == {"passed": 6}


@pytest.mark.parametrize("limit", [Concurrency(2), Rate(1000, per=1)], ids=["slots", "rate"])
def test_each_way_of_a_thread_that_passes_at_once_is_counted(
    store: object, name: str, limit: Concurrency | Rate
) -> None:
    limiter = Limiter(name, limit, store=store)
    for _ in range(3):
        with limiter:
            pass
    limiter.acquire_sync().release()
    with limiter.acquire():
        pass
    permit = limiter.try_acquire()
    assert permit
    permit.release()
    assert outcomes(name) == {"passed": 6}


def test_a_limiter_that_was_in_use_before_the_switch_is_counted_from_then_on(name: str) -> None:
    limiter = Limiter(name, Concurrency(2))
    reading.switch_off()
    with limiter:
        pass
    reading.switch_on()
    before = outcomes(name).get("passed", 0)
    with limiter:
        pass
    assert outcomes(name)["passed"] == before + 1


def test_the_counts_outlive_changes_of_the_limits(name: str) -> None:
    limiter = Limiter(name, Concurrency(2))
    for limits in ("2 concurrent", "3 concurrent", "9/second burst 9", "4 concurrent"):
        limiter.update(limits)
        with limiter:
            pass
    assert outcomes(name) == {"passed": 4}


def test_the_counts_of_threads_add_up(name: str) -> None:
    limiter = Limiter(name, Concurrency(100))

    def work() -> None:
        for _ in range(2000):
            with limiter:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes(name) == {"passed": 8000}


# Waits and refusals -------------------------------------------------------------------------------


@told
async def test_acquires_that_queue_are_counted_with_their_waits(world: World) -> None:
    """Three callers wait for one permit, each a beat longer than the one before."""
    limiter = world.limiter(Concurrency(1))

    async def hold() -> None:
        async with limiter:
            await world.sleep(world.beat)

    await asyncio.gather(*(hold() for _ in range(4)))
    await at_rest(limiter)

    assert outcomes(world.name) == {"passed": 1, "waited": 3}
    waits = acquires(world.name).waits["waited"]
    assert sum(waits.counts) == 3
    assert waits.sum >= (1 + 2 + 3) * world.beat * 0.99


@told
async def test_a_wait_is_counted_from_the_moment_at_which_its_caller_came(world: World) -> None:
    """In memory the first step that sees the waiter is a `status`, long after its coming."""
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        await world.sleep(20 * world.beat)  # meanwhile no step looks at the clock
    async with limiter:
        waiter = asyncio.ensure_future(visit(limiter))
        await world.sleep(5 * world.beat)
        await limiter.astatus()
    await waiter
    assert 4.5 * world.beat <= acquires(world.name).waits["waited"].sum < 15 * world.beat


@told
async def test_the_wait_behind_other_waiters_begins_when_its_caller_came(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        first = asyncio.ensure_future(visit(limiter))
        await waiting(limiter, 1)
        await world.sleep(20 * world.beat)
        second = asyncio.ensure_future(visit(limiter))
        await world.sleep(5 * world.beat)
    await asyncio.gather(first, second)
    assert 29 * world.beat <= acquires(world.name).waits["waited"].sum < 40 * world.beat


@told
async def test_callers_behind_a_rate_wait_for_their_moments(world: World) -> None:
    """They ask together, so the server decides about all three at one moment."""
    limiter = world.limiter(Rate(1, per=world.beat))

    async def enter() -> None:
        async with limiter:
            pass

    await asyncio.gather(*(enter() for _ in range(3)))
    assert outcomes(world.name) == {"passed": 1, "waited": 2}
    assert acquires(world.name).waits["waited"].sum >= 1.5 * world.beat


@told
async def test_each_refusal_has_its_own_outcome(world: World) -> None:
    limiter = world.limiter(Concurrency(1), max_waiters=0)
    free = world.limiter(Concurrency(1))
    async with limiter:
        assert not await limiter.atry_acquire()
        with pytest.raises(MaxSleepExceededError):
            await free.acquire(max_sleep=0)
        with pytest.raises(QueueFullError):
            await limiter.acquire()
        assert outcomes(world.name) == {
            "passed": 1,
            "not_now": 1,
            "too_long": 1,
            "queue_full": 1,
        }


@told
async def test_a_cost_above_the_capacity_is_counted_as_never(world: World) -> None:
    limiter = world.limiter(Concurrency(2))
    with pytest.raises(CostExceedsCapacityError):
        await limiter.acquire(permits=3)
    with pytest.raises(CostExceedsCapacityError):
        await limiter.atry_acquire(permits=3)
    assert outcomes(world.name) == {"never": 2}


@told
async def test_a_waiter_that_can_never_pass_any_more_is_counted_as_never(world: World) -> None:
    limiter = world.limiter(Concurrency(2))
    async with limiter.acquire(permits=2):
        waiter = asyncio.ensure_future(limiter.acquire(permits=2).__aenter__())
        await waiting(limiter, 1)
        await limiter.aupdate(Concurrency(1))
        with pytest.raises(CostExceedsCapacityError):
            await waiter
    assert outcomes(world.name) == {"passed": 1, "never": 1}


@told
async def test_a_cancelled_waiter_is_counted_with_its_wait(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        waiter = asyncio.ensure_future(limiter.acquire().__aenter__())
        await waiting(limiter, 1)
        await world.sleep(world.beat)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    assert outcomes(world.name) == {"passed": 1, "cancelled": 1}
    assert acquires(world.name).waits["cancelled"].sum >= world.beat


@told
async def test_a_local_waiter_that_is_cancelled_is_counted(world: World) -> None:
    """It waits for a permit in a plain block, outside the gate's queue."""
    limiter = world.limiter(Concurrency(1))

    async def enter() -> None:
        async with limiter:
            pass

    async with limiter:
        waiter = asyncio.ensure_future(enter())
        await waiting(limiter, 1)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    assert outcomes(world.name) == {"passed": 1, "cancelled": 1}


# A store that is away -----------------------------------------------------------------------------


def test_acquires_without_the_store_say_how_they_went_on(own_server: Server, name: str) -> None:
    """Given a server that is killed, then calls fail, pass or keep to the share, as they chose."""
    kinds = {"raise": {}, "open": {}, "local": {"processes": 2}}
    limiters = {
        mode: Limiter(
            f"{name}-{mode}",
            Concurrency(4),
            store=own_server.url,
            on_store_error=mode,  # type: ignore[arg-type]  # a literal
            retry_for=0,
            **options,
        )
        for mode, options in kinds.items()
    }
    for limiter in limiters.values():
        with limiter:
            pass
    own_server.kill()

    with pytest.raises(StoreError), limiters["raise"]:
        pass
    for mode in ("open", "local"):
        with limiters[mode]:
            pass

    assert outcomes(f"{name}-raise") == {"passed": 1, "store_error": 1}
    assert outcomes(f"{name}-open") == {"passed": 1, "unlimited": 1}
    assert outcomes(f"{name}-local") == {"passed": 1, "local": 1}


async def test_the_cost_of_grants_by_a_share_counts_from_the_beginning(name: str) -> None:
    """Given a store that is away when the program starts, its grants have a row and a cost."""
    limiter = Limiter(
        name,
        "100 tokens/minute",
        store=f"redis://127.0.0.1:{dead_port()}",
        on_store_error="local",
        processes=2,
    )
    for _ in range(3):
        async with limiter.acquire(tokens=10) as permit:
            permit.settle(tokens=4)

    (found,) = (each for each in reading.read_acquires() if each.name == name)

    assert found.outcomes["local"] == 3
    assert (found.cost["tokens"], found.returned["tokens"]) == (30, 18)


async def test_a_wait_for_a_share_of_the_limits_is_local(own_server: Server, name: str) -> None:
    """An acquire that passes at once there has no wait."""
    options: dict[str, Any] = {"on_store_error": "local", "processes": 2, "retry_for": 0}
    limiter = Limiter(name, Concurrency(2), store=own_server.url, **options)
    (await limiter.acquire()).release()
    own_server.kill()
    events: list[Any] = []
    add_hook(events.append)
    try:
        permit = await limiter.acquire()
        assert acquires(name).waits == {}
        waiter = asyncio.create_task(enter(limiter))
        await waiting(limiter, 1)
        permit.release()
        (await waiter).release()
        assert await asyncio.to_thread(flush)
    finally:
        remove_hook(events.append)

    waits = acquires(name).waits
    assert {outcome: sum(times.counts) for outcome, times in waits.items()} == {"local": 1}
    assert outcomes(name) == {"passed": 1, "local": 2}
    assert [event.local for event in events if isinstance(event, Granted)] == [True]


# Costs --------------------------------------------------------------------------------------------


@told
async def test_costs_count_what_was_granted_and_what_settlements_change(world: World) -> None:
    limiter = world.limiter("1000/second burst 1000", "10k tokens/second burst 10k")
    async with limiter.acquire(tokens=900) as permit:
        permit.settle(tokens=1000)
    async with limiter.acquire(2, tokens=500) as permit:
        permit.settle(tokens=200)
    async with limiter:
        pass
    found = acquires(world.name)
    assert found.cost == {"requests": 4, "tokens": 1500}
    assert found.returned == {"tokens": 300}


# Names --------------------------------------------------------------------------------------------


def test_keys_share_the_counts_of_the_name_unless_they_have_a_label(
    store: object, name: str
) -> None:
    reading.switch_on(lambda name, key: "big" if key.startswith("big") else None)
    limiter = Limiter(name, Concurrency(2), store=store)
    for key in ("big-1", "big-2", "small"):
        with limiter[key]:
            pass
    assert outcomes(name) == {"passed": 1}
    assert outcomes(name, "big") == {"passed": 2}


def test_a_name_has_no_more_labels_than_its_share(name: str) -> None:
    reading.switch_on(lambda name, key: key)
    limiter = Limiter(name, Concurrency(2))
    for number in range(103):
        with limiter[str(number)]:
            pass
    assert outcomes(name, "99") == {"passed": 1}
    assert outcomes(name, "other") == {"passed": 3}


def test_a_label_function_that_raises_harms_no_acquire(name: str) -> None:
    def label(name: str, key: str) -> str:
        raise KeyError(key)

    reading.switch_on(label)
    with Limiter(name, Concurrency(2))["k"]:
        pass
    assert outcomes(name, "other") == {"passed": 1}


@pytest.mark.parametrize("label", [5, ["a"], b"k"], ids=repr)
def test_a_label_that_is_no_text_counts_as_other(name: str, label: object) -> None:
    reading.switch_on(cast(Any, lambda name, key: label))
    with Limiter(name, Concurrency(2))["k"]:
        pass
    assert outcomes(name, "other") == {"passed": 1}


def test_a_label_that_utf_8_cannot_write_has_an_escape(name: str) -> None:
    reading.switch_on(lambda name, key: "\ud800")
    with Limiter(name, Concurrency(2))["k"]:
        pass
    assert outcomes(name, "\\ud800") == {"passed": 1}


@told
async def test_an_acquire_that_fails_after_its_grant_is_counted_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler may raise while the permit is made."""
    limiter = world.limiter(Concurrency(1), Rate(1000, per=1, unit="tokens"))

    def interrupted(*values: object) -> None:
        raise KeyboardInterrupt

    place = memory_acquires if world.in_memory else loop_session
    monkeypatch.setattr(place, "Permit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        await limiter.acquire(tokens=2)
    assert sum(outcomes(world.name).values()) == 1


def test_a_classic_is_counted_under_its_kind_and_name(name: str) -> None:
    with Semaphore(name, 2):
        pass
    assert outcomes(f"Semaphore/{name}") == {"passed": 1}
