"""Refusals come at once, charge nothing and say exactly when the acquire could succeed (T4, T8). An
impossible cost is a different error.
"""

from __future__ import annotations

import asyncio
import time

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    Permit,
    QueueFullError,
    Quota,
    Rate,
    Refusal,
    Window,
)
from tests.world import HOUR, World, at_rest, soon, told, until, used, waiting

SPENT = [  # a limit, a cost that leaves too little of it, and then the cost that has to wait
    (Rate(10, per=60), 10, 1),
    (Rate(10, per=60), 7, 5),
    (Rate(3, per=1, capacity=100), 100, 100),
    (Rate(7, per=86_400, initial=0), 0, 3),
    (Rate(5, per=60, steps=True, capacity=20), 20, 11),
    (Window(10, per=60), 10, 1),
    (Window(10, per=0.25), 8, 3),
    (Quota(10, per=60), 10, 10),
    (Quota(10, per=86_400, anchor=3_600), 9, 2),
    (Rate(10, per=60, slack=0.5), 10, 10),
    (Quota(10, per=60, slack=0.5), 10, 10),
]


# try_acquire --------------------------------------------------------------------------------------


def test_try_acquire_is_a_permit_or_a_false_refusal(store: object, name: str) -> None:
    """Given one permit, then the first try gets it and the second a refusal. After the release the
    permit is free again.
    """
    limiter = Limiter(name, Concurrency(1), store=store)

    permit = limiter.try_acquire()
    refusal = limiter.try_acquire()

    assert isinstance(permit, Permit)
    assert permit
    assert isinstance(refusal, Refusal)
    assert not refusal
    assert refusal.retry_after is None  # only a release can help, and it may come at any time
    permit.release()
    again = limiter.try_acquire()
    assert again
    again.release()


@told
async def test_try_acquire_never_waits_whatever_the_limiter_allows(world: World) -> None:
    limiter = world.limiter(Rate(1, per=HOUR), max_sleep=2 * HOUR)
    await limiter.acquire()
    start = world.now()

    refusal = await soon(limiter.atry_acquire())

    assert isinstance(refusal, Refusal)
    assert world.now() - start <= world.slack


@pytest.mark.exact
@pytest.mark.parametrize(("limit", "first", "then"), SPENT)
def test_retry_after_is_exact(memory: World, limit: object, first: int, then: int) -> None:
    """T4: the same acquire is denied one microsecond before the quoted moment, and granted at
    it.
    """

    async def story() -> None:
        limiter = memory.limiter(limit)
        if first:
            await limiter.acquire(first)

        refusal = await limiter.atry_acquire(then)
        assert isinstance(refusal, Refusal)
        memory.clock.moment += round(refusal.retry_after * 1_000_000) - 1
        last = await limiter.atry_acquire(then)
        assert isinstance(last, Refusal)
        assert last.retry_after == pytest.approx(0.000_001, abs=1e-9)
        memory.clock.moment += 1
        assert await limiter.atry_acquire(then)

    memory.run(story())


@pytest.mark.parametrize(
    "limit",
    [
        Rate(20, per=1, capacity=1),
        Rate(1, per=0.05, steps=True),
        Window(1, per=0.05),
        Quota(1, per=0.05),
    ],
    ids=str,
)
@told
async def test_a_caller_that_tries_again_after_retry_after_is_granted(
    world: World, limit: object
) -> None:
    """T4 by the server's clock: one sleep of exactly `retry_after` is enough."""
    limiter = world.limiter(limit)
    await limiter.acquire()

    refusal = await limiter.atry_acquire()
    if isinstance(refusal, Refusal):  # a quota's next window may have begun in between
        await world.sleep(refusal.retry_after)
        refusal = await limiter.atry_acquire()

    assert isinstance(refusal, Permit)


