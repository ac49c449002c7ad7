"""Callers that believe in their permits for as long as they may, and report from when until when,
on the machine's monotonic clock.

usage: believer.py URL name limit visits Four callers visit in turn; a visit lasts until its permit
is lost, or for so many leases as its number has it. Says "from to fence" for each visit, `to` being
the last moment at which the permit was not lost, or "StoreError" for a failed one.
"""

from __future__ import annotations

import asyncio
import sys
from time import monotonic

import headgate
from headgate import Limiter, Permit, StoreError
from tests.faults import haste

LENGTHS = [1 / 3, 2 / 3, 2.0, 0.0]  # of a visit, in leases


async def believe(permit: Permit, seconds: float) -> tuple[float, float]:
    """From when until when this permit was held, as far as its holder could know."""
    start = until = monotonic()
    while until - start < seconds and not permit.lost:
        until = monotonic()
        if permit.lost:
            break
        await asyncio.sleep(0.002)
    return start, until


async def main(url: str, name: str, limit: str, visits: str) -> None:
    limiter = Limiter(name, eval(limit, vars(headgate)), store=url)
    lease = eval(limit, vars(headgate)).lease

    async def caller(first: int) -> None:
        for number in range(first, int(visits), 4):
            try:
                async with limiter.acquire() as permit:
                    start, until = await believe(permit, LENGTHS[number // 4 % 4] * lease)
                    print(start, until, permit.fence, flush=True)
            except StoreError:
                print("StoreError", flush=True)

    await asyncio.gather(*(caller(first) for first in range(4)))


haste.hurry()
asyncio.run(main(*sys.argv[1:]))
