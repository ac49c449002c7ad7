"""A process that enters a semaphore and stays inside until it reads a line.

usage: hold.py URL name capacity expiry
Says "asks" before it enters, "inside" once it has, "left" when it is out again.
"""

from __future__ import annotations

import asyncio
import sys

from headgate import Semaphore


async def main(url: str, name: str, capacity: int, expiry: float) -> None:
    semaphore = Semaphore(name, capacity, expiry=expiry, redis_url=url)
    print("asks", flush=True)
    async with semaphore:
        print("inside", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print("left", flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
