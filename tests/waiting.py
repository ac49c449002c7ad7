"""A test goes on when so many acquires wait."""

from __future__ import annotations

import asyncio

from headgate import Limiter


async def until_they_wait(limiter: Limiter, count: int) -> None:
    for _ in range(1000):
        if (await limiter.astatus()).waiting == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not {count} wait")
