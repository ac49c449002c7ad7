"""A pause holds all callers of a name, whichever caller set it, and grants no extra tokens."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headgate import (
    Concurrency,
    Limiter,
    MaxSleepExceededError,
    Permit,
    Quota,
    Rate,
    Refusal,
    Window,
)
from headgate.internals import queue_of
from tests.world import HOUR, World, at_rest, soon, told, until, used, waiting

Way = Callable[[Limiter, float], Awaitable[None]]


async def pause(limiter: Limiter, seconds: float) -> None:
    limiter.pause(seconds)
    await limiter.astatus()  # arrives behind it


async def apause(limiter: Limiter, seconds: float) -> None:
    await limiter.apause(seconds)


WAYS = pytest.mark.parametrize("hold", [pause, apause])
PLENTY = {
    "rate": [Rate(100, per=HOUR)],
    "window": [Window(100, per=HOUR)],
    "quota": [Quota(100, per=1000 * HOUR)],
    "concurrency": [Concurrency(100)],
    "several": [Concurrency(100), Rate(100, per=HOUR)],
}
KINDS = pytest.mark.parametrize("limits", PLENTY.values(), ids=PLENTY)
BEATS = 3  # of a pause


async def acquired(limiter: Limiter) -> Permit:
    return await limiter.acquire()


class Passages:
    """The callers that have passed, and when."""

    def __init__(self, world: World, limiter: Limiter) -> None:
        self.world = world
        self.limiter = limiter
        self.who: list[object] = []
        self.moments: list[float] = []

    def comes(self, who: object) -> asyncio.Task[Permit]:
        """By `acquire`."""
        return asyncio.create_task(self._acquire(who))

    def enters(self, who: object) -> asyncio.Task[None]:
        """By `async with`."""
        return asyncio.create_task(self._enter(who))

    async def _acquire(self, who: object) -> Permit:
        permit = await self.limiter.acquire()
        self._passed(who)
        return permit

    async def _enter(self, who: object) -> None:
        async with self.limiter:
            self._passed(who)

    def _passed(self, who: object) -> None:
        self.who.append(who)
        self.moments.append(self.world.now())

    def assert_after(self, moment: float) -> None:
        """All of them passed after this moment, and not long after."""
        assert all(
            moment - 1e-6 <= each <= moment + self.world.slack + 1e-6 for each in self.moments
        ), (moment, self.moments)


@KINDS
@WAYS
@told
async def test_no_caller_passes_before_the_end_of_a_pause(
    world: World, hold: Way, limits: list[Any]
) -> None:
    """T3, S6: given free permits, when the name is paused, then new callers wait until the pause
    ends. Then all pass, in order.
    """
    limiter = world.limiter(*limits)
    passages = Passages(world, limiter)
    async with limiter:
        pass
    await at_rest(limiter)

    start = world.now()
    await hold(limiter, BEATS * world.beat)
    first, second, third = passages.enters(0), passages.comes(1), passages.enters(2)
    await soon(asyncio.gather(first, third))
    (await soon(second)).release()

    assert passages.who == [0, 1, 2]
    passages.assert_after(start + BEATS * world.beat)
    await at_rest(limiter)


@KINDS
@told
async def test_callers_pass_at_once_after_a_pause(world: World, limits: list[Any]) -> None:
    """L6: given a pause that is over and in which no caller came, when a caller enters, then it
    passes at once.
    """
    limiter = world.limiter(*limits)

    await limiter.apause(world.beat)
    await asyncio.sleep(world.beat)
    start = world.now()
    for _ in range(3):
        async with limiter:
            pass

    assert world.now() - start <= world.slack
    await at_rest(limiter)


@WAYS
@told
async def test_a_caller_that_waits_for_a_token_is_held_by_a_pause_too(
    world: World, hold: Way
) -> None:
    """T1, T3: given two callers that wait for a token an hour, when the name is paused for 90
    minutes, then one passes at the end. The other passes an hour later, because the pause grants no
    extra tokens.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    callers = [asyncio.create_task(acquired(limiter)) for _ in range(2)]
    await waiting(limiter, 2)

    await hold(limiter, 1.5 * HOUR)
    status = await waiting(limiter, 2)

    assert status.retry_after == pytest.approx(3.5 * HOUR, abs=world.slack or 0.01)
    for caller in callers:
        caller.cancel()
    await waiting(limiter, 0)


@told
async def test_no_burst_beyond_the_capacity_follows_a_pause(world: World) -> None:
    """T1: given a bucket of two and a pause in which ten tokens would have come, then two callers
    pass at its end. The others pass one by one.
    """
    limiter = world.limiter(Rate(1, per=world.beat, capacity=2))
    passages = Passages(world, limiter)

    start = world.now()
    await limiter.apause(2 * world.beat)
    callers = [passages.comes(number) for number in range(4)]
    await soon(asyncio.gather(*callers))

    seen = [moment - start for moment in passages.moments]
    assert all(
        moment >= wanted * world.beat - 1e-6
        for moment, wanted in zip(seen, (2, 2, 3, 4), strict=True)
    ), seen
    assert seen[-1] <= 4 * world.beat + world.slack + 1e-6


