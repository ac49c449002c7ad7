"""Callers that ask in groups, one after another, so that their order over several processes is
known.

usage: parade.py URL name limit Hears "ask FIRST COUNT": starts so many callers, with the numbers
from FIRST on, and says "asked" when the server has them. Hears "go": every caller with an odd
number gives up; says "gave up", and then "NUMBER FENCE T WHEN" for each that got through, WHEN
being the machine's time in microseconds.
"""

from __future__ import annotations

import asyncio
import sys
import time

import headgate
from headgate import Limiter


async def main(url: str, name: str, limit: str) -> None:
    limiter = Limiter(name, eval(limit, vars(headgate)), store=url)
    callers: dict[int, asyncio.Task[None]] = {}
    through: list[tuple[int, int, int, int]] = []

    async def caller(number: int) -> None:
        async with limiter.acquire() as permit:
            through.append((number, permit.fence, permit.t, time.time_ns() // 1000))

    print("ready", flush=True)
    while (line := await asyncio.to_thread(sys.stdin.readline)).startswith("ask"):
        first, count = map(int, line.split()[1:])
        callers |= {
            number: asyncio.create_task(caller(number)) for number in range(first, first + count)
        }
        await asyncio.sleep(0)
        await limiter.astatus()  # arrives behind them
        print("asked", flush=True)
    for number, task in callers.items():
        if number % 2:
            task.cancel()
    await asyncio.sleep(0)
    print("gave up", flush=True)
    await asyncio.wait(callers.values())
    for passed in through:
        print(*passed, flush=True)


asyncio.run(main(*sys.argv[1:]))
