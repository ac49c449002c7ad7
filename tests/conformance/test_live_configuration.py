"""Limits that change while they are in use: the change holds at once and in order, grants no extra
tokens, and loses none.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    Permit,
    Quota,
    Rate,
    Semaphore,
    Window,
    log_writer,
)
from headgate.internals import store_of
from headgate.stores import limit_history
from headgate.stores.memory.store import MemoryStore
from tests.world import HOUR, World, at_rest, declare, soon, told, until, used, waiting

Change = Callable[..., Awaitable[None]]


async def acquired(limiter: Limiter, cost: int = 1, **units: int) -> Permit:
    return await limiter.acquire(cost, **units)


async def asks(
    limiter: Limiter, position: int, cost: int = 1, **units: int
) -> asyncio.Task[Permit]:
    """A task that waits in this position."""
    caller = asyncio.create_task(acquired(limiter, cost, **units))
    await waiting(limiter, position + 1)
    return caller


async def update(limiter: Limiter, *limits: Any) -> None:
    limiter.update(*limits)


async def aupdate(limiter: Limiter, *limits: Any) -> None:
    await limiter.aupdate(*limits)


async def capacity(limiter: Limiter) -> int:
    """The capacity of its first limit in the store, after it has acquired once."""
    permit = await soon(limiter.atry_acquire())
    if permit:
        permit.release()
    return (await soon(limiter.astatus())).limits[0].capacity


WAYS = pytest.mark.parametrize("change", [update, aupdate])


# More and less ------------------------------------------------------------------------------------


@WAYS
@told
async def test_more_capacity_wakes_waiters_at_once_and_in_order(
    world: World, change: Change
) -> None:
    """S1, S6: given one permit and three waiters, when there are three permits, then the first two
    waiters pass at once.
    """
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    callers = [await asks(limiter, position) for position in range(3)]

    await change(limiter, Concurrency(3))
    permits = [await soon(caller) for caller in callers[:2]]

    status = await waiting(limiter, 1)
    assert (used(status), status.limits[0].capacity) == ([3], 3)
    assert permits[0].fence < permits[1].fence
    holder.release()
    permits.append(await soon(callers[2]))
    for permit in permits:
        permit.release()
    await at_rest(limiter)


@WAYS
@told
async def test_more_capacity_wakes_tasks_that_enter_by_async_with(
    world: World, change: Change
) -> None:
    """S1, S6: the same for callers that enter by `async with` and leave again."""
    limiter = world.limiter(Concurrency(1))
    inside: list[int] = []
    leave = asyncio.Event()

    async def visit(number: int) -> None:
        async with limiter:
            inside.append(number)
            await leave.wait()

    callers = []
    for number in range(5):
        callers.append(asyncio.create_task(visit(number)))
        await until(lambda status, number=number: status.waiting == number, limiter)

    await change(limiter, Concurrency(4))
    await until(lambda status: len(inside) >= 4, limiter)

    assert inside == [0, 1, 2, 3]
    leave.set()
    await soon(asyncio.gather(*callers))
    await at_rest(limiter)


@WAYS
@told
async def test_less_capacity_waits_for_holders(world: World, change: Change) -> None:
    """S1: given three holders, when there is one permit, then no holder loses its permit. No waiter
    passes until all holders have left.
    """
    limiter = world.limiter(Concurrency(3))
    holders = [await limiter.acquire() for _ in range(3)]

    await change(limiter, Concurrency(1))
    caller = await asks(limiter, 0)
    for holder in holders[:2]:
        assert not holder.lost
        assert await holder.arelease()
    status = await waiting(limiter, 1)
    assert used(status) == [1]
    holders[2].release()

    (await soon(caller)).release()
    await at_rest(limiter)


@WAYS
@pytest.mark.parametrize(
    ("former", "later"),
    [
        (Rate(10, per=HOUR), Rate(20, per=HOUR)),
        (Rate(10, per=HOUR), Rate(10, per=HOUR, capacity=100)),
        (Window(10, per=HOUR), Window(10, per=2 * HOUR)),
        (Quota(10, per=24 * HOUR), Quota(10, per=12 * HOUR)),
        (Rate(10, per=HOUR), Window(10, per=HOUR)),
        (Window(10, per=HOUR), Quota(10, per=24 * HOUR)),
        (Quota(10, per=24 * HOUR), Rate(10, per=HOUR, steps=True)),
    ],
    ids=str,
)
@told
async def test_another_rate_grants_no_extra_tokens(
    world: World, change: Change, former: Any, later: Any
) -> None:
    """T9: given a limit that is used up, when it is changed to and fro, then no token comes back by
    that.
    """
    limiter = world.limiter(former)
    for _ in range(10):
        assert await limiter.atry_acquire()

    for limits in (later, former, later):
        await change(limiter, limits)
        assert not await soon(limiter.atry_acquire())

    assert (await soon(limiter.astatus())).limits[0].left == 0


@WAYS
@told
async def test_a_faster_rate_moves_waiters_forward(world: World, change: Change) -> None:
    """T2, T9: given a caller that waits for an hour, when a token comes back each beat, then it
    passes after a beat, no sooner.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    first, start = await limiter.acquire(), world.now()
    caller = await asks(limiter, 0)
    empty = world.now() - start  # in that time next to no token came back

    await change(limiter, Rate(1, per=5 * world.beat))
    permit = await soon(caller)

    assert (
        5 * world.ticks <= permit.t - first.t <= 5 * world.ticks + (empty + world.slack) * 1_000_000
    )


