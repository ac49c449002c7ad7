"""One process of a fleet: its waiters, which ask again and again until they have to stop, and their
grants.

It computes nothing: moments are read and handed over.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from time import perf_counter, time
from typing import TYPE_CHECKING

from benchmarks.fleet.plan import Grant, Plan

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from headgate import Limiter


def play(pipe: Connection, plan: Plan, url: str, name: str, number: int) -> None:
    """Say "ready", receive the moment to start (on the monotonic clock), and report the grants once
    it is over.
    """
    with suppress(EOFError, KeyboardInterrupt):
        pipe.send(asyncio.run(played(pipe, plan, url, name, number)))


async def played(pipe: Connection, plan: Plan, url: str, name: str, number: int) -> list[Grant]:
    from headgate import Limiter

    async with Limiter(
        f"{name}-first", "1m/second burst 1m", store=url
    ):  # connects, and lets the server know the library
        pipe.send("ready")
    start = await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
    limiter = Limiter(name, *plan.limits(), store=url)
    grants: list[Grant] = []
    between = plan.spread / plan.waiters
    moments = [start + (index + number / plan.processes) * between for index in range(plan.waiters)]
    tasks = [
        asyncio.create_task(caller(limiter, plan.hold, moment, number, grants))
        for moment in moments
    ]
    _, pending = await asyncio.wait(
        tasks, timeout=start + plan.seconds - perf_counter(), return_when=asyncio.FIRST_EXCEPTION
    )
    for task in pending:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
    return grants


async def caller(
    limiter: Limiter, hold: float, start: float, process: int, grants: list[Grant]
) -> None:
    await asyncio.sleep(start - perf_counter())
    while True:
        permit = await limiter.acquire()
        granted, acted, released = perf_counter(), time(), 0.0
        try:
            if hold:
                await asyncio.sleep(hold)
        finally:
            released = perf_counter()
            permit.release()
            grants.append(
                Grant(process, str(permit.key), permit.fence, permit.t, acted, granted, released)
            )
