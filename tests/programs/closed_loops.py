"""A script that leaves an event loop while tasks hold, wait, sleep until a grant, connect and ask.

usage: closed_loops.py url name how what
how: the name of a function below
what: all (of the states below), or first: the loop ends in the turn of the first calls
"""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from typing import Any

from headgate import Concurrency, Limiter, Rate

LIMITS = {
    "held": Concurrency(1),
    "queued": Rate(1, per=3600),
    "booked": Rate(50, per=1, capacity=1),
}
TASKS: list[asyncio.Task[None]] = []


async def enter(limiter: Limiter) -> None:
    async with limiter:
        await asyncio.sleep(3600)


async def take(limiter: Limiter) -> None:
    async with limiter.acquire():
        await asyncio.sleep(3600)


async def tell(limiter: Limiter) -> None:
    permit = await limiter.acquire()
    try:
        await asyncio.sleep(3600)
    finally:
        await permit.arelease()


async def leave_behind(limiters: list[Limiter], what: str) -> None:
    """In each limiter tasks hold, wait and are about to ask."""
    for limiter in limiters:
        TASKS.extend(asyncio.ensure_future(task(limiter)) for task in (enter, enter, take))
        await asyncio.sleep(0)
        if what == "all":
            await limiter.astatus()  # arrives behind them
            await limiter.apause(0)
            TASKS.append(asyncio.ensure_future(enter(limiter)))
    await asyncio.sleep(0)


def complain(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """asyncio says of the tasks of this script that they were destroyed: headgate has no part in
    it.
    """
    task = context.get("task")
    if task is None or task.get_coro().__name__ not in ("enter", "take", "tell"):
        print(context, file=sys.stderr)


def new_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(complain)
    return loop


def closes(limiters: list[Limiter], what: str) -> None:
    """The loop is closed, and then its tasks are collected."""
    loop = new_loop()
    loop.run_until_complete(leave_behind(limiters, what))
    loop.close()
    TASKS.clear()
    gc.collect()


def closes_and_keeps(limiters: list[Limiter], what: str) -> None:
    """The tasks live until the process ends."""
    loop = new_loop()
    loop.run_until_complete(leave_behind(limiters, what))
    loop.close()


def closes_and_tells(limiters: list[Limiter], what: str) -> None:
    """The first permit is given back by arelease."""
    loop = new_loop()
    TASKS.append(loop.create_task(tell(limiters[0])))
    loop.run_until_complete(limiters[0].astatus())
    loop.run_until_complete(leave_behind(limiters, what))
    loop.close()
    TASKS.clear()
    gc.collect()


def drops(limiters: list[Limiter], what: str) -> None:
    """The loop is stopped and never closed, and its tasks are collected."""
    warnings.filterwarnings("ignore", "unclosed event loop")  # it is this script's
    new_loop().run_until_complete(leave_behind(limiters, what))
    TASKS.clear()
    gc.collect()


def drops_all(limiters: list[Limiter], what: str) -> None:
    """No limiter is left either."""
    drops(limiters, what)
    limiters.clear()
    gc.collect()


def runs(limiters: list[Limiter], what: str) -> None:
    """asyncio.run cancels the tasks."""
    asyncio.run(leave_behind(limiters, what))


def goes_on(limiters: list[Limiter], what: str) -> None:
    """The next loop finds that the limiters work."""
    closes(limiters, what)
    asyncio.run(limiters[0].apause(0))


def main(url: str, name: str, how: str, what: str) -> None:
    limiters = [Limiter(f"{name}-{kind}", limit, store=url) for kind, limit in LIMITS.items()]
    globals()[how](limiters, what)


main(*sys.argv[1:])