@told
async def test_a_permit_released_in_a_pause_is_granted_at_its_end(world: World) -> None:
    """S1, S6: given a holder and two waiters, when the holder leaves in a pause, then the first
    waiter enters when the pause is over.
    """
    limiter = world.limiter(Concurrency(1))
    passages = Passages(world, limiter)
    holder = await limiter.acquire()
    callers = [passages.enters(number) for number in range(2)]
    await waiting(limiter, 2)

    start = world.now()
    await limiter.apause(BEATS * world.beat)
    assert holder.held
    holder.release()
    await soon(asyncio.gather(*callers))

    assert passages.who == [0, 1]
    passages.assert_after(start + BEATS * world.beat)
    await at_rest(limiter)


@told
async def test_a_shorter_pause_does_not_end_a_longer_one(world: World) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))

    for hours in (3, 1, 0, 2):
        await limiter.apause(hours * HOUR)

    assert (await limiter.astatus()).retry_after == pytest.approx(3 * HOUR, abs=world.slack or 0.01)


@told
async def test_a_longer_pause_prolongs_a_shorter_one(world: World) -> None:
    """This holds for callers that wait already, too."""
    limiter = world.limiter(Concurrency(2))
    await limiter.apause(HOUR)
    caller = asyncio.create_task(acquired(limiter))
    await waiting(limiter, 1)

    await limiter.apause(2 * HOUR)
    status = await waiting(limiter, 1)

    assert status.retry_after == pytest.approx(2 * HOUR, abs=world.slack or 0.01)
    caller.cancel()
    await waiting(limiter, 0)


@told
async def test_a_caller_that_may_not_wait_for_the_end_of_a_pause_is_refused_with_its_end(
    world: World,
) -> None:
    """T8: a refusal says when the pause is over, and charges nothing. The status says it, too."""
    limiter = world.limiter(Rate(100, per=1000 * HOUR), Concurrency(5))
    await limiter.apause(HOUR)

    refused = await limiter.atry_acquire()
    with pytest.raises(MaxSleepExceededError) as error:
        await limiter.acquire(max_sleep=world.beat)
    status = await limiter.astatus()

    assert isinstance(refused, Refusal)
    for wait in (refused.retry_after, error.value.retry_after, status.retry_after):
        assert wait == pytest.approx(HOUR, abs=world.slack or 0.01)
    assert (used(status), status.waiting) == ([0, 0], 0)


@told
async def test_a_caller_that_gives_up_in_a_pause_leaves_nothing_behind(world: World) -> None:
    """T5, L6: and callers behind it go on waiting."""
    limiter = world.limiter(Rate(5, per=1000 * HOUR))
    await limiter.apause(HOUR)
    callers = [asyncio.create_task(acquired(limiter)) for _ in range(2)]
    await waiting(limiter, 2)

    callers[0].cancel()
    await waiting(limiter, 1)
    callers[1].cancel()

    assert used(await waiting(limiter, 0)) == [0]


@told
async def test_a_change_of_limits_does_not_end_a_pause(world: World) -> None:
    """S1, T9: given a pause, when the limits change during it, then the pause goes on, and then the
    new limits hold.
    """
    limiter = world.limiter(Concurrency(1))
    passages = Passages(world, limiter)

    start = world.now()
    await limiter.apause(BEATS * world.beat)
    await limiter.aupdate(Concurrency(2), Rate(2, per=HOUR))
    callers = [passages.enters(number) for number in range(2)]
    await soon(asyncio.gather(*callers))

    passages.assert_after(start + BEATS * world.beat)
    await until(lambda status: used(status) == [0, 2], limiter)


@KINDS
def test_a_pause_closes_the_fast_path_that_a_thread_is_about_to_take(
    memory: World, limits: list[Any]
) -> None:
    """T3: given a thread that is about to take the fast path in memory, when another thread pauses,
    then the fast path is closed.
    """
    limiter = memory.limiter(*limits)
    with limiter:
        pass
    fast_path = queue_of(limiter).enter

    limiter.pause(HOUR)

    assert not fast_path()


@told
async def test_a_pause_of_a_key_holds_that_key_alone(world: World) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))
    await limiter["one"].apause(HOUR)

    assert not await limiter["one"].atry_acquire()
    assert await limiter["two"].atry_acquire()
    assert await limiter.atry_acquire()


def test_a_pause_by_a_thread_holds_other_threads(store: object, name: str) -> None:
    """T3: of both protocols: a pause of this thread holds another one, and a task."""
    limiter = Limiter(name, Concurrency(5), store=store)
    with limiter:
        pass
    passed: list[float] = []

    def enter() -> None:
        with limiter:
            passed.append(time.monotonic())

    start = time.monotonic()
    limiter.pause(0.05)
    limiter.status()  # arrives behind it
    thread = threading.Thread(target=enter)
    thread.start()
    enter()
    thread.join()

    assert min(passed) >= start + 0.05


def test_a_pause_of_no_time_changes_nothing(name: str, store: object) -> None:
    limiter = Limiter(name, Concurrency(5), store=store)
    limiter.pause(300)
    before = limiter.status().paused

    limiter.pause(0)

    assert 0 < limiter.status().paused <= before
    limiter.resume()
    limiter.pause(0)
    assert limiter.status().paused == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 10**12, "1", None, True])
def test_a_pause_of_no_valid_length_is_refused(name: str, store: object, seconds: Any) -> None:
    """The error comes before anything is sent, and names the call and the value."""
    limiter = Limiter(name, Concurrency(5), store=store)

    with pytest.raises((TypeError, ValueError), match="pause"):
        limiter.pause(seconds)
    with pytest.raises((TypeError, ValueError), match="pause"):
        asyncio.run(limiter["k"].apause(seconds))
