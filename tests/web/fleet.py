"""Limiters of several kinds in use, for a look at the page: holders, waiters and a pause."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from headgate import Limiter
from tests.index import refreshed

LIMITS: dict[str, tuple[str, ...]] = {
    "billing": ("20 concurrent", "1000/hour"),
    "crawler": ("10/second burst 20",),
    "github": ("5000/hour", "100 concurrent"),
    "openai": ("60/minute", "90k tokens/min", "3 concurrent"),
    "search": ("100/minute", "8 concurrent"),
}
HELD = {"billing": 17, "crawler": 6, "github": 31, "search": 3}
CALLERS = 5  # of openai


@asynccontextmanager
async def busy_fleet(url: str) -> AsyncIterator[None]:
    fleet = {name: Limiter(name, *texts, store=url) for name, texts in LIMITS.items()}
    chance = random.Random(1)

    async def call() -> None:
        while True:
            async with fleet["openai"].acquire(tokens=chance.randrange(300, 4000)):
                await asyncio.sleep(3 * chance.random())

    async with AsyncExitStack() as stack:
        for name, count in HELD.items():
            for _ in range(count):
                await stack.enter_async_context(fleet[name])
        callers = [asyncio.create_task(call()) for _ in range(CALLERS)]
        await fleet["search"].apause(600)
        await refreshed(url)
        yield
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
