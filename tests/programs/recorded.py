"""A process of a fleet whose history is kept: ten callers come and go, under a lease and a rate,
until the test ends them.

usage: recorded.py URL name      Says "works" when each of them was inside once; ends when it hears
a line.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

from headgate import Concurrency, Limiter, MaxSleepExceededError, Rate, StoreError
from tests.history import recorded

LIMITS = Concurrency(3, lease=0.5), Rate(40, per=0.2, unit="tokens")


async def main(url: str, name: str) -> None:
    limiter = Limiter(name, *LIMITS, store=url)
    over = asyncio.Event()

    async def caller(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(MaxSleepExceededError, StoreError, TimeoutError):
                async with asyncio.timeout(0.05 if number % 5 == 0 else None):
                    async with limiter.acquire(
                        tokens=1 + number % 3, max_sleep=0.1 if number % 4 == 0 else None
                    ) as permit:
                        await asyncio.sleep(0.001 * number)
                        permit.settle(tokens=2)

    callers = [asyncio.create_task(caller(number)) for number in range(10)]
    await limiter.astatus()
    print("works", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    over.set()
    await asyncio.gather(*callers)


recorded.install()
asyncio.run(main(*sys.argv[1:]))
