"""A pause can be ended, and counts can be reset: by each caller of a name, for all callers of it,
in either store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import Concurrency, Limit, Limiter, Permit, Quota, Rate, Window, parse_limit
from tests.world import HOUR, World, at_rest, soon, told, until, used, waiting

Way = Callable[[Limiter], Awaitable[None]]


async def resume(limiter: Limiter) -> None:
    limiter.resume()


async def aresume(limiter: Limiter) -> None:
    await limiter.aresume()


async def reset(limiter: Limiter) -> None:
    limiter.reset()


async def areset(limiter: Limiter) -> None:
    await limiter.areset()


RESUMES = pytest.mark.parametrize("end", [resume, aresume])
RESETS = pytest.mark.parametrize("forget", [reset, areset])


async def acquired(limiter: Limiter) -> Permit:
    return await limiter.acquire()


# Resume -------------------------------------------------------------------------------------------


@RESUMES
@told
async def test_after_a_resume_waiters_go_on_at_once_and_in_order(world: World, end: Way) -> None:
    """S6, T3: given three callers that wait in a pause of an hour, when it is ended, then all pass
    at once, in order of arrival.
    """
    limiter = world.limiter(Concurrency(5), Rate(100, per=HOUR))
    await limiter.apause(HOUR)
    callers = []
    for position in range(3):
        callers.append(asyncio.create_task(acquired(limiter)))
        await waiting(limiter, position + 1)

    await end(limiter)
    permits = [await soon(caller) for caller in callers]

    assert [permit.fence for permit in permits] == sorted(permit.fence for permit in permits)
    assert (await soon(limiter.astatus())).paused == 0.0
    for permit in permits:
        permit.release()
    await at_rest(limiter)


@RESUMES
@told
async def test_after_a_resume_tasks_that_enter_go_on_in_order(world: World, end: Way) -> None:
    limiter = world.limiter(Concurrency(1))
    await limiter.apause(HOUR)
    entered: list[int] = []

    async def visit(number: int) -> None:
        async with limiter:
            entered.append(number)

    callers = []
    for number in range(3):
        callers.append(asyncio.create_task(visit(number)))
        await waiting(limiter, number + 1)
    await end(limiter)
    await soon(asyncio.gather(*callers))

    assert entered == [0, 1, 2]
    async with limiter:
        pass
    await at_rest(limiter)


@RESUMES
@told
async def test_a_resume_without_a_pause_changes_nothing(world: World, end: Way) -> None:
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()

    await end(limiter)

    status = await soon(limiter.astatus())
    assert (used(status), status.paused) == ([1], 0.0)
    assert not await limiter.atry_acquire()


@told
async def test_a_pause_can_be_set_again_after_a_resume(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    for _ in range(3):
        await limiter.apause(HOUR)
        assert not await limiter.atry_acquire()
        await limiter.aresume()
        permit = await limiter.atry_acquire()
        assert permit
        await permit.arelease()


@told
async def test_a_resume_of_a_key_ends_the_pause_of_that_key_alone(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    for key in "ab":
        await limiter[key].apause(HOUR)

    await limiter["a"].aresume()

    assert (await limiter["a"].astatus()).paused == 0.0
    assert (await limiter["b"].astatus()).paused > 0
    assert not await limiter["b"].atry_acquire()


@told
async def test_the_status_says_for_how_long_the_limiter_is_paused(world: World) -> None:
    limiter = world.limiter(Concurrency(1), Rate(10, per=HOUR))
    assert (await soon(limiter.astatus())).paused == 0.0

    await limiter.apause(HOUR)

    status = await soon(limiter.astatus())
    assert HOUR - world.slack - 0.01 <= status.paused <= HOUR
    assert "paused for" in status.line()


# Reset --------------------------------------------------------------------------------------------

SPENT = {
    "rate": Rate(2, per=HOUR),
    "steps": Rate(2, per=HOUR, steps=True),
    "window": Window(2, per=HOUR),
    "quota": Quota(2, per=1000 * HOUR),
}


@RESETS
@pytest.mark.parametrize("limit", SPENT.values(), ids=SPENT)
@told
async def test_a_waiter_for_used_tokens_goes_on_after_a_reset(
    world: World, forget: Way, limit: Limit
) -> None:
    limiter = world.limiter(limit)
    for _ in range(2):
        assert await limiter.atry_acquire()
    caller = asyncio.create_task(acquired(limiter))
    await waiting(limiter, 1)

    await forget(limiter)
    await soon(caller)

    assert used(await until(lambda status: status.waiting == 0, limiter)) == [1]


@RESETS
@told
async def test_a_reset_forgets_debts_and_keeps_held_permits(world: World, forget: Way) -> None:
    limiter = world.limiter(
        Concurrency(2), Window(10, per=HOUR, unit="tokens"), Rate(10, per=HOUR, unit="characters")
    )
    permit = await limiter.acquire(tokens=1, characters=1)
    permit.settle(tokens=500, characters=500)
    assert used(await until(lambda status: status.limits[1].used == 500, limiter)) == [1, 500, 500]

    await forget(limiter)

    assert used(await until(lambda status: status.limits[1].used == 0, limiter)) == [1, 0, 0]
    permit.release()
    await at_rest(limiter)


@told
async def test_a_reset_ends_no_pause(world: World) -> None:
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    await limiter.apause(HOUR)

    await limiter.areset()

    status = await soon(limiter.astatus())
    assert used(status) == [0]
    assert status.paused > 0
    assert not await limiter.atry_acquire()


@told
async def test_a_reset_of_a_key_resets_that_key_alone(world: World) -> None:
    limiter = world.limiter(Rate(1, per=HOUR))
    for key in "ab":
        await limiter[key].acquire()

    await limiter["a"].areset()

    assert [used(await limiter[key].astatus()) for key in "ab"] == [[0], [1]]


# The limits of a status ---------------------------------------------------------------------------

LIMITS: list[Limit] = [
    Concurrency(5, lease=7),
    Rate(100, per=1),
    Rate(100, per=86_400),
    Rate(10, per=60, capacity=3, initial=1),
    Rate(7, per=3, steps=True),
    Window(100, per=1),
    Window(100, per=86_400),
    Quota(30, per=3600, anchor=900),
    Rate(900, per=60, unit="tokens"),
]


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@told
async def test_a_status_has_each_limit_as_it_was_written(world: World, limit: Limit) -> None:
    limiter = world.limiter(limit)

    (limit_status,) = (await soon(limiter.astatus())).limits

    assert limit_status.limit == limit


@told
async def test_a_status_has_an_updated_limit_as_it_is_now(world: World) -> None:
    limiter: Any = world.limiter("5/second")
    await limiter.aupdate("100/day", Concurrency(3))

    assert [each.limit for each in (await soon(limiter.astatus())).limits] == [
        parse_limit("100/day"),
        Concurrency(3),
    ]
