"""Tenacity and stamina: callers that may not wait long are refused, and come again when the refusal
says.

Run it: `python examples/with_retries.py`
"""

from __future__ import annotations

import asyncio

import stamina
import tenacity

from headgate import Limiter, MaxSleepExceededError, Window
from headgate.frameworks.stamina import retry_after
from headgate.frameworks.tenacity import wait_retry_after

limiter = Limiter("api", Window(1, per=0.1), max_sleep=0.01)
attempts = {"tenacity": 0, "stamina": 0}


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(MaxSleepExceededError), wait=wait_retry_after()
)
async def with_tenacity() -> None:
    attempts["tenacity"] += 1
    async with limiter:
        pass


@stamina.retry(on=retry_after, attempts=None)
async def with_stamina() -> None:
    attempts["stamina"] += 1
    async with limiter:
        pass


async def main() -> None:
    stamina.instrumentation.set_on_retry_hooks([])  # it would log each retry
    for call in (with_tenacity, with_stamina):
        await call()
        await call()
    print(f"4 calls took {attempts['tenacity']} and {attempts['stamina']} attempts")


if __name__ == "__main__":
    asyncio.run(main())
