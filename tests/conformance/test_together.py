"""All or nothing: several limits of one limiter are decided together. A caller that is refused or
waits has taken nothing (T8).
"""

from __future__ import annotations

import asyncio

import pytest

from headgate import Concurrency, MaxSleepExceededError, Quota, Rate, Refusal, Window
from tests.world import HOUR, World, at_rest, soon, told, until, used, waiting


@told
async def test_an_acquire_takes_from_every_limit_what_it_costs(world: World) -> None:
    limiter = world.limiter(
        Concurrency(5),
        Concurrency(64, unit="mb"),
        Rate(10, per=HOUR),
        Rate(1000, per=HOUR, unit="tokens"),
        Window(20, per=HOUR),
        Quota(2000, per=24 * HOUR, unit="tokens"),
    )

    async with limiter.acquire(3, tokens=900, mb=16):
        assert used(await limiter.astatus()) == [1, 16, 3, 900, 3, 900]

    await until(lambda status: used(status) == [0, 0, 3, 900, 3, 900], limiter)


@told
async def test_an_acquire_takes_only_the_units_that_it_names(world: World) -> None:
    """A plain acquire is one request and one permit. Only acquires that name tokens and megabytes
    take them.
    """
    limiter = world.limiter(
        Concurrency(64, unit="mb"), Rate(10, per=HOUR), Rate(1000, per=HOUR, unit="tokens")
    )

    async with limiter:
        assert used(await limiter.astatus()) == [0, 1, 0]


@pytest.mark.parametrize("short", ["requests", "tokens"])
@told
async def test_a_refusal_by_one_limit_leaves_the_others_as_they_were(
    world: World, short: str
) -> None:
    """T8: whichever limit refuses, first or last, the others are not charged."""
    limiter = world.limiter(Rate(5, per=HOUR), Concurrency(3), Rate(5, per=HOUR, unit="tokens"))
    (await limiter.acquire(requests=3, tokens=3)).release()
    before = await at_rest(limiter)

    refusal = await limiter.atry_acquire(**{"requests": 1, "tokens": 1, short: 4})
    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(**{"requests": 1, "tokens": 1, short: 4}, max_sleep=world.beat)

    assert isinstance(refusal, Refusal)
    assert used(await limiter.astatus()) == used(before) == [3, 0, 3]


@told
async def test_a_waiter_for_a_permit_has_taken_no_tokens(world: World) -> None:
    """A waiter for a concurrency limit reserves nothing. With the permit it pays for all limits, in
    one step.
    """
    limiter = world.limiter(Concurrency(1), Rate(10, per=HOUR))
    holder = await limiter.acquire()
    waiter = asyncio.create_task(_acquired(limiter))

    assert used(await waiting(limiter, 1)) == [1, 1]

    holder.release()
    permit = await soon(waiter)
    assert used(await limiter.astatus()) == [1, 2]
    permit.release()


@told
async def test_a_waiter_for_a_token_holds_no_permit(world: World) -> None:
    limiter = world.limiter(Concurrency(2), Rate(1, per=HOUR))
    (await limiter.acquire()).release()
    await at_rest(limiter)
    waiter = asyncio.create_task(_acquired(limiter))

    status = await waiting(limiter, 1)

    assert used(status) == [0, 1]
    waiter.cancel()
    await asyncio.wait([waiter])
    await at_rest(limiter)


@told
async def test_two_limits_of_one_unit_both_count(world: World) -> None:
    """Given ten a second and at most twelve an hour, then the stricter limit decides at each
    moment.
    """
    limiter = world.limiter(Rate(10, per=world.beat), Window(12, per=HOUR))
    for _ in range(12):
        await soon(limiter.acquire())

    refusal = await limiter.atry_acquire()

    assert isinstance(refusal, Refusal)
    assert HOUR - 60 < refusal.retry_after <= HOUR


async def _acquired(limiter):
    return await limiter.acquire()
