"""A process of a fleet that the web page shows.

usage: web_fleet.py URL name
It uses the name under "100/minute" and two permits, and is in the index. Hears

    hold      takes a permit for good: says "holding"
    wait      asks for one more permit: says "waiting"
    release   gives back a permit: says "released"
"""

from __future__ import annotations

import asyncio
import sys

from headgate import Concurrency, Limiter, Permit
from tests.index import refreshed


async def main(url: str, name: str) -> None:
    limiter = Limiter(name, "100/minute", Concurrency(2), store=url)
    permits: list[Permit] = []
    tasks = []

    async def hold() -> None:
        permits.append(await limiter.acquire())

    (await limiter.acquire()).release()
    await refreshed(url)
    print("ready", flush=True)
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        if line == "hold":
            await hold()
            print("holding", flush=True)
        elif line == "wait":
            tasks.append(asyncio.create_task(hold()))
            await limiter.astatus()
            print("waiting", flush=True)
        else:
            await permits.pop().arelease()
            print("released", flush=True)
    for task in tasks:
        task.cancel()


asyncio.run(main(*sys.argv[1:]))
