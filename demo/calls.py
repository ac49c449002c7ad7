"""The calls of one process, with headgate or without: the one difference is which `limiter` they
enter.

Run as `python -m demo.calls` this file is one of several workers. An order comes in as a line of
JSON, the replies go out as one status a line. Nothing here counts or draws.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass

import aiohttp

from demo.processes import end_with_parent
from demo.rules import Rules
from headgate import Concurrency, HeadgateError, Limiter, Window

RULES = Rules()

# A grant counts when the call leaves, the server counts when it arrives: slack covers the variation
# of the travel time. Measured at the server on 2 busy cores, calls came up to 13 ms closer together
# than they were granted, and once 18 ms. That held for one process as for 4. Every period grows by
# the slack: 2.5% of the 5% that the demo allows itself.
SLACK = 0.025

Entrance = AbstractAsyncContextManager[object]

READY, GO, FAILED = "ready", "go", "failed"


@dataclass(frozen=True)
class Order:
    """How many calls to make to which server, and the limiter to share; without a name there is
    none.
    """

    url: str
    calls: int
    name: str | None = None
    store: str | None = None

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Order:
        return cls(**json.loads(line))


@asynccontextmanager
async def entrance(name: str | None, store: str | None) -> AsyncIterator[Entrance]:
    """The entry of a call: the limiter of that name, already connected to its store, or nothing at
    all.
    """
    if name is None:
        yield nullcontext()
        return
    window = Window(RULES.amount, per=RULES.per, slack=SLACK)
    limiter = Limiter(name, window, Concurrency(RULES.at_once), store=store)
    await limiter.astatus()  # connects, and a store that is not there is known now
    yield limiter


async def make_calls(order: Order, limiter: Entrance, reply: Callable[[int], None]) -> None:
    """Starts all calls at the same time; `reply` gets the status of each as it comes back."""
    connections = aiohttp.TCPConnector(
        limit=0
    )  # no limit: aiohttp's own would hide the effects of having no headgate
    async with aiohttp.ClientSession(connector=connections) as session:

        async def call() -> None:
            async with limiter, session.get(order.url) as response:
                await response.read()
            reply(response.status)

        # Each connection is open before the first call. A grant counts when the call leaves, and
        # connecting takes as long as all of the slack when a machine is busy.
        await asyncio.gather(*(connect(session, order.url) for _ in range(RULES.at_once)))
        await asyncio.gather(*(call() for _ in range(order.calls)))


async def connect(session: aiohttp.ClientSession, url: str) -> None:
    """Ask for the counts, which is no call."""
    async with session.get(f"{url}stats") as response:
        await response.read()


async def work() -> None:
    """One worker: it takes its order, says when it is loaded and connected, and calls after the
    word to go.
    """
    order = Order.from_line(sys.stdin.readline())
    async with entrance(order.name, order.store) as limiter:
        print(READY, flush=True)
        told = await asyncio.to_thread(
            sys.stdin.readline
        )  # in a thread: the limiter's connection lives meanwhile
        if told.strip() != GO:
            return
        end_with_parent()
        await make_calls(order, limiter, lambda status: print(status, flush=True))


def main() -> None:
    try:
        asyncio.run(work())
    except (HeadgateError, aiohttp.ClientError) as error:
        print(FAILED, error, flush=True)


if __name__ == "__main__":
    main()
