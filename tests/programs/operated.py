"""A process of a fleet, for the staged incidents: it does as its input says, and goes on.

usage: operated.py URL port name limit...        (limits as Python: "Concurrency(3)")
Serves its metrics at the port. Its log lines go to stdout. It is in the index from its first
acquire on; any other process needs five seconds. Says "ready"; hears

    hold N          takes N permits, one after the other, and keeps them; says "holds"
    wait UNIT=N     acquires; says "waits" when it is queued, and "inside" when it has been granted
    settle N        takes a token, and settles the call at N tokens; says "settled"
    get URL         calls a service with a limited client; says "got STATUS"
"""

from __future__ import annotations

import asyncio
import logging
import sys

import httpx
from prometheus_client import REGISTRY, start_http_server

import headgate
from headgate import Limiter, Permit
from headgate.http.httpx import limit
from headgate.telemetry.prometheus import collector
from tests.faults.scene import enter
from tests.index import refreshed
from tests.world import until

STORE, PORT, NAME, *LIMITS = sys.argv[1:]
limiter = Limiter(NAME, *(eval(each, vars(headgate)) for each in LIMITS), store=STORE)
held: list[Permit] = []


async def hold(count: str) -> None:
    held.extend([await limiter.acquire() for _ in range(int(count))])
    await refreshed(STORE)
    print("holds", flush=True)


async def wait(cost: str) -> None:
    unit, _, number = cost.partition("=")
    before = (await limiter.astatus()).waiting
    waiter = asyncio.create_task(enter(limiter, **{unit: int(number)}))
    await until(lambda status: status.waiting > before, limiter)
    await refreshed(STORE)
    print("waits", flush=True)
    held.append(await waiter)
    print("inside", flush=True)


async def settle(tokens: str) -> None:
    async with limiter.acquire(tokens=1) as permit:
        permit.settle(tokens=int(tokens))
    await limiter.aflush()
    await refreshed(STORE)
    print("settled", flush=True)


async def get(url: str) -> None:
    async with limit(httpx.AsyncClient(), limiter) as client:
        reply = await client.get(url)
    await limiter.aflush()
    await refreshed(STORE)
    print("got", reply.status_code, flush=True)


async def main() -> None:
    verbs = {"hold": hold, "wait": wait, "settle": settle, "get": get}
    tasks = []
    print("ready", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *words = line.split()
        tasks.append(asyncio.create_task(verbs[verb](*words)))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


logging.basicConfig(stream=sys.stdout, format="%(message)s")
logging.getLogger("headgate").setLevel(logging.INFO)
REGISTRY.register(collector())
start_http_server(int(PORT), addr="127.0.0.1")
asyncio.run(main())
