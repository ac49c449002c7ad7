"""Held permits in memory, through any changes of limits. Each is counted for as long as it is held,
and no longer (S1, S7).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from headgate import Concurrency, CostExceedsCapacityError, Limiter, Permit, Rate
from headgate.gate.gate import ONE_EACH
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import settled
from tests.world import soon

PERMITS, MEGABYTES, REQUESTS, RATE = (
    Concurrency(2),
    Concurrency(9, unit="mb"),
    Concurrency(5, unit="requests"),
    Rate(10**6, per=1),
)
LIMITS = [
    *[
        [PERMITS],
        [Concurrency(1)],
        [MEGABYTES],
        [REQUESTS],
        [RATE],
        [PERMITS, RATE],
        [MEGABYTES, RATE],
    ],
    *[
        [PERMITS, MEGABYTES],
        [MEGABYTES, REQUESTS],
        [REQUESTS, PERMITS],
        [PERMITS, MEGABYTES, REQUESTS, RATE],
    ],
]


class Story:
    """Tasks that enter, acquire, are cancelled and leave, at one limiter whose limits keep
    changing.
    """

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.limits = self.chance.choice(LIMITS)
        self.limiter = Limiter("story", *self.limits, store=MemoryStore())
        # The units that each held permit was acquired for. If `requests` and `permits` are not
        # among them, it has one of each.
        self.held: list[dict[str, int]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.leaving: list[asyncio.Event] = []

    async def play(self) -> None:
        steps: list[Callable[[], object]] = [
            self.arrive,
            self.arrive,
            self.arrive,
            self.change,
            self.change,
            self.leave,
            self.leave,
        ]
        for _ in range(60):
            self.chance.choice([*steps, self.cancel])()
            if self.chance.random() < 0.5:
                await self.assert_counted()
        self.limiter.update(
            Concurrency(1000), Concurrency(1000, unit="mb"), Concurrency(1000, unit="requests")
        )
        await settled()
        for leaving in self.leaving:
            leaving.set()
        await soon(asyncio.gather(*self.tasks, return_exceptions=True))
        assert [limit.used for limit in self.limiter.status().limits] == [0, 0, 0]

    def arrive(self) -> None:
        self.leaving.append(asyncio.Event())
        units = {
            limit.unit: self.chance.randint(1, 4)
            for limit in self.limits
            if limit.unit != "permits"
        }
        call = (
            self.enter(self.leaving[-1])
            if self.chance.random() < 0.4
            else self.acquire(self.leaving[-1], units)
        )
        self.tasks.append(asyncio.create_task(call))

    async def enter(self, leaving: asyncio.Event) -> None:
        async with self.limiter:
            self.held.append({})
            try:
                await leaving.wait()
            finally:
                self.held.remove({})

    async def acquire(self, leaving: asyncio.Event, units: dict[str, int]) -> None:
        permit: Any = None
        try:
            others = {unit: number for unit, number in units.items() if unit != "requests"}
            permit = await self.limiter.acquire(units.get("requests", 1), **others)
        except (CostExceedsCapacityError, ValueError):  # the limits have changed since
            return
        await self.hold(permit, leaving)

    async def hold(self, permit: Permit, leaving: asyncio.Event) -> None:
        units = dict(permit.units)
        if permit.held:
            self.held.append(units)
        try:
            await leaving.wait()
        finally:
            if permit.held:
                self.held.remove(units)
            permit.release()

    def change(self) -> None:
        self.limits = self.chance.choice(LIMITS)
        self.limiter.update(*self.limits)

    def leave(self) -> None:
        if self.leaving:
            self.chance.choice(self.leaving).set()

    def cancel(self) -> None:
        if self.tasks:
            self.chance.choice(self.tasks).cancel()

    async def assert_counted(self) -> None:
        await settled()
        used = {
            limit.unit: limit.used
            for limit in self.limiter.status().limits
            if limit.kind == "Concurrency"
        }
        assert used == {
            unit: sum({**ONE_EACH, **units}.get(unit, 0) for units in self.held) for unit in used
        }


@pytest.mark.parametrize("stretch", range(4))
async def test_held_permits_are_counted_under_any_limits(stretch: int) -> None:
    """S1, S7: given any callers and any changes of kinds and units, then each limit counts exactly
    what the callers inside have of it.
    """
    for seed in range(stretch * 50, stretch * 50 + 50):
        try:
            await Story(seed).play()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


async def test_a_child_of_a_fork_holds_nothing_and_keeps_the_counts_of_rates(name: str) -> None:
    """S7: given a holder, a waiter and a rate, when the process forks, then the child has all
    permits and the rate's count.
    """
    store = MemoryStore()
    limiter = Limiter(name, Concurrency(2, unit="mb"), Rate(10, per=60), store=store)
    held = await limiter.acquire(mb=2)
    waits = asyncio.create_task(limiter.acquire(mb=1))
    await settled()
    assert limiter.status().waiting == 1

    store.forked()

    status = limiter.status()
    assert [limit.used for limit in status.limits] == [0, 1]
    assert status.waiting == 0
    with limiter.acquire(mb=2):
        held.release()
        assert limiter.status().limits[0].used == 2
    waits.cancel()