@WAYS
@told
async def test_a_slower_rate_holds_waiters_back(world: World, change: Change) -> None:
    """T1, T9: given a caller due after some beats, when a token comes back in an hour, then it
    waits that long.
    """
    limiter = world.limiter(Rate(1, per=100 * world.beat))
    await limiter.acquire()
    caller = await asks(limiter, 0)

    await change(limiter, Rate(1, per=HOUR))
    await asyncio.sleep(105 * world.beat)

    status = await waiting(limiter, 1)
    assert status.retry_after is not None
    assert status.retry_after > HOUR
    caller.cancel()
    await asyncio.wait([caller])
    await waiting(limiter, 0)


@WAYS
@told
async def test_a_waiter_that_can_never_pass_any_more_gets_an_error(
    world: World, change: Change
) -> None:
    """T7: given waiters for five and for two, when a limit holds no more than two, then the first
    has an error, and the second passes.
    """
    limiter = world.limiter(Concurrency(5, unit="mb"))
    holder = await limiter.acquire(mb=5)
    large = await asks(limiter, 0, mb=5)
    small = await asks(limiter, 1, mb=2)

    await change(limiter, Concurrency(2, unit="mb"))
    with pytest.raises(CostExceedsCapacityError, match="never"):
        limiter.acquire(mb=3)
    with pytest.raises(CostExceedsCapacityError, match="never"):
        await soon(large)
    holder.release()

    (await soon(small)).release()
    await at_rest(limiter)


@WAYS
@told
async def test_many_updates_bring_no_former_declaration_back(world: World, change: Change) -> None:
    """Given two parts of a program that disagree, when many updates have ended that, then neither
    part's limits come back.
    """
    limiter = world.limiter(Concurrency(1))
    await soon(declare(limiter))
    await soon(declare(world.limiter(Concurrency(2))))

    for number in range(10, 30):
        await change(limiter, Concurrency(number))
    for number in (1, 2):
        assert await capacity(world.limiter(Concurrency(number))) == 29


