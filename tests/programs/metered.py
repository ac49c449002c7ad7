"""A process of a fleet under load, whose metrics Prometheus scrapes, until its input ends.

usage: metered.py URL service port
Acquires pass, wait and are refused in all ways. The service answers 429 now and then. Says "ready".
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

import requests
from prometheus_client import REGISTRY, start_http_server

from headgate import Concurrency, CostExceedsCapacityError, HeadgateError, Limiter, Rate
from headgate.http.requests import limit
from headgate.http.token_estimates import Estimates
from headgate.telemetry.prometheus import collector

STORE, SERVICE, PORT = sys.argv[1], sys.argv[2], int(sys.argv[3])
BEAT = 0.05  # seconds

REGISTRY.register(collector(use_time=True))
start_http_server(PORT, addr="127.0.0.1")
api = Limiter("api", Concurrency(4), Rate(3000, per=1, unit="tokens"), store=STORE, max_waiters=6)
leased = Limiter("leased", Concurrency(8, lease=3.0), store=STORE)
service = Limiter("service", "200/second", store=STORE)
estimates = Estimates()


async def call() -> None:
    async with api.acquire(tokens=100) as permit:
        await asyncio.sleep(BEAT)
        permit.settle(tokens=80)


async def call_in_haste() -> None:
    await asyncio.sleep(BEAT)
    async with api.acquire(max_sleep=0.001):
        pass


async def look() -> None:
    await asyncio.sleep(BEAT)
    if permit := await api.atry_acquire():
        permit.release()


async def ask_too_much() -> None:
    await asyncio.sleep(10 * BEAT)
    with suppress(CostExceedsCapacityError):
        await api.acquire(tokens=10_000)


async def pause() -> None:
    await service.apause(0.3)
    await asyncio.sleep(100 * BEAT)


async def hold() -> None:
    async with leased.acquire() as permit:
        while not permit.lost:  # noqa: ASYNC110 - a permit has no event
            await asyncio.sleep(BEAT)


async def ask_service(session: requests.Session) -> None:
    await asyncio.to_thread(session.get, f"{SERVICE}/says")
    await asyncio.sleep(BEAT)


async def for_ever(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        with suppress(HeadgateError):
            await work()


async def main() -> None:
    with requests.Session() as session:
        limit(session, service)
        works = [*[call] * 4, call_in_haste, look, ask_too_much, pause, hold]
        tasks = [asyncio.create_task(for_ever(work)) for work in works]
        tasks.append(asyncio.create_task(for_ever(lambda: ask_service(session))))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


estimates.learn_input("a-model", characters=4000, estimated=900, used=1000)
asyncio.run(main())
