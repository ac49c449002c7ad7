"""The calls of one process, with headgate or without: the one difference is which `limiter` they enter.

Run as `python -m demo.calls` this file is one of several workers: an order comes in as a line of JSON, the
replies go out as one status a line. Nothing here counts or draws.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass

import aiohttp

from demo.processes import end_with_parent
from demo.rules import Rules
from headgate import Concurrency, HeadgateError, Limiter, Window

SLACK = 0.015

READY, GO, FAILED = "ready", "go", "failed"


@dataclass(frozen=True)
class Order:
    """How many calls to make to which server, and the limiter to share; without a name there is none."""

    url: str
    calls: int
    name: str | None = None
    store: str | None = None

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Order:
        return cls(**json.loads(line))


def make_limiter(name: str, store: str | None, rules: Rules) -> Limiter:
    window = Window(rules.amount, per=rules.per, slack=SLACK)
    return Limiter(name, window, Concurrency(rules.at_once), store=store)


async def make_calls(order: Order, reply: Callable[[int], None]) -> None:
    """Starts all calls at the same time; `reply` hears the status of each as it comes back."""
    if order.name is None:
        await _all_at_once(order, nullcontext(), reply)
        return
    limiter = make_limiter(order.name, order.store, Rules())
    try:
        await _all_at_once(order, limiter, reply)
    finally:
        await limiter.aclose()


async def _all_at_once(
    order: Order, limiter: AbstractAsyncContextManager[object], reply: Callable[[int], None]
) -> None:
    connections = aiohttp.TCPConnector(
        limit=0
    )  # no limit: aiohttp's own would hide what happens without headgate
    async with aiohttp.ClientSession(connector=connections) as session:

        async def call() -> None:
            async with limiter, session.get(order.url) as response:
                await response.read()
            reply(response.status)

        await asyncio.gather(*(call() for _ in range(order.calls)))


def work() -> None:
    """One worker: says that it is ready (Python takes a while to load), and calls when it is told to go."""
    order = Order.from_line(sys.stdin.readline())
    print(READY, flush=True)
    sys.stdin.readline()
    end_with_parent()
    try:
        asyncio.run(make_calls(order, lambda status: print(status, flush=True)))
    except (HeadgateError, aiohttp.ClientError) as error:
        print(FAILED, error, flush=True)


if __name__ == "__main__":
    work()