@WAYS
@told
async def test_a_permit_is_counted_while_other_limits_come_and_go(
    world: World, change: Change
) -> None:
    """S1: given holders, when a limit joins and another one goes, then the permits of the holders
    are still counted.
    """
    limiter = world.limiter(Concurrency(2))
    holder = await limiter.acquire()

    await change(limiter, Concurrency(2), Rate(1, per=HOUR), Concurrency(10, unit="mb"))
    second = await soon(limiter.acquire(mb=10))
    assert used(await soon(limiter.astatus())) == [2, 1, 10]
    await change(limiter, Rate(1, per=HOUR))
    assert not await soon(limiter.atry_acquire())
    await change(limiter, Concurrency(2), Rate(5, per=HOUR))

    assert used(await soon(limiter.astatus())) == [
        2,
        5,
    ]  # the bucket has grown, and is as empty as it was
    holder.release()
    second.release()
    await at_rest(limiter)


PLACES, MEGABYTES, REQUESTS = (
    Concurrency(2),
    Concurrency(64, unit="mb"),
    Concurrency(10, unit="requests"),
)
RATE = Rate(100, per=1)


@pytest.mark.parametrize(
    ("changes", "units", "held"),
    [
        ([[MEGABYTES], [RATE], [MEGABYTES]], {"mb": 64}, [64]),
        ([[MEGABYTES], [PLACES]], {"mb": 16}, [1]),
        ([[MEGABYTES], [PLACES]], {}, [1]),
        ([[MEGABYTES], [RATE], [PLACES]], {}, [1]),
        ([[REQUESTS], [PLACES]], {"requests": 5}, [1]),
        ([[REQUESTS], [RATE], [REQUESTS]], {"requests": 3}, [3]),
        ([[REQUESTS], [MEGABYTES], [REQUESTS, PLACES]], {"requests": 3}, [3, 1]),
        ([[PLACES, MEGABYTES], [MEGABYTES], [PLACES, MEGABYTES]], {"mb": 10}, [1, 10]),
        ([[PLACES], [MEGABYTES], [PLACES]], {}, [1]),
    ],
    ids=str,
)
@told
async def test_a_permit_is_counted_under_each_limit_that_follows(
    world: World, changes: list[list[Concurrency | Rate]], units: dict[str, int], held: list[int]
) -> None:
    """S1, S7: given a holder, when the limits change in kind or unit, then its part of them is
    counted until its release. That frees no permit of others.
    """
    limiter = world.limiter(*changes[0])
    holder = await acquired(
        limiter, units.get("requests", 1), **{"mb": units["mb"]} if "mb" in units else {}
    )
    for limits in changes[1:]:
        await limiter.aupdate(*limits)

    assert used(await soon(limiter.astatus())) == held
    other = await soon(limiter.acquire())
    assert await soon(holder.arelease())
    assert used(await soon(limiter.astatus())) == [int(limit.unit != "mb") for limit in changes[-1]]
    other.release()
    await at_rest(limiter)


# Limiters that follow -----------------------------------------------------------------------------


@WAYS
@told
async def test_all_limiters_of_the_name_follow_an_update(world: World, change: Change) -> None:
    limiter, other = world.limiter("1/hour"), world.limiter("1/hour")
    stranger = world.limiter("1/hour", name=f"{world.name}-other")

    await change(limiter, "3 per hour", Concurrency(2))

    assert [await capacity(each) for each in (limiter, other, stranger)] == [3, 3, 1]
    with pytest.raises(CostExceedsCapacityError):
        other.acquire(4)
    assert "concurren" in repr(limiter).lower() or "slots" in repr(limiter)


@WAYS
@told
async def test_keys_taken_afterwards_have_the_new_limits(world: World, change: Change) -> None:
    """Given a limiter and a key of it, when the limiter is updated, then keys taken afterwards
    follow, from all limiters of that name.
    """
    limiter, other = world.limiter("1/hour"), world.limiter("1/hour")
    before = limiter["a"]
    assert await capacity(before) == 1

    await change(limiter, "3/hour")

    assert await capacity(before) == 1
    assert [await capacity(key) for key in (limiter["b"], other["c"], limiter["a"], before)] == [
        3,
        3,
        3,
        3,
    ]


