"""Microseconds of the server for each acquire and each release, when 1, 10 or 100 travel in one
call.

The figure is that of INFO commandstats: the time in the script, divided by the acquires. headgate
itself forms the calls: all requests of one turn of the loop travel together, and the count shows
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from redis import Redis

from benchmarks import table
from benchmarks.usage import Stats, stats

if TYPE_CHECKING:
    from headgate import Limit, Limiter, Permit

BATCHES = (1, 10, 100)
ACQUIRES = 2_000  # in one round, for each size of a batch
PLENTY = 1_000_000_000  # no caller waits
LEASE = 3_600.0  # nothing is renewed meanwhile
HEADS = (
    "limits",
    "acquires in a call",
    "us an acquire",
    "calls an acquire",
    "us a release",
    "calls a release",
    "",
)


@dataclass(frozen=True)
class Each:
    """Of one round: microseconds in the script, and calls of it, for each acquire or release."""

    microseconds: float
    calls: float


def works() -> dict[str, tuple[Limit, ...]]:
    from headgate import Concurrency, Rate

    rate, concurrency = Rate(PLENTY, per=1), Concurrency(PLENTY, lease=LEASE)
    return {
        "Rate": (rate,),
        "Concurrency": (concurrency,),
        "Rate and Concurrency": (rate, concurrency),
    }


async def measured(url: str, server: Redis, rounds: int) -> None:
    from headgate import Limiter

    table.say(
        "\nmicroseconds in the script (INFO commandstats), all in one process, nobody waits; "
        "medians of the rounds"
    )
    rows = []
    for name, limits in works().items():
        for batch in BATCHES:
            each = [
                await one_round(
                    Limiter(f"{name} {batch} {number}", *limits, store=url), batch, server
                )
                for number in range(1 + rounds)  # the first lets the server know the library
            ]
            rows.append(
                (
                    name,
                    f"{batch}",
                    *cells(acquired for acquired, _ in each[1:]),
                    *cells(each for _, each in each[1:]),
                    "",
                )
            )
    table.columns(HEADS, rows)


async def one_round(limiter: Limiter, batch: int, server: Redis) -> tuple[Each, Each | None]:
    for _ in range(2):  # the first call makes the state, and tells the limits
        await (await limiter.acquire()).arelease()
    start = stats(server)
    permits: list[Permit] = []
    for _ in range(ACQUIRES // batch):
        permits += await asyncio.gather(*(waited_for(limiter.acquire()) for _ in range(batch)))
    held = stats(server)
    acquired = each_of(held - start)
    if not permits[0].held:
        return acquired, None
    for index in range(0, len(permits), batch):
        await asyncio.gather(*(permit.arelease() for permit in permits[index : index + batch]))
    return acquired, each_of(stats(server) - held)


async def waited_for(asked: Awaitable[Permit]) -> Permit:
    return await asked


def each_of(done: Stats) -> Each:
    return Each(done.microseconds / ACQUIRES, done.calls / ACQUIRES)


def cells(rounds: Iterable[Each | None]) -> tuple[str, str]:
    each = [one for one in rounds if one is not None]
    if not each:
        return "-", "-"
    return table.figure(
        median(one.microseconds for one in each)
    ), f"{median(one.calls for one in each):.2f}"
