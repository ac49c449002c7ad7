"""An acquire declares the limits of its limiter, and an update sets them. Nothing else changes the
limits of a fleet.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import ref

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    Rate,
    Semaphore,
    UnknownLimiterError,
    Window,
    log_writer,
)
from tests.faults.scene import client_of_its_own
from tests.world import HOUR, World, at_rest, declare, soon, told, until, used, waiting

FLEET, OTHER = Window(20, per=HOUR), Window(2, per=HOUR)


async def enter(limiter: Limiter) -> None:
    async with limiter:
        pass


async def acquire(limiter: Limiter) -> None:
    (await limiter.acquire()).release()


async def try_once(limiter: Limiter) -> None:
    assert await limiter.atry_acquire()


async def enter_an_acquire(limiter: Limiter) -> None:
    async with limiter.acquire():
        pass


async def call(limiter: Limiter) -> None:
    @limiter
    async def called() -> None:
        pass

    await called()


def run_in_a_thread(work: Callable[[], object]) -> None:
    """The loop stands still meanwhile. Otherwise virtual time jumps to the next time-out."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(work).result()


async def in_a_thread(limiter: Limiter) -> None:
    def visit() -> None:
        with limiter:
            pass

    run_in_a_thread(visit)


async def update(limiter: Limiter) -> None:
    await limiter.aupdate(OTHER)


ASKS = pytest.mark.parametrize(
    "ask", [enter, acquire, try_once, enter_an_acquire, call, update], ids=lambda ask: ask.__name__
)
Act = Callable[[Limiter], Awaitable[Any]]


async def look(limiter: Limiter) -> None:
    await limiter.astatus()


async def look_in_a_thread(limiter: Limiter) -> None:
    run_in_a_thread(limiter.status)


async def show(limiter: Limiter) -> None:
    repr(limiter)


async def pause(limiter: Limiter) -> None:
    await limiter.apause(0.001)


async def resume(limiter: Limiter) -> None:
    await limiter.aresume()


async def drain(limiter: Limiter) -> None:
    limiter.drain(requests=19)
    await limiter.astatus()


async def take_a_key(limiter: Limiter) -> None:
    await limiter["k"].astatus()


async def give_up(limiter: Limiter) -> None:
    limiter.acquire().close()


LOOKS = [look, look_in_a_thread, show, pause, resume, drain, take_a_key, give_up]


async def limits_of(world: World) -> list[Any]:
    return [
        limit.limit
        for limit in (await soon(Limiter.attach(world.name, store=world.store).astatus())).limits
    ]


# Declaring ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("act", LOOKS, ids=lambda act: act.__name__)
@told
async def test_only_an_acquire_or_an_update_changes_the_limits_of_the_fleet(
    world: World, act: Act
) -> None:
    """H2: given a fleet of 20 an hour, when a limiter of 2 an hour looks, pauses or drains, then 20
    an hour still hold.
    """
    fleet = world.limiter(FLEET)
    await soon(declare(fleet))

    await soon(act(world.limiter(OTHER)))

    assert await limits_of(world) == [FLEET]
    await until(lambda status: status.paused == 0.0, fleet)
    assert await fleet.atry_acquire()


@pytest.mark.parametrize("act", LOOKS, ids=lambda act: act.__name__)
@told
async def test_an_update_holds_when_other_limiters_look_at_the_name(world: World, act: Act) -> None:
    fleet = world.limiter(FLEET)
    await soon(fleet.aupdate(Window(30, per=HOUR)))

    await soon(act(world.limiter(OTHER)))

    assert await limits_of(world) == [Window(30, per=HOUR)]


@ASKS
@told
async def test_the_first_acquire_declares(world: World, ask: Act) -> None:
    """Given limiters that are made one after the other, then the one that acquires declares, and
    the last acquire wins.
    """
    former, later = world.limiter(FLEET), world.limiter(OTHER)
    await soon(declare(former))
    assert await limits_of(world) == [FLEET]

    await soon(ask(later))

    assert await limits_of(world) == [OTHER]
    assert (await soon(former.astatus())).limits[0].limit == OTHER


@told
async def test_a_constructor_declares_nothing(world: World) -> None:
    """Given a limiter that acquires, when others of its name are made, then it goes on under its
    own limits.
    """
    limiter = world.limiter(Window(3, per=HOUR))
    assert await limiter.atry_acquire()
    others = [world.limiter(Window(number, per=HOUR)) for number in (1, 2)]

    assert [bool(await limiter.atry_acquire()) for _ in range(3)] == [True, True, False]
    assert len(others) == 2


@told
async def test_limits_of_a_limiter_that_never_acquires_leave_no_trace(world: World) -> None:
    """T9: given a limiter of 10 that never acquires, when another of 1000 does, then 999 are
    left.
    """
    small, large = (world.limiter(Rate(amount, per=1000 * HOUR)) for amount in (10, 1000))
    await soon(small.astatus())

    await soon(declare(large))

    assert used(await soon(large.astatus())) == [1]


