"""`python -m benchmarks.still_429`: why a service still answers 429 to a limited client.

Here a strict service counts its calls on arrival, and each cause is staged once with the fault and
once with its remedy. The limiters apply no answers (`feedback=False`), because a pause would hide
the cause. The output is a table of refused calls.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Any, NamedTuple

import httpx
from aiohttp import web

from headgate import Limiter, Rate, Window
from headgate.http.httpx import limit
from headgate.stores.memory.store import MemoryStore

AMOUNT, PER, SLACK = 10, 2.0, 0.5  # of the service; of the limiters
CALLS = 30
WEIGHT = 3  # tokens of a call that the service counts
RIGHT = Window(AMOUNT, per=PER, slack=SLACK)


class Service:
    """Never more than AMOUNT arrivals in any PER seconds; more get 429."""

    def __init__(self, weight: int = 1, failing: bool = False) -> None:
        self.weight = weight  # of each call, in the units that it counts
        self._fails = cycle([True, False] if failing else [False])
        self._arrived: deque[float] = deque()

    async def answer(self, request: web.Request) -> web.Response:
        now = asyncio.get_running_loop().time()
        while self._arrived and self._arrived[0] <= now - PER:
            self._arrived.popleft()
        if len(self._arrived) + self.weight > AMOUNT:
            return web.Response(status=429)
        self._arrived.extend([now] * self.weight)
        return web.Response(status=503 if next(self._fails) else 200)


@asynccontextmanager
async def served(service: Service) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{name:.*}", service.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def client_of(*limits: Any, **options: Any) -> httpx.AsyncClient:
    """A client with a limiter and a state of its own."""
    limiter = Limiter("still-429", *limits, store=MemoryStore())
    return limit(httpx.AsyncClient(timeout=60.0), limiter, feedback=False, **options)


async def refused_of(client: httpx.AsyncClient, url: str, calls: int = CALLS) -> int:
    """All at once, to two routes by turns."""
    async with client:
        answers = await asyncio.gather(
            *(client.get(f"{url}/{number % 2}") for number in range(calls))
        )
    return sum(answer.status_code == 429 for answer in answers)


# The causes -------------------------------------------------------------------------------------


async def with_limits(url: str, *limits: Any, **options: Any) -> int:
    return await refused_of(client_of(*limits, **options), url)


async def beside_others(url: str, amount: int) -> int:
    """Another program uses the same credential, without a limiter: a quarter of the limit."""

    async def other() -> None:
        async with httpx.AsyncClient() as client:
            while True:
                await client.get(url)
                await asyncio.sleep(PER / (AMOUNT / 4))

    task = asyncio.create_task(other())
    try:
        return await with_limits(url, Window(amount, per=PER, slack=SLACK))
    finally:
        task.cancel()


async def in_processes(url: str, shared: bool) -> int:
    """Two processes; those without a shared store count apart."""
    if shared:
        return await with_limits(url, RIGHT)
    halves = (refused_of(client_of(RIGHT), url, CALLS // 2) for _ in range(2))
    return sum(await asyncio.gather(*halves))


async def with_retries(url: str, inside: bool) -> int:
    """Each second answer is 503, and is asked for again: inside the permit, or with one more."""
    limiter = Limiter("still-429", RIGHT, store=MemoryStore())
    plain = httpx.AsyncClient(timeout=60.0)

    async def call() -> int:
        refused = 0
        if inside:
            async with limiter:
                for _ in range(2):
                    status = (await plain.get(url)).status_code
                    refused += status == 429
                    if status != 503:
                        break
            return refused
        for _ in range(2):
            async with limiter:
                status = (await plain.get(url)).status_code
            refused += status == 429
            if status != 503:
                break
        return refused

    async with plain:
        return sum(await asyncio.gather(*(call() for _ in range(CALLS // 2))))


async def with_costs(url: str, cost: int) -> int:
    """The service counts WEIGHT units for each call."""
    limiter = Limiter(
        "still-429", Window(AMOUNT, PER, unit="tokens", slack=SLACK), store=MemoryStore()
    )
    plain = httpx.AsyncClient(timeout=60.0)

    async def call() -> bool:
        async with limiter.acquire(tokens=cost):
            return (await plain.get(url)).status_code == 429

    async with plain:
        return sum(await asyncio.gather(*(call() for _ in range(CALLS // 3))))


async def with_jitter(url: str, slack: float) -> int:
    """A call arrives up to 0.2 s after it left."""
    chance = random.Random(7)
    limiter = Limiter("still-429", Window(AMOUNT, PER, slack=slack), store=MemoryStore())
    plain = httpx.AsyncClient(timeout=60.0)

    async def call() -> bool:
        async with limiter:
            await asyncio.sleep(chance.uniform(0.0, 0.2))
            return (await plain.get(url)).status_code == 429

    async with plain:
        return sum(await asyncio.gather(*(call() for _ in range(CALLS))))


class Cause(NamedTuple):
    name: str
    fault: Callable[[str], Awaitable[int]]
    remedy: Callable[[str], Awaitable[int]]
    service: Callable[[], Service] = Service


BURST = Rate(AMOUNT, per=PER)  # passes up to twice the amount in its first period
HIGH = Window(AMOUNT * 3 // 2, per=PER, slack=SLACK)
CAUSES = [
    Cause(
        "the declared limit is too high",
        lambda url: with_limits(url, HIGH),
        lambda url: with_limits(url, RIGHT),
    ),
    Cause(
        "a bucket for a service that counts windows",
        lambda url: with_limits(url, BURST),
        lambda url: with_limits(url, RIGHT),
    ),
    Cause(
        "calls arrive later than they leave",
        lambda url: with_jitter(url, 0.0),
        lambda url: with_jitter(url, 0.2 + SLACK),
    ),
    Cause(
        "another program uses the credential",
        lambda url: beside_others(url, AMOUNT),
        lambda url: beside_others(url, AMOUNT * 3 // 5),
    ),
    Cause(
        "two processes without a shared store",
        lambda url: in_processes(url, False),
        lambda url: in_processes(url, True),
    ),
    Cause(
        "a key that the service does not count by",
        lambda url: with_limits(url, RIGHT, key=lambda request: request.url.path),
        lambda url: with_limits(url, RIGHT),
    ),
    Cause(
        "retries inside the permit",
        lambda url: with_retries(url, True),
        lambda url: with_retries(url, False),
        lambda: Service(failing=True),
    ),
    Cause(
        "a cost that is estimated too low",
        lambda url: with_costs(url, 1),
        lambda url: with_costs(url, WEIGHT),
        lambda: Service(weight=WEIGHT),
    ),
]


async def measured(causes: Sequence[Cause]) -> AsyncIterator[tuple[str, int, int]]:
    for cause in causes:
        found = []
        for way in (cause.fault, cause.remedy):
            async with served(cause.service()) as url:
                found.append(await way(url))
        yield cause.name, found[0], found[1]


async def print_all() -> bool:
    """Whether each fault was refused, and each remedy refused less."""
    good = True
    print(f"{'refused calls':44} fault  remedy")
    async for name, fault, remedy in measured(CAUSES):
        print(f"{name:44} {fault:5}  {remedy:6}", flush=True)
        good = good and remedy < fault
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(prog="python -m benchmarks.still_429").parse_args(arguments)
    return 0 if asyncio.run(print_all()) else 1


if __name__ == "__main__":
    sys.exit(main())