@WAYS
@told
async def test_an_update_of_a_key_changes_that_key_alone(world: World, change: Change) -> None:
    """It stays so however often code that knows the limits of the whole takes the key again."""
    limiter = world.limiter("1/hour")

    await change(limiter["a"], "5/hour")
    for _ in range(3):
        assert [await capacity(each) for each in (limiter, limiter["a"], limiter["b"])] == [1, 5, 1]


@WAYS
@told
async def test_an_earlier_declaration_does_not_undo_an_update(world: World, change: Change) -> None:
    """Given a limiter made for each request, when the limits are updated, then the next limiters
    follow. New limits win again.
    """
    for limits in ("1/hour", "2/hour"):
        await soon(declare(world.limiter(limits)))
    await change(world.limiter("2/hour"), "9/hour")

    assert [
        await capacity(world.limiter(limits)) for limits in ("2/hour", "1/hour", "9/hour", "2/hour")
    ] == [9] * 4
    assert [await capacity(world.limiter(limits)) for limits in ("4/hour", "1/hour")] == [4, 1]


@told
async def test_an_update_of_a_new_name_holds(world: World) -> None:
    """Given a name that the store does not know, when it is updated first of all, then the update
    overrules the code's limits.
    """
    limiter = world.limiter("1/hour")

    limiter.update("9/hour")

    assert [await capacity(each) for each in (limiter, world.limiter("1/hour"))] == [9, 9]


@told
async def test_the_last_of_several_updates_holds(world: World) -> None:
    limiter = world.limiter("1/hour")
    for amount in range(2, 8):
        limiter.update(Rate(amount, per=HOUR))

    assert await capacity(limiter) == 7
    await limiter.aupdate("1/hour")
    assert await capacity(limiter) == 1
    assert await capacity(world.limiter("30/hour")) == 30


def test_a_thread_updates_too(store: object, name: str) -> None:
    """S1, S6: given a thread that waits, when another one raises the capacity, then it passes at
    once.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    passed = threading.Event()

    def wait() -> None:
        with limiter:
            passed.set()

    with limiter:
        thread = threading.Thread(target=wait)
        thread.start()
        asyncio.run(waiting(limiter, 1))
        limiter.update(Concurrency(2))
        assert passed.wait(5)
    thread.join(5)
    asyncio.run(at_rest(limiter))


# Limits that the store keeps ----------------------------------------------------------------------


async def test_an_idle_key_with_an_update_is_not_forgotten(memory: World) -> None:
    """T12: given many idle keys, when the store forgets them, then it keeps one whose limits were
    updated.
    """
    limiter = memory.limiter("100 per second")
    limiter["vip"].update("500 per second")
    memory.clock.jump(HOUR)

    for number in range(5000):
        limiter[f"tenant-{number}"].try_acquire()
        memory.clock.jump(1.0)

    assert (await limiter["vip"].astatus()).limits[0].capacity == 500
    assert len(store_of(limiter).kept) < 5000


@pytest.mark.exact
async def test_a_queue_that_its_store_forgot_is_kept_again_when_its_limits_change(
    memory: World,
) -> None:
    """S8, T12: given an idle limiter that its store has forgotten, when it gets other limits and a
    debt, then the store remembers the debt.
    """
    limiter = memory.limiter("1/hour burst 1")
    await declare(limiter)
    memory.clock.jump(HOUR)
    others = [memory.limiter("1/hour", name=str(number)) for number in range(2000)]
    assert memory.name not in memory.store.kept

    async with memory.limiter("2/hour burst 2"):  # still one token: a change grants no extra ones
        pass
    del limiter, others
    gc.collect()

    assert used(await memory.limiter("2/hour burst 2").astatus()) == [2]


# Parts of a program that disagree -----------------------------------------------------------------


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Warnings of headgate."""
    caplog.set_level(logging.WARNING, "headgate")
    return caplog


def logged(log: pytest.LogCaptureFixture) -> list[str]:
    log_writer.flush()
    return [record.getMessage() for record in log.records]