@told
async def test_only_the_first_acquire_of_a_limiter_declares(world: World) -> None:
    former, later = world.limiter(FLEET), world.limiter(Window(10, per=HOUR))
    for limiter in (former, later, former):
        await soon(declare(limiter))

    assert await limits_of(world) == [Window(10, per=HOUR)]


def test_a_thread_declares_too(store: object, name: str) -> None:
    former, later = Limiter(name, FLEET, store=store), Limiter(name, OTHER, store=store)
    for limiter in (former, later):
        with limiter:
            pass

    assert Limiter.attach(name, store=store).status().limits[0].limit == OTHER
    assert not former.try_acquire()


@told
async def test_the_classics_declare_when_they_are_entered(world: World) -> None:
    first = Semaphore(world.name, 3, **world.place)
    async with first:
        second = Semaphore(world.name, 1, **world.place)
        async with first, first:
            pass
    async with second:
        pass

    assert "of 1" in repr(second) or not world.in_memory


# Limiters that disagree in one process ------------------------------------------------------------


@ASKS
@told
async def test_the_first_acquire_of_the_limiter_that_was_made_first_declares_too(
    world: World, ask: Act
) -> None:
    """Given limiters that disagree, when the later one acquires first, then the first acquire of
    the other declares.
    """
    former, later = world.limiter(OTHER), world.limiter(FLEET)
    await soon(declare(later))

    await soon(ask(former))

    assert await limits_of(world) == [OTHER]


@told
async def test_ten_limiters_of_one_name_declare_in_the_order_of_their_first_acquires(
    world: World,
) -> None:
    limiters = [world.limiter(Window(100 + number, per=HOUR)) for number in range(10)]

    for number in (3, 0, 9, 1, 2, 8, 7, 6, 5, 4):
        await soon(declare(limiters[number]))
        assert await limits_of(world) == [Window(100 + number, per=HOUR)]
    for limiter in limiters:
        await soon(declare(limiter))
    assert await limits_of(world) == [Window(104, per=HOUR)]


@told
async def test_a_key_declares_the_limits_of_the_limiter_that_it_is_taken_from(world: World) -> None:
    former, later = world.limiter(OTHER), world.limiter(FLEET)
    for limiter in (later, former):
        await soon(declare(limiter["k"]))

    assert (await soon(Limiter.attach(world.name, store=world.store)["k"].astatus())).limits[
        0
    ].limit == OTHER


@told
async def test_an_update_before_the_first_acquire_overrules_the_limits_of_its_limiter(
    world: World,
) -> None:
    """It also counts as the first acquire, so later declarations of others hold."""
    limiter = world.limiter(FLEET)
    await soon(limiter.aupdate(Window(30, per=HOUR)))
    for each in (limiter, world.limiter(FLEET)):
        await soon(declare(each))
        assert await limits_of(world) == [Window(30, per=HOUR)]


@told
async def test_after_an_update_a_limiter_declares_nothing(world: World) -> None:
    limiter, later = world.limiter(FLEET), world.limiter(OTHER)
    await soon(limiter.aupdate(Window(30, per=HOUR)))
    await soon(declare(later))

    await soon(limiter.atry_acquire())

    assert await limits_of(world) == [OTHER]


@pytest.mark.parametrize("first", [0, 1])
@told
async def test_limits_that_are_new_to_the_name_replace_an_update(world: World, first: int) -> None:
    """It does not matter which limiter was made first: a constructor declares nothing."""
    limiters = [world.limiter(FLEET), world.limiter(OTHER)]
    updated, new = limiters[first], limiters[1 - first]
    await soon(updated.aupdate(Window(30, per=HOUR)))

    await soon(declare(new))

    assert await limits_of(world) == [(FLEET, OTHER)[1 - first]]


@pytest.mark.parametrize("first", [0, 1])
@told
async def test_a_drain_before_any_acquire_counts_by_the_limits_of_its_limiter(
    world: World, first: int
) -> None:
    """T9: given limiters that disagree, then the limiter has as much left as its drain said."""
    limiters = [world.limiter(Window(amount, per=HOUR)) for amount in (10, 1000)]
    limiters[first].drain(requests=2)

    await until(lambda status: status.limits[0].left == 2, limiters[first])
    assert [bool(await limiters[first].atry_acquire()) for _ in range(3)] == [True, True, False]


