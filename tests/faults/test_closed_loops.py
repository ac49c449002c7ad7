"""An event loop is closed, dropped or ended by asyncio.run while its tasks hold permits and wait for some.

Every loop here is one of a real process: see programs/closed_loops.py.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate import Concurrency, Limiter, Rate
from tests.processes import finished

HOWS = ["closes", "closes_and_keeps", "closes_and_tells", "drops", "drops_all", "runs", "goes_on"]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("what", ["all", pytest.param("first", marks=pytest.mark.proof)])
async def test_a_loop_that_ends_under_its_tasks_prints_nothing_and_keeps_nothing(
    name: str, redis_url: str, how: str, what: str
) -> None:
    """F7, F9, S7: the places of waiters and the permits of blocks are back when the process has ended."""
    assert await asyncio.to_thread(finished, "closed_loops", redis_url, name, how, what) == ""

    held = await Limiter(f"{name}-held", Concurrency(1), store=redis_url).astatus()
    queued = await Limiter(f"{name}-queued", Rate(1, per=3600), store=redis_url).astatus()
    booked = await Limiter(f"{name}-booked", Rate(50, per=1, capacity=1), store=redis_url).astatus()
    assert (held.limits[0].used, held.waiting, queued.waiting, booked.waiting) == (0, 0, 0, 0)