def here() -> str:
    """The file and the line of the call."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def test_a_second_limiter_with_other_limits_is_warned_of_once_with_both_places(
    store: object, name: str, log: pytest.LogCaptureFixture
) -> None:
    first, place = Limiter(name, Concurrency(5), store=store), here()
    second, other = Limiter(name, "100/minute", store=store), here()
    thirds = [
        Limiter(name, limits, store=store)
        for _ in range(3)
        for limits in (Concurrency(5), "7/minute")
    ]

    (sentence,) = logged(log)
    assert sentence.startswith(
        f"Two limiters of one name disagree: limiter {name!r} is made with 5 permits held at once "
        f"for 30 s each at {place}, and with 100 requests in any 60 s at {other}."
    )
    assert sentence.endswith("take them from the store with Limiter.attach, or call update().")
    assert len({limiter.name for limiter in (first, second, *thirds)}) == 1


def test_the_classics_are_warned_of_too(
    store: object, name: str, log: pytest.LogCaptureFixture
) -> None:
    Semaphore(name, 3, store=store), Semaphore(name, 3, store=store)
    assert logged(log) == []

    Semaphore(name, 4, store=store)

    (sentence,) = logged(log)
    assert f"Semaphore {name!r}" in sentence
    assert sentence.count(__file__) == 2


def test_limiters_that_agree_are_not_warned_of(
    store: object, name: str, log: pytest.LogCaptureFixture
) -> None:
    """Given the same limits at two places, keys of them, attached limiters and updates, then
    nothing is logged.
    """
    for _ in range(2):
        limiter = Limiter(name, "3/second", store=store)
        limiter["k"].update("5/second")
        limiter["k"]
    limiter.update("9/second")
    limiter["other"]
    Limiter(name, "3/second", store=store)
    Limiter.attach(name, store=store)

    assert logged(log) == []


def test_limiters_of_one_name_in_different_stores_are_not_warned_of(
    name: str, log: pytest.LogCaptureFixture
) -> None:
    for limits in ("1/second", "2/second"):
        Limiter(name, limits, store=MemoryStore())

    assert logged(log) == []


def test_a_remembered_place_in_the_code_keeps_no_frame_alive(name: str) -> None:
    """Given a function that makes a limiter and ends, then its locals are collected, though its
    place in the code is remembered.
    """

    class Local:
        """An object that only the function refers to."""

    def make() -> tuple[Limiter, weakref.ref[Local]]:
        local = Local()
        return Limiter(name, "1/second", store=MemoryStore()), weakref.ref(local)

    limiter, local = make()

    assert local() is None
    assert limiter.name == name


def test_the_number_of_remembered_places_in_the_code_is_bounded() -> None:
    """S9."""
    store = MemoryStore()
    for number in range(limit_history.MOST_WRITTEN + 10):
        Limiter(f"{number}", "1/second", store=store)

    assert len(store._written) <= limit_history.MOST_WRITTEN


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("100/minute", "100 requests in any 60 s"),
        ("100/minute burst 100", "1 requests every 0.6 s, at most 100 at once"),
        (
            Rate(5, per=10, capacity=7, initial=2, steps=True),
            "5 requests every 10 s, at most 7 at once, 2 at first",
        ),
        (Rate(3, per=7, unit="tokens"), "3 tokens every 7 s, at most 3 at once"),
        (Window(100, per=60, slack=0.01), "100 requests in any 60.01 s"),
        (Quota(1000, per=86_400), "1000 requests in each 86400 s from 0 s"),
        (
            Quota(50, per=3600, anchor=900, slack=0.5),
            "50 requests in each 3600 s from 900 s with 0.5 s of slack",
        ),
        (Concurrency(64, lease=1.5, unit="mb"), "64 mb held at once for 1.5 s each"),
    ],
    ids=str,
)
def test_the_warning_describes_each_limit_in_words(
    limit: Any, words: str, name: str, log: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    for limits in ((limit, "1/s"), ("1/s",)):
        Limiter(name, *limits, store=store)

    assert f"is made with {words} and 1 requests in any 1 s at " in logged(log)[0]
