"""A process that forks while tasks wait for a permit, and prints the view of parent and child.

usage: fork_local_waiters.py name
"""

from __future__ import annotations

import asyncio
import os
import sys

from headgate import Concurrency, Limiter

limiter = Limiter(sys.argv[1], Concurrency(1))
order: list[int] = []


async def comes(number: int) -> None:
    async with limiter:
        order.append(number)


def in_child() -> None:
    status = limiter.status()
    print(f"child sees {status.limits[0].used} used, {status.waiting} waiting")
    limiter.__exit__(None, None, None)  # as the parent's block would, if the child ran on into it
    with limiter:
        print(f"child is inside, and another could come in: {bool(limiter.try_acquire())}")
    print(f"child ends with {limiter.status().limits[0].used} used", flush=True)
    os._exit(0)


async def main() -> None:
    async with limiter:
        tasks = [asyncio.create_task(comes(number)) for number in range(3)]
        await asyncio.sleep(0)
        if os.fork() == 0:
            in_child()
        os.wait()  # noqa: ASYNC222 - the waiting tasks wait for the child, too
    await asyncio.wait(tasks)
    print("parent", order)


asyncio.run(main())
