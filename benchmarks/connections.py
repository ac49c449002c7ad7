"""Connections that a process holds while many of its tasks wait, by the server's own CLIENT LIST.

One permit is held, and `waiters` tasks ask for the next. The server's additional connections are
counted until their number stays the same. A peer whose pool refuses callers is counted with those
that remain, and its refusals are shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from redis import Redis

from benchmarks import table
from benchmarks.entrants import OURS, SEMAPHORES, Entrant
from benchmarks.goals import Line
from benchmarks.shapes import PATIENCE, describe
from benchmarks.stage import Stage

KEY = "connections"
WAITERS, QUICK_WAITERS = 1_000, 200
MOST = 3  # the goal: for each process
LOOK = 0.1  # seconds between two looks at the list
CALM = 5  # looks that must be the same


@dataclass
class Count:
    name: str
    connections: int = 0
    refused: int = 0
    says: str = ""  # the first error of a refused caller; or why nothing could be counted
    failed: bool = False

    @property
    def shown(self) -> str:
        return "fails" if self.failed else f"{self.connections:,}"


def measured(url: str, mark: str, quick: bool) -> Line:
    waiters = QUICK_WAITERS if quick else WAITERS
    counts = [
        counted(entrant, url, f"{mark}c{number}", waiters)
        for number, entrant in enumerate(SEMAPHORES)
    ]
    show(counts, waiters)
    return line(counts, waiters)


def counted(entrant: Entrant, url: str, name: str, waiters: int) -> Count:
    count = Count(entrant.name)
    with asyncio.Runner() as runner, ExitStack() as stack:
        stage = Stage(url, runner, name)
        try:
            with Redis.from_url(url) as server:
                before = stage.run(settled(server))  # those of the one before have gone
                make = stack.enter_context(entrant.opening(stage))
                stage.run(wait_and_count(make(name), server, before, waiters, count))
        except Exception as error:
            count.failed, count.says = True, describe(error)
    return count


async def wait_and_count(
    entry: Any, server: Redis, before: int, waiters: int, count: Count
) -> None:
    async def caller() -> None:
        async with entry:
            await asyncio.sleep(PATIENCE)

    holder = asyncio.create_task(caller())
    await asyncio.sleep(LOOK)
    tasks = [asyncio.create_task(caller()) for _ in range(waiters)]
    try:
        count.connections = await settled(server) - before
        refused = [task.exception() for task in tasks if task.done() and not task.cancelled()]
        count.refused = len(refused)
        count.says = next((describe(error) for error in refused if error is not None), "")
    finally:
        for task in (holder, *tasks):
            task.cancel()
        await asyncio.gather(holder, *tasks, return_exceptions=True)


async def settled(server: Redis) -> int:
    """How many are listed, once a few looks in a row have found the same."""
    looks: list[int] = []
    while len(looks) < CALM or len(set(looks[-CALM:])) > 1:
        await asyncio.sleep(LOOK)
        looks.append(listed(server))
    return looks[-1]


def listed(server: Redis) -> int:
    return len(server.client_list())


def show(counts: Sequence[Count], waiters: int) -> None:
    table.say(
        f"connections of one process: a permit held, {waiters:,} tasks that wait for it  [{KEY}]"
    )
    rows = [(count.name, count.shown, f"{count.refused:,}", count.says) for count in counts]
    table.columns(("", "connections", "callers refused", ""), rows)
    table.say("")


def line(counts: Sequence[Count], waiters: int) -> Line:
    ours = next(count for count in counts if count.name == OURS)
    others = [count for count in counts if count is not ours and not count.failed]
    peer = min(others, key=lambda count: (count.refused > 0, count.connections), default=None)
    refused = f", {peer.refused:,} callers refused" if peer and peer.refused else ""
    best = f"{peer.name} {peer.connections:,}{refused}" if peer else "all fail"
    reached = None if ours.failed else ours.connections <= MOST and not ours.refused
    return Line(
        f"connections, {waiters:,} waiters in a process",
        best,
        "-",
        ours.shown,
        f"at most {MOST}",
        reached,
    )