def test_a_limiter_that_never_acquires_is_freed_at_once(store: object, name: str) -> None:
    """C4: it is part of no cycle, which only the garbage collector would find."""
    limiters = [
        Limiter(name, FLEET, store=store),
        Limiter(name, OTHER, store=store),
        Limiter.attach(name, store=store),
    ]
    left = [ref(limiter) for limiter in limiters]
    gc.collect()
    gc.disable()
    try:
        limiters.clear()
        assert [each() for each in left] == [None] * 3
    finally:
        gc.enable()


# A name that no process has declared --------------------------------------------------------------


@told
async def test_the_status_of_a_new_name_is_that_of_the_limiters_own_limits(
    world: World,
) -> None:
    limiters = [world.limiter(Concurrency(5), Rate(10, per=HOUR, initial=4)), world.limiter(OTHER)]

    statuses = [await soon(limiter.astatus()) for limiter in limiters]

    assert [used(status) for status in statuses] == [[0, 6], [0]]
    assert [limit.limit for limit in statuses[1].limits] == [OTHER]
    assert [(status.waiting, status.retry_after, status.paused) for status in statuses] == [
        (0, 0.0, 0.0)
    ] * 2
    with pytest.raises(UnknownLimiterError):
        await limits_of(world)


@told
async def test_a_pause_before_the_first_acquire_holds_every_caller(world: World) -> None:
    """T3: the pause declares nothing, so the first acquire has its own limits."""
    await world.limiter(FLEET).apause(HOUR)
    assert (await soon(world.limiter(OTHER).astatus())).paused > 0

    assert not await world.limiter(OTHER).atry_acquire()
    assert await limits_of(world) == [OTHER]
    await world.limiter(OTHER).aresume()
    assert await world.limiter(OTHER).atry_acquire()


@told
async def test_a_drain_before_the_first_acquire_counts(world: World) -> None:
    """T9: the rest that a service reports holds for the first calls, too."""
    limiter = world.limiter(Rate(10, per=1000 * HOUR))

    limiter.drain(requests=2)

    assert [bool(await limiter.atry_acquire()) for _ in range(3)] == [True, True, False]


@told
async def test_a_name_that_was_only_paused_is_unknown(world: World) -> None:
    await world.limiter(FLEET).apause(HOUR)

    with pytest.raises(UnknownLimiterError):
        await limits_of(world)


# Attaching ----------------------------------------------------------------------------------------


def attached(world: World, **options: Any) -> Limiter:
    return Limiter.attach(world.name, store=world.store, **options)


