"""The same scenario on each event loop that this Python has: the same order, the same counts (F20).

With `--loop` all tests run on one of them.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate
from tests import loops
from tests.world import HOUR, at_rest, soon, waiting


def here() -> list[str]:
    """The loops that can be had; for the others tests/interpreters.py has other Pythons."""
    found = []
    for loop, made in loops.LOOPS.items():
        try:
            made()
        except loops.LoopMissing:
            continue
        found.append(loop)
    return found


@pytest.mark.parametrize("loop", here())
def test_waiters_go_in_order_and_cancelled_ones_leave_the_queue_on_any_loop(
    store: Any, name: str, loop: str
) -> None:
    """S1, S6, S7, L6, F20: forty callers wait for one permit, and every fourth gives up. All others
    enter in order, and are charged once.
    """
    limiter = Limiter(name, Concurrency(1), Rate(1000, per=1000 * HOUR), store=store)
    order: list[int] = []

    async def visit(number: int) -> None:
        async with limiter:
            order.append(number)
            await asyncio.sleep(0)

    async def story() -> None:
        permit = await limiter.acquire()
        callers = [asyncio.create_task(visit(number)) for number in range(40)]
        await waiting(limiter, 40)
        for caller in callers[::4]:
            caller.cancel()
        await permit.arelease()
        await soon(asyncio.wait(callers))
        assert (await at_rest(limiter)).limits[1].used == 31

    with asyncio.Runner(loop_factory=loops.LOOPS[loop]()) as runner:
        runner.run(story())

    assert order == [number for number in range(40) if number % 4]