@told
async def test_retry_after_counts_down(world: World) -> None:
    """T4: the quoted time is the rest of the hour since the last grant, as far as a clock beside
    the server's can tell.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    before = time.monotonic()
    await limiter.acquire()
    first = await limiter.atry_acquire()
    second = await limiter.atry_acquire()
    gone = time.monotonic() - before

    assert isinstance(first, Refusal)
    assert isinstance(second, Refusal)
    assert HOUR - gone - 0.001 <= second.retry_after <= first.retry_after <= HOUR


@told
async def test_refused_tries_charge_nothing(world: World) -> None:
    """T8."""
    limiter = world.limiter(Rate(3, per=HOUR))
    await limiter.acquire(2)

    for _ in range(50):
        assert not await limiter.atry_acquire(2)

    assert used(await limiter.astatus()) == [2]
    assert await limiter.atry_acquire(1)


# max_sleep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", [Rate(1, per=HOUR), Rate(1, per=HOUR, steps=True), Window(1, per=HOUR)], ids=str
)
@told
async def test_a_wait_beyond_max_sleep_is_refused_at_once(world: World, limit: object) -> None:
    """T8: the wait is known, so no caller has to wait for the refusal. It charges nothing and says
    when to try again.
    """
    limiter = world.limiter(limit, max_sleep=HOUR / 2)
    await limiter.acquire()
    start = world.now()

    with pytest.raises(MaxSleepExceededError) as refused:
        await limiter.acquire()

    assert world.now() - start <= world.slack
    assert HOUR - world.slack <= refused.value.retry_after <= HOUR
    status = await limiter.astatus()
    assert (used(status), status.waiting) == ([1], 0)


@told
async def test_max_sleep_of_an_acquire_overrides_that_of_its_limiter(world: World) -> None:
    """One acquire is willing to wait for less time than its limiter says, another for more."""
    limit = Rate(1, per=world.beat, capacity=100_000, initial=0)
    limiter = world.limiter(limit, max_sleep=10_000 * world.beat)
    hasty = world.limiter(limit, max_sleep=world.beat / 2, name=f"{world.name}-hasty")

    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(50_000)
    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(5_000, max_sleep=1_000 * world.beat)

    await limiter.acquire(2)
    await hasty.acquire(2, max_sleep=HOUR)


@told
async def test_a_caller_waits_when_its_wait_is_within_max_sleep(world: World) -> None:
    limiter = world.limiter(Rate(1, per=world.beat), max_sleep=HOUR)
    first = await limiter.acquire()

    second = await limiter.acquire()

    assert second.t - first.t >= world.ticks


@told
async def test_max_sleep_is_compared_with_the_wait_behind_the_whole_queue(world: World) -> None:
    """Given three callers that wait an hour each, then a fourth that would wait three and a half
    hours is refused. One with four and a half hours waits.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    queue = [asyncio.create_task(_acquired(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    with pytest.raises(MaxSleepExceededError) as refused:
        await soon(limiter.acquire(max_sleep=3.5 * HOUR))
    queue.append(asyncio.create_task(_acquired(limiter, max_sleep=4.5 * HOUR)))
    await waiting(limiter, 4)

    assert refused.value.retry_after == pytest.approx(4 * HOUR, abs=world.slack or 0.01)
    await _given_up(limiter, queue)


@pytest.mark.exact
def test_max_sleep_is_exact(memory: World) -> None:
    """T4: a wait of exactly max_sleep is within it, and one of a microsecond more is not."""

    async def story() -> None:
        limiter = memory.limiter(Rate(1, per=10))
        await limiter.acquire()
        with pytest.raises(MaxSleepExceededError) as refused:
            await limiter.acquire(max_sleep=9.999_999)
        assert refused.value.retry_after == 10.0
        permit = await limiter.acquire(max_sleep=10.0)
        assert permit.waited == 10.0

    memory.run(story())


@told
async def test_a_wait_for_a_permit_ends_after_max_sleep(world: World) -> None:
    """The time of the next release is unknown, so the caller waits, but no longer than max_sleep,
    and leaves no trace.
    """
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    start = world.now()

    with pytest.raises(MaxSleepExceededError) as refused:
        await limiter.acquire(max_sleep=world.beat)

    assert refused.value.retry_after is None
    assert "only a release can say when its turn comes" in str(refused.value)
    assert world.beat - 1e-9 <= world.now() - start <= world.beat + world.slack
    await waiting(limiter, 0)
    holder.release()
    await at_rest(limiter)


@told
async def test_a_caller_with_max_sleep_zero_does_not_wait(world: World) -> None:
    """Of an acquire and of a limiter: the caller passes if it can, and is refused if it cannot, for
    each kind of limit.
    """
    permits, rate = (
        world.limiter(Concurrency(1)),
        world.limiter(Rate(1, per=HOUR), name=world.name + "r"),
    )
    strict = world.limiter(Concurrency(1), max_sleep=0)
    start = world.now()

    async with permits.acquire(max_sleep=0):
        for late in (
            permits.acquire(max_sleep=0),
            permits.acquire(max_sleep=0.0),
            strict,
            strict.acquire(),
        ):
            with pytest.raises(MaxSleepExceededError) as refused:
                await soon(late.__aenter__())
            assert refused.value.retry_after is None
    await rate.acquire(max_sleep=0)
    with pytest.raises(MaxSleepExceededError) as refused:
        await rate.acquire(max_sleep=0)

    assert refused.value.retry_after == pytest.approx(HOUR, abs=world.slack or 0.01)
    assert world.now() - start <= world.slack
    async with strict:
        pass
    await at_rest(permits)


@told
async def test_a_waiter_that_times_out_does_not_delay_those_behind_it(world: World) -> None:
    """Given a queue of two, when the first has waited long enough, then the second gets the permit
    (L2).
    """
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    impatient = asyncio.create_task(
        _acquired(limiter, max_sleep=100 * world.beat)
    )  # both wait before that
    await waiting(limiter, 1)
    patient = asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 2)

    with pytest.raises(MaxSleepExceededError):
        await impatient
    holder.release()

    (await soon(patient)).release()
    await at_rest(limiter)


# max_waiters --------------------------------------------------------------------------------------


@told
async def test_a_full_queue_refuses_at_once(world: World) -> None:
    """S9: as many as `max_waiters` may wait. One more caller is refused at once, is charged
    nothing, and may come again.
    """
    limiter = world.limiter(Concurrency(1), Rate(100, per=HOUR), max_waiters=2)
    holder = await limiter.acquire()
    queue = [asyncio.create_task(_acquired(limiter)) for _ in range(2)]
    await waiting(limiter, 2)

    with pytest.raises(QueueFullError) as refused:
        await soon(limiter.acquire())

    assert isinstance(refused.value, MaxSleepExceededError)
    assert refused.value.retry_after is None
    assert "raise max_waiters" in str(refused.value)
    status = await limiter.astatus()
    assert (used(status), status.waiting) == ([1, 1], 2)
    await _given_up(limiter, queue[:1])
    queue.append(asyncio.create_task(_acquired(limiter)))
    await waiting(limiter, 2)
    await _given_up(limiter, queue)
    holder.release()
    await at_rest(limiter)


@told
async def test_a_limiter_with_max_waiters_zero_allows_no_waiter(world: World) -> None:
    limiter = world.limiter(Concurrency(1), max_waiters=0)

    async with limiter:
        with pytest.raises(QueueFullError):
            await soon(limiter.acquire())

    await at_rest(limiter)


# Impossible costs ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "cost"),
    [
        (Rate(5, per=1), {"requests": 6}),
        (Rate(5, per=1, capacity=2), {"requests": 3}),
        (Window(5, per=1, unit="tokens"), {"tokens": 6}),
        (Quota(5, per=1, unit="tokens"), {"tokens": 6}),
        (Concurrency(64, unit="mb"), {"mb": 65}),
    ],
    ids=str,
)
@told
async def test_a_cost_above_the_capacity_is_an_error_at_once(
    world: World, limit: object, cost: dict[str, int]
) -> None:
    """T7: no wait would help, so the call raises at once, and nothing is charged.

    The capacity itself is possible.
    """
    limiter = world.limiter(limit)

    with pytest.raises(CostExceedsCapacityError, match="never"):
        limiter.acquire(**cost)
    with pytest.raises(CostExceedsCapacityError):
        await limiter.atry_acquire(**cost)
    with pytest.raises(CostExceedsCapacityError):
        limiter.acquire_sync(**cost)

    assert used(await limiter.astatus()) == [0]
    all_of_it = {unit: amount - 1 for unit, amount in cost.items()}
    (await soon(limiter.acquire(**all_of_it))).release()


async def _acquired(limiter: Limiter, max_sleep: float | None = None) -> Permit:
    return await limiter.acquire(max_sleep=max_sleep)


async def _given_up(limiter: Limiter, callers: list[asyncio.Task[Permit]]) -> None:
    before = await limiter.astatus()
    alive = [caller for caller in callers if not caller.done()]
    for caller in alive:
        caller.cancel()
    await asyncio.wait(callers)
    await until(lambda status: status.waiting == before.waiting - len(alive), limiter)
