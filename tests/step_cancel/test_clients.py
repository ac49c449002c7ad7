"""STEP for HTTP: every coroutine of headgate.http, interrupted at its k-th suspension, for every k,
between a client and a server.

F1, F2, F3, F6. These tests do not use every way of tests/stepping.py, because errors and closings
would hit the client's own code, too. Stores make no difference to a client, so those that are
driven in both stand for all.
"""

from __future__ import annotations

import asyncio
from types import CodeType
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Window
from headgate.stores.memory.store import MemoryStore
from tests.step_cancel.clients import CALLINGS, Calling
from tests.step_cancel.scenes import OURS, tasks
from tests.stepping import Stepped
from tests.world import HOUR, at_rest, soon, waiting

NEVER = -1
WAYS = ("asked", "woken", "sent", "twice")
PLENTY = 1000
LIMITS = Concurrency(1), Window(PLENTY, HOUR), Window(1000 * PLENTY, HOUR, unit="tokens")


CASES = [
    pytest.param(
        *(store, calling, way),
        id=f"{name}-{store}-{way}",
        marks=[pytest.mark.proof] * (way not in ("asked", "woken")),
    )
    for name, calling in CALLINGS.items()
    for store in calling.stores
    for way in WAYS
]


@pytest.mark.parametrize(("store", "calling", "way"), CASES)
def test_a_call_that_is_interrupted_anywhere_gives_its_permit_back(
    store: str, name: str, calling: Calling, way: str, request: pytest.FixtureRequest
) -> None:
    """S7, L6: one call may run at a time. When one is interrupted anywhere, the next one can run,
    no caller waits, and no task is left. F1, F2, F3, F6.
    """
    place = request.getfixturevalue("redis_url") if store == "redis" else MemoryStore()
    with calling.service() as service:
        at, reached = 0, True
        while reached:
            reached = asyncio.run(
                interrupted(
                    calling, service, Limiter(f"{name}-{at}", *LIMITS, store=place), way, at
                )
            ).reached
            at += 1
    assert at > 3, "it was interrupted nowhere"


async def interrupted(
    calling: Calling, service: Any, limiter: Limiter, way: str, at: int, looks: bool = False
) -> Stepped:
    """Interrupt it while another caller holds the only permit; then release that."""
    before = await limiter.acquire()
    async with calling.made(limiter, service) as client:
        stepped = Stepped(calling.ask(client, service.url), way, at)
        stepped.looks = looks
        driven = asyncio.create_task(stepped.run())
        await soon(until_it_waits(limiter, driven))
        before.release()
        stepped.around.settled.set()
        await soon(driven)
    await at_rest(limiter)
    assert (await soon(limiter.acquire())).release() is None, "S7: the permit is missing"
    await no_task_is_left()
    return stepped


async def until_it_waits(limiter: Limiter, driven: asyncio.Task[Any]) -> None:
    async def queued() -> None:
        await waiting(limiter, 1)

    looking = asyncio.create_task(queued())
    await asyncio.wait({looking, driven}, return_when=asyncio.FIRST_COMPLETED)
    looking.cancel()
    await asyncio.wait({looking})


async def no_task_is_left() -> None:
    """L6: except for headgate's own, no task is left. A client ends its own tasks itself."""
    for _ in range(1000):
        if all(task.startswith(OURS) for task in tasks()):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"L6: still at work: {tasks()}")


def ran_in_clients(name: str) -> set[CodeType]:
    """The code that runs in all of these without an interruption."""
    ran: set[CodeType] = set()
    for number, calling in enumerate(CALLINGS.values()):
        with calling.service() as service:
            limiter = Limiter(f"{name}-{number}", *LIMITS, store=MemoryStore())
            ran |= asyncio.run(
                interrupted(calling, service, limiter, "asked", NEVER, looks=True)
            ).ran
    return ran
