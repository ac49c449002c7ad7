"""A script whose asyncio.run ends while others still wait; it must not complain.

usage: ending.py memory|URL name how
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading

from headgate import Concurrency, Limiter, Rate


async def enter(limiter: Limiter) -> None:
    async with limiter:
        await asyncio.sleep(3600)


async def busy(limiters: list[Limiter]) -> list[asyncio.Task[None]]:
    """In each limiter one task is inside, one waits or has a reservation, and one is just about to
    ask.
    """
    tasks = []
    for limiter in limiters:
        tasks += [asyncio.create_task(enter(limiter)) for _ in range(3)]
        await asyncio.sleep(0)
        await limiter.astatus()  # arrives behind them
    return [*tasks, *(asyncio.create_task(enter(limiter)) for limiter in limiters)]


async def returns(limiters: list[Limiter]) -> None:
    await busy(limiters)


async def fails(limiters: list[Limiter]) -> None:
    await busy(limiters)
    raise ZeroDivisionError


async def stops(limiters: list[Limiter]) -> None:
    tasks = await busy(limiters)
    for task in tasks:
        task.cancel()
    for task in tasks[::2]:
        task.cancel()  # again, while it cleans up


async def exits(limiters: list[Limiter]) -> None:
    await busy(limiters)
    raise SystemExit(0)


def threads(limiters: list[Limiter]) -> None:
    """The main thread ends while others block."""
    for limiter in limiters:
        for _ in range(3):
            threading.Thread(target=block, args=[limiter], daemon=True).start()
        limiter.status()


def block(limiter: Limiter) -> None:
    with limiter:
        threading.Event().wait()


def main(store: str, name: str, how: str) -> None:
    where = None if store == "memory" else store
    limits = {
        "held": Concurrency(1),
        "queued": Rate(1, per=3600),
        "booked": Rate(50, per=1, capacity=1),
    }
    limiters = [Limiter(f"{name}-{kind}", limit, store=where) for kind, limit in limits.items()]
    if how == "threads":
        threads(limiters)
        return
    with contextlib.suppress(ZeroDivisionError):
        asyncio.run(globals()[how](limiters))


main(*sys.argv[1:])
