"""A signal handler raises while a limiter in memory takes new limits.

The update then holds whole or not at all, and a second one brings it about.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from headgate import Concurrency, CostExceedsCapacityError, Limit, Limiter, Permit, Rate, Window
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import settled

Limits = tuple[Limit, ...]

PERMITS, RATE = Concurrency(3), Rate(7, per=60)
CHANGES: dict[str, tuple[Limits, Limits]] = {
    "more permits": ((PERMITS,), (Concurrency(5),)),
    "a rate, then permits": ((RATE,), (PERMITS,)),
    "permits, then a rate": ((PERMITS,), (RATE,)),
    "permits beside a rate": ((RATE,), (RATE, PERMITS)),
    "a rate without its permits": ((PERMITS, RATE), (RATE,)),
    "another unit": ((PERMITS, RATE), (Concurrency(2), Concurrency(9, unit="mb"))),
}


class Interrupt(Exception):
    pass


class At:
    """Raises at the `left`-th place in headgate where Python may run a signal handler."""

    def __init__(self, left: int) -> None:
        self.left = left

    def update(self, limiter: Limiter, limits: Limits) -> bool:
        """Update the limits, and return whether the place was reached."""
        sys.setprofile(self._look)
        try:
            limiter.update(*limits)
        except Interrupt:
            pass
        finally:
            sys.setprofile(None)
        return self.left <= 0

    def _look(self, frame: FrameType, event: str, _: object) -> None:
        ours = frame.f_globals.get("__name__", "").startswith("headgate.")
        if ours and event in ("call", "c_return"):
            self.left -= 1
            if self.left == 0:
                sys.setprofile(None)
                raise Interrupt


def held(limits: Limits) -> tuple[Limiter, list[Permit]]:
    limiter = Limiter("changing", *limits, store=MemoryStore())
    return limiter, [limiter.acquire_sync() for _ in range(2)]


def used(limiter: Limiter) -> str:
    return repr(limiter)


# A generator's own end may be interrupted, too. Python then prints the exception and goes on.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("change", CHANGES)
def test_an_interrupted_update_holds_whole_or_not_at_all(change: str) -> None:
    """L5, S1: given two held permits, when an exception comes at any place in `update`, then the
    former or the new limits hold, and every permit stays counted until it is released.
    """
    former, new = CHANGES[change]
    before, _ = held(former)
    after, permits_after = held(former)
    after.update(*new)
    possible = {used(before), used(after)}
    held_after = used(after)
    for permit in permits_after:
        permit.release()
    place = 0
    while True:
        place += 1
        limiter, permits = held(former)
        reached = At(place).update(limiter, new)

        assert used(limiter) in possible, place
        limiter.update(*new)
        assert used(limiter) == held_after, place
        for permit in permits:
            permit.release()
        assert used(limiter) == used(after), place
        if not reached:
            break
    assert place > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_waiter_of_an_interrupted_update_holds_what_it_gives_back() -> None:
    """S1, L5: given a waiter for a rate, when permits come to the limits with an exception at any
    place in `update`, then its permit is free when its block ends.
    """
    place = 0
    while True:
        place += 1
        limiter = Limiter("growing", "1/minute", store=MemoryStore())
        await limiter.acquire()

        async def wait(limiter: Limiter = limiter) -> None:
            async with limiter:
                pass

        task = asyncio.create_task(wait())
        await settled()
        new = (Concurrency(6), Window(1000, per=60))
        reached = At(place).update(limiter, new)
        limiter.update(*new)
        await asyncio.wait_for(task, 10)
        assert limiter.status().limits[0].used == 0, place
        if not reached:
            break
    assert place > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_an_interrupted_update_leaves_no_waiter_behind() -> None:
    """L5, T7: given waiters for 1, 3 and 1 permits, when the limits fall to 2 permits with an
    exception at any place in `update`, then the one for 3 is refused, and the others pass in order.
    """
    place = 0
    while True:
        place += 1
        limiter = Limiter("falling", Concurrency(3), store=MemoryStore())
        permit = await limiter.acquire(permits=3)
        passed: list[int] = []

        async def wait(
            number: int, cost: int, limiter: Limiter = limiter, passed: list[int] = passed
        ) -> None:
            async with await limiter.acquire(permits=cost):
                passed.append(number)

        tasks = [asyncio.create_task(wait(number, cost)) for number, cost in enumerate((1, 3, 1))]
        await settled()
        reached = At(place).update(limiter, (Concurrency(2),))
        limiter.update(Concurrency(2))
        await permit.arelease()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)

        assert isinstance(ended[1], CostExceedsCapacityError), place
        assert passed == [0, 2], place
        assert limiter.status().limits[0].used == 0, place
        if not reached:
            break
    assert place > 50