USES: dict[str, Act] = {
    **{
        act.__name__: act for act in (enter, acquire, try_once, enter_an_acquire, call, in_a_thread)
    },
    **{act.__name__: act for act in (look, pause, resume)},
    "areset": lambda limiter: limiter.areset(),
    "aupdate": lambda limiter: limiter.aupdate(OTHER),
    "a key": lambda limiter: limiter["k"].acquire(),
    "status of a key": lambda limiter: limiter["k"].astatus(),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_each_use_of_an_unknown_name_is_an_error(store: object, name: str, use: Act) -> None:
    limiter = Limiter.attach(name, store=store)
    assert limiter.limits == ()

    with pytest.raises(
        UnknownLimiterError, match=r"No process has declared limits for limiter .* Check the name"
    ):
        asyncio.run(soon(use(limiter)))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_an_attached_limiter_does_what_a_limiter_does(store: object, name: str, use: Act) -> None:
    """Given a fleet, when a limiter is attached to its name, then each use of it passes, and none
    changes the fleet's limits.
    """
    fleet = Limiter(name, FLEET, store=store)
    fleet.acquire_sync()
    limiter = Limiter.attach(name, store=store)

    asyncio.run(soon(use(limiter)))

    now = Limiter.attach(name, store=store).status().limits[0].limit
    assert now == (OTHER if use is USES["aupdate"] else FLEET)


@told
async def test_an_attached_limiter_takes_the_limits_as_they_are_in_the_store(world: World) -> None:
    """S1, S6: it counts with all others of the name, and waits in order with them."""
    fleet = world.limiter(Concurrency(1), Rate(5, per=HOUR, unit="tokens"))
    holder = await fleet.acquire(tokens=2)
    limiter = attached(world)
    caller = asyncio.create_task(enter_for(limiter, tokens=3))
    await waiting(fleet, 1)

    holder.release()
    await soon(caller)

    assert limiter.limits == (Concurrency(1), Rate(5, per=HOUR, unit="tokens"))
    assert used(await at_rest(fleet)) == [0, 5]


async def enter_for(limiter: Limiter, **units: int) -> None:
    async with limiter.acquire(**units):
        pass


@told
async def test_costs_are_checked_when_the_limits_are_known(world: World) -> None:
    """T7."""
    fleet = world.limiter(Rate(5, per=HOUR, unit="tokens"))
    await soon(fleet.acquire(tokens=1))
    limiter = attached(world)

    with pytest.raises(ValueError, match="at least 1"):
        limiter.acquire(tokens=0)
    with pytest.raises(CostExceedsCapacityError, match="never"):
        await soon(limiter.acquire(tokens=6))
    with pytest.raises(ValueError, match="none of its limits counts"):
        await soon(attached(world).acquire(characters=6))
    await soon(limiter.acquire(tokens=4))
    assert used(await soon(fleet.astatus())) == [5]


@told
async def test_an_attached_limiter_that_has_looked_checks_the_units_of_a_drain(
    world: World,
) -> None:
    """The error comes before any I/O. Limits that the fleet has set since are known, too."""
    fleet = Limiter(world.name, FLEET, store=world.store)
    await enter(fleet)
    # A client of its own stands for another process, where one server is enough.
    alone = not world.in_memory and str(world.store).startswith("redis://")
    limiter = Limiter.attach(
        world.name, store=client_of_its_own(world.store) if alone else world.store
    )
    await soon(limiter.astatus())

    with pytest.raises(ValueError, match="none of its limits counts 'tokens'"):
        limiter.drain(tokens=3)

    await fleet.aupdate(Rate(9, per=HOUR, unit="tokens"))
    await soon(limiter.astatus())
    limiter.drain(tokens=3)
    with pytest.raises(ValueError, match="none of its limits counts 'requests'"):
        limiter.drain(requests=3)
    await limiter.aflush()
    assert used(await soon(limiter.astatus())) == [6]


async def test_a_key_of_an_attached_limiter_has_its_own_limits_or_those_of_the_whole(
    world: World,
) -> None:
    tenants = world.limiter(Window(5, per=HOUR))
    await tenants.acquire()
    await tenants["vip"].aupdate(Window(9, per=HOUR))
    limiter = attached(world)

    assert [(await soon(limiter[key].astatus())).limits[0].capacity for key in ("vip", "new")] == [
        9,
        5,
    ]
    for key in ("vip", "new"):
        await soon(limiter[key].acquire())
    assert [used(await soon(tenants[key].astatus())) for key in ("vip", "new")] == [[1], [1]]
    assert (await soon(tenants["vip"].astatus())).limits[0].capacity == 9


@told
async def test_a_key_alone_is_enough_to_attach_to(world: World) -> None:
    """Given a fleet that uses keys only, when a limiter is attached to the name, then it knows the
    keys that are used.
    """
    await world.limiter(Window(5, per=HOUR))["a"].acquire()

    assert used(await soon(attached(world)["a"].astatus())) == [1]
    with pytest.raises(UnknownLimiterError):
        await soon(attached(world)["b"].astatus())


def test_calls_without_a_wait_take_effect_when_an_attached_limiter_knows_the_limits(
    store: object, name: str
) -> None:
    fleet = Limiter(name, Window(5, per=HOUR), store=store)
    fleet.acquire_sync()
    limiter = Limiter.attach(name, store=store)

    limiter.pause(HOUR)
    assert asyncio.run(until(lambda status: status.paused > 0, fleet))
    limiter.resume()
    asyncio.run(until(lambda status: status.paused == 0.0, fleet))
    limiter.drain(requests=1)
    asyncio.run(until(lambda status: used(status) == [4], fleet))
    limiter.reset()
    asyncio.run(until(lambda status: used(status) == [0], fleet))
    limiter.update("7/hour")
    asyncio.run(until(lambda status: status.limits[0].capacity == 7, fleet))


def test_an_update_of_an_unknown_name_is_logged_or_raises(
    store: object, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In memory the error comes at once, because there is no such name. On Redis a line of the log
    reports it.
    """
    limiter = Limiter.attach(name, store=store)

    try:
        limiter.update("5/second")
    except UnknownLimiterError:
        return

    with pytest.raises(UnknownLimiterError):
        limiter.status()
    log_writer.flush()
    (record,) = [record for record in caplog.records if record.name == "headgate"]
    assert record.levelno == logging.WARNING
    assert (
        f"update() of limiter {name!r} has not happened: No process has declared limits"
        in record.getMessage()
    )


def test_an_attached_limiter_attaches_where_it_is_unpickled(name: str) -> None:
    limiter = Limiter.attach(name, store="memory://", max_sleep=3)
    fleet = Limiter(name, FLEET)
    fleet.acquire_sync()

    for each in (pickle.loads(pickle.dumps(limiter)), pickle.loads(pickle.dumps(limiter["k"]))):
        assert each.status().limits[0].limit == FLEET
        assert each.limits == ()


def test_bad_options_of_an_attached_limiter_are_refused(store: object) -> None:
    for options in ({"max_sleep": -1}, {"on_lost": "never"}, {"on_store_error": "local"}):
        with pytest.raises((ValueError, TypeError)):
            Limiter.attach("name", store=store, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="name"):
        Limiter.attach("", store=store)
