"""Nothing is lost: a caller that gives up, at any moment, leaves everything as if it had never come
(T5, S7, L4, F1 to F5, F8).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count

import pytest

from headgate import Concurrency, Limiter, Permit, Rate, Window
from tests.machine import scaled
from tests.processes import running
from tests.stepping import WAYS, cancelled_at
from tests.world import HOUR, World, at_rest, soon, told, until, waiting

# Waiters ------------------------------------------------------------------------------------------


@told
async def test_waiters_that_give_up_leave_the_queue_to_the_others(world: World) -> None:
    """S6, L6: ten callers wait for one permit, and every other one gives up. The others enter in
    order.
    """
    limiter = world.limiter(Concurrency(1))
    order: list[int] = []
    holder = await limiter.acquire()

    async def visit(number: int) -> None:
        async with limiter:
            order.append(number)

    callers = [asyncio.create_task(visit(number)) for number in range(10)]
    await waiting(limiter, 10)
    for caller in callers[::2]:
        caller.cancel()
    await waiting(limiter, 5)
    holder.release()
    await soon(asyncio.wait(callers))

    assert order == [1, 3, 5, 7, 9]
    await at_rest(limiter)


@told
async def test_a_release_and_a_cancellation_in_one_turn_lose_no_permit(world: World) -> None:
    """F5: the woken waiter is cancelled before it runs, and the permit goes to the next waiter."""
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    first, second = asyncio.create_task(_acquired(limiter)), asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 2)

    holder.release()
    first.cancel()

    (await soon(second)).release()
    assert first.cancelled()
    await at_rest(limiter)


@told
async def test_a_timeout_is_raised_once_and_leaves_no_cancellation_behind(world: World) -> None:
    """F8: `asyncio.timeout` turns exactly one cancellation into its TimeoutError, and the task is
    as good as before.
    """
    limiter = world.limiter(Concurrency(1))
    async with limiter:
        for delay in (0, world.beat):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(delay), limiter:
                    pass
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(_acquired(limiter), delay)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await waiting(limiter, 0)

    await at_rest(limiter)


@told
async def test_a_task_group_that_fails_gives_everything_back(world: World) -> None:
    """F8: one task fails, and its siblings are cancelled inside and in the queue. The error is the
    one that was raised.
    """
    limiter = world.limiter(Concurrency(2))

    async def fail() -> None:
        async with limiter:
            await waiting(limiter, 3)
            raise ZeroDivisionError

    async def stay() -> None:
        async with limiter:
            await asyncio.sleep(HOUR)

    with pytest.raises(ExceptionGroup) as failed:
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
            for _ in range(4):
                group.create_task(stay())

    assert [type(error) for error in failed.value.exceptions] == [ZeroDivisionError]
    await at_rest(limiter)


@told
async def test_a_release_that_is_cancelled_has_released_the_permit(world: World) -> None:
    """F3, H1: a caller that is cancelled while it releases has released. No finalizer is left."""
    limiter = world.limiter(Concurrency(1))
    for at in count():
        permit = await soon(limiter.acquire())
        reached = await cancelled_at(permit.arelease(), "asked", at)
        await at_rest(limiter)
        assert not hasattr(permit, "__del__")
        if not reached:
            break


@told
async def test_a_body_that_is_cancelled_gives_its_permit_back(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    entered = asyncio.Event()

    async def stay() -> None:
        async with limiter.acquire():
            entered.set()
            await asyncio.sleep(HOUR)

    task = asyncio.create_task(stay())
    await entered.wait()
    task.cancel()
    await asyncio.wait([task])

    assert task.cancelled()
    await at_rest(limiter)


@told
async def test_thousands_of_waiters_give_up_at_once(world: World) -> None:
    """F18: the cancellation of a large queue costs no more than the calls that cancel its tasks."""
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    callers = [asyncio.create_task(_acquired(limiter)) for _ in range(3000)]
    await waiting(limiter, 3000)
    start = time.process_time()

    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    await waiting(limiter, 0)

    assert time.process_time() - start < 1.0
    holder.release()
    await at_rest(limiter)


# Reservations -------------------------------------------------------------------------------------


def assert_through(through: list[tuple[int, Permit]], rate: int) -> None:
    """T1, T3: the callers pass in order, and at no time faster than the rate."""
    order = [index for index, _ in through]
    moments = [permit.t for _, permit in through]
    assert order == sorted(order)
    assert moments == sorted(moments)
    assert_within_the_rate(moments, rate)


def assert_within_the_rate(moments: list[int], rate: int) -> None:
    """T1: given an empty bucket of capacity `rate`, then k grants take at least the time of k -
    capacity tokens, from any start.
    """
    gap = 1_000_000 // rate
    for start in range(len(moments)):
        for end in range(start + rate, len(moments)):
            assert moments[end] - moments[start] >= (end - start - rate) * gap - 1


@told
async def test_reservations_move_forward_when_others_give_up(world: World) -> None:
    """Given many callers on one bucket, when every other one is cancelled, then the others pass in
    half the time, in order.

    In memory 1,000 callers due over 10 s pass in exactly 5 s. On the server the same scenario has
    600 callers due over 3 s.
    """
    rate, callers_in_all = (100, 1000) if world.virtual else (200, 600)
    limiter = world.limiter(Rate(rate, per=1, initial=0))
    through: list[tuple[int, Permit]] = []

    async def caller(index: int) -> None:
        async with limiter.acquire() as permit:
            through.append((index, permit))

    start = world.now()
    callers = [asyncio.create_task(caller(index)) for index in range(callers_in_all)]
    await asyncio.sleep(0)
    await limiter.astatus()  # arrives after all of them
    for task in callers[::2]:
        task.cancel()
    await asyncio.wait(callers)

    took = world.now() - start
    assert [index for index, _ in through] == list(range(1, callers_in_all, 2))
    assert_through(through, rate)
    if world.virtual:
        assert took == pytest.approx(5.0, abs=1e-6)
    else:
        assert 1.5 - 1 / rate <= took <= 1.5 + world.slack


@pytest.mark.proof
def test_reservations_move_forward_over_processes(name: str, redis_url: str) -> None:
    """The same at full size: given 1,000 callers in 4 processes, due over 10 s, when every other
    one gives up, then the others pass in 5 s, in order.

    S6 over processes: within each process the order is that of arrival. T3 over all: moments rise
    with the fences.
    """
    rate, callers_in_all, processes = 100, 1000, 4
    start = time.monotonic()
    with ExitStack() as stack:
        programs = [
            stack.enter_context(
                running("crowd", redis_url, name, rate, callers_in_all // processes)
            )
            for _ in range(processes)
        ]
        assert [each.line() for each in programs] == ["asked"] * processes
        for each in programs:
            each.tell("cancel")
        assert [each.line() for each in programs] == ["gave up"] * processes
        gave_up = time.monotonic()
        said = [[tuple(map(int, line.split())) for line in each.lines()] for each in programs]

    for through in said:
        assert [index for index, _, _ in through] == sorted(index for index, _, _ in through)
        assert {index for index, _, _ in through} >= set(range(1, callers_in_all // processes, 2))
    grants = sorted((fence, t) for through in said for _, fence, t in through)
    moments = [t for _, t in grants]
    assert moments == sorted(moments)
    assert_within_the_rate(moments, rate)
    early = len(grants) - callers_in_all // 2  # callers that were granted before they could give up
    assert early <= rate * (gave_up - start) + 10
    assert moments[-1] - moments[0] <= len(moments) * 1_000_000 // rate + scaled(1_000_000)


@told
async def test_a_cancelled_reservation_is_refunded(world: World) -> None:
    """T5, T8: before its moment a reservation costs nothing, whether its caller waits in the queue
    or sleeps until its moment.
    """
    limiter = world.limiter(Rate(1, per=2 * world.beat), Rate(100, per=1000 * HOUR, unit="tokens"))

    passed = []
    for _ in range(5):
        await limiter.acquire(tokens=1)
        if await unless_it_passes(limiter, world, tokens=10):
            passed.append(10)

    assert len(passed) < 5
    await until(
        lambda status: status.waiting == 0 and status.limits[1].used == 5 + sum(passed), limiter
    )


async def unless_it_passes(limiter: Limiter, world: World, **units: int) -> Permit | None:
    """Give an acquire up before its moment. The result is its permit if a stall has brought that
    moment.
    """
    try:
        async with asyncio.timeout(world.beat / 4):
            return await limiter.acquire(**units)
    except TimeoutError:
        return None


@told
async def test_the_caller_after_a_cancelled_reservation_takes_its_moment(world: World) -> None:
    """T5: the next caller gets the tokens that the cancelled one would have used."""
    limiter = world.limiter(Rate(1, per=2 * world.beat))
    first = await limiter.acquire()
    while passed := await unless_it_passes(limiter, world):
        first = passed

    second = await limiter.acquire()

    assert 2 * world.ticks <= second.t - first.t <= 2 * world.ticks + world.slack * 1_000_000


@told
async def test_a_window_forgets_cancelled_calls(world: World) -> None:
    """T5 for windows: as if the cancelled caller had never been there."""
    limiter = world.limiter(Window(3, per=2 * world.beat))
    first = await limiter.acquire(3)
    callers = [asyncio.create_task(_acquired(limiter)) for _ in range(6)]
    await asyncio.sleep(0)
    await limiter.astatus()

    for caller in callers[:3]:
        caller.cancel()
    permits = await asyncio.gather(*callers[3:])

    for permit in permits:
        assert 2 * world.ticks <= permit.t - first.t <= 2 * world.ticks + world.slack * 1_000_000


# At every point -----------------------------------------------------------------------------------


async def free(limiter: Limiter) -> list[Permit]:
    """Leave the permit free."""
    return []


async def taken(limiter: Limiter) -> list[Permit]:
    """Hold the permit, and release it while the caller waits."""
    permit = await limiter.acquire()
    asyncio.get_running_loop().call_later(0.003, permit.release)
    return [permit]


async def spent(limiter: Limiter) -> list[Permit]:
    """Spend the token of this beat."""
    permit = await limiter.acquire()
    await permit.arelease()
    return [permit]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("before", [free, taken, spent], ids=lambda before: before.__name__)
@pytest.mark.parametrize("entered", ["acquire", "block", "limiter", "try"])
@told
async def test_a_cancellation_at_any_suspension_leaves_nothing_behind(
    world: World, way: str, before: Callable[[Limiter], object], entered: str
) -> None:
    """STEP: for every k, cancel at the k-th suspension of an entry. Then no permit is held, no
    caller waits, and no token was charged.

    Only a caller that was granted before it was cancelled has paid for it.
    """
    for at in count():
        limits = Concurrency(1), Rate(1, per=world.beat), Rate(100, per=1000 * HOUR, unit="tokens")
        limiter = world.limiter(*limits, name=f"{world.name}-{at}")
        around = await before(limiter)
        let_in: list[int] = []

        reached = await cancelled_at(WAYS_IN[entered](limiter, let_in), way, at)

        status = await at_rest(limiter)
        assert status.limits[2].used == sum(let_in)
        if not reached:
            break
        (await soon(limiter.acquire())).release()
        del around
    must_wait = before is not free and entered != "try"
    assert at > 0 or (world.in_memory and not must_wait)  # otherwise no suspension was tested


async def _by_acquire(limiter: Limiter, let_in: list[int]) -> None:
    permit = await limiter.acquire(tokens=5)
    let_in.append(5)
    permit.release()


async def _by_block(limiter: Limiter, let_in: list[int]) -> None:
    async with limiter.acquire(tokens=5):
        let_in.append(5)
        await asyncio.sleep(0)


async def _by_limiter(limiter: Limiter, let_in: list[int]) -> None:
    async with limiter:
        await asyncio.sleep(0)


async def _by_try(limiter: Limiter, let_in: list[int]) -> None:
    permit = await limiter.atry_acquire(tokens=5)
    if isinstance(permit, Permit):
        let_in.append(5)
        permit.release()


WAYS_IN = {"acquire": _by_acquire, "block": _by_block, "limiter": _by_limiter, "try": _by_try}


async def _acquired(limiter: Limiter) -> Permit:
    return await limiter.acquire()
