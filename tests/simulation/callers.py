"""The ways in which callers acquire, and use their permits: each as a user of the product would
write it.

This module has one caller from its acquire to its release. The fleet decides when it acquires, and
which faults it meets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from headgate import Limiter
from headgate.permit import Permit
from tests.simulation.checks import Witness, who_of
from tests.simulation.loop import SECOND
from tests.simulation.plan import Ask, Plan, unit_of
from tests.simulation.threads import WouldWait, without_loop


class Callers:
    """The callers of one run."""

    def __init__(self, plan: Plan, witness: Witness, calm_after: Callable[[float], float]) -> None:
        self._plan = plan
        self._witness = witness
        self._calm_after = calm_after

    def asking(self, limiter: Limiter, ask: Ask) -> Coroutine[Any, Any, None]:
        work: Coroutine[Any, Any, None] = getattr(self, f"_by_{ask.way}")(limiter, ask)
        return work

    def _units(self, ask: Ask) -> dict[str, Any]:
        unit, _ = unit_of(self._plan.limits[ask.name])
        return {} if unit == "permits" else {"cost" if unit == "requests" else unit: ask.cost}

    def _acquire(self, limiter: Limiter, ask: Ask) -> Any:
        return limiter.acquire(max_sleep=ask.max_sleep, **self._units(ask))

    async def _work(self, ask: Ask, permit: Permit) -> None:
        await asyncio.sleep(ask.keep / SECOND)
        lease = self._plan.longest_lease
        if permit.lost and self._calm_after(3 * lease) < lease * SECOND / 3:
            self._witness.blame("S7", f"{permit.key} was lost, and nothing had happened")
        unit, _ = unit_of(self._plan.limits[ask.name])
        if ask.actual is not None and unit in ("requests", "tokens"):
            self._witness.actual[who_of(str(permit.key)), unit] = ask.actual
            permit.settle(**{unit: ask.actual})

    async def _by_enter(self, limiter: Limiter, ask: Ask) -> None:
        async with limiter:
            await asyncio.sleep(ask.keep / SECOND)

    async def _by_block(self, limiter: Limiter, ask: Ask) -> None:
        async with self._acquire(limiter, ask) as permit:
            await self._work(ask, permit)

    async def _by_hand(self, limiter: Limiter, ask: Ask) -> None:
        permit = await self._acquire(limiter, ask)
        try:
            await self._work(ask, permit)
        finally:
            permit.release()

    async def _by_told(self, limiter: Limiter, ask: Ask) -> None:
        permit = await self._acquire(limiter, ask)
        try:
            await self._work(ask, permit)
        finally:
            await permit.arelease()

    async def _by_try(self, limiter: Limiter, ask: Ask) -> None:
        permit = await limiter.atry_acquire(**self._units(ask))
        if isinstance(permit, Permit):
            try:
                await self._work(ask, permit)
            finally:
                permit.release()

    async def _by_thread(self, limiter: Limiter, ask: Ask) -> None:
        """A caller that would have to wait leaves."""
        acquire = partial(limiter.acquire_sync, max_sleep=ask.max_sleep, **self._units(ask))
        try:
            permit = without_loop(acquire)
        except WouldWait:
            return
        try:
            await self._work(ask, permit)
        finally:
            without_loop(permit.release)

    async def _by_drop(self, limiter: Limiter, ask: Ask) -> None:
        permit = await self._acquire(limiter, ask)
        await asyncio.sleep(ask.keep / SECOND)
        del permit

    async def _by_status(self, limiter: Limiter, ask: Ask) -> None:
        await limiter.astatus()
