"""A crowd of callers: every other one gives up.

usage: crowd.py URL name rate callers Says "asked" once all have asked; hears "cancel"; says "gave
up", and then "index fence t" for each that got through.
"""

from __future__ import annotations

import asyncio
import sys

from headgate import Limiter, Permit, Rate


async def main(url: str, name: str, rate: int, callers: int) -> None:
    limiter = Limiter(name, Rate(rate, per=1, initial=0), store=url)
    through: list[tuple[int, Permit]] = []

    async def caller(index: int) -> None:
        async with limiter.acquire() as permit:
            through.append((index, permit))

    tasks = [asyncio.create_task(caller(index)) for index in range(callers)]
    await asyncio.sleep(0)
    await limiter.astatus()
    print("asked", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.sleep(0)
    print("gave up", flush=True)
    await asyncio.wait(tasks)
    for index, permit in through:
        print(index, permit.fence, permit.t, flush=True)


asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
