"""`python -m benchmarks.windows`: a Window's cost beside that of a Rate, in memory and on Redis.

A window may be new, or its entries expire as fast as they come, few or so many that they merge.
These windows always have room. In memory, another window is at its limit: each acquire takes the
token of an entry that has just expired, by a clock that goes on at each reading. All take turns in
one process. Each figure is the median of the ratios to the Rate in the same round. Exit status: 1
when a Window is over the goal. 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from statistics import median
from time import perf_counter, time_ns
from typing import Any

from redis import Redis

from benchmarks import tool
from benchmarks.table import columns, figure, say
from benchmarks.usage import stats
from headgate import Limiter, Rate, Window
from headgate.clock import SystemClock
from headgate.stores.memory.store import MemoryStore

GOAL = 1.2
PLENTY = 1_000_000_000
ROUNDS, BRIEF = 40, 5
MEMORY, REDIS = 5_000, 300  # acquires in a round
NEW, FEW, MANY = "new", "entries expire", "entries merge and expire"
FULL = "a Window at its limit"
# The period of each state in seconds: an acquire takes about a microsecond in memory.
IN_MEMORY = {NEW: 3600.0, FEW: 0.00008, MANY: 0.02}
ON_REDIS = {NEW: 3600.0, FEW: 0.005, MANY: 0.1}


async def blocks(limiter: Any, times: int) -> float:
    start = perf_counter()
    for _ in range(times):
        async with limiter:
            pass
    return (perf_counter() - start) / times * 1e6


class TickingClock(SystemClock):
    """A clock that goes on by `tick` microseconds at each reading."""

    __slots__ = ()

    def __init__(self, tick: int) -> None:
        self.now = count(time_ns() // 1000, tick).__next__


Rounds = dict[str, list[float]]


async def measure(
    limiters: dict[str, Limiter], times: int, rounds: int, script: Callable[[], float]
) -> tuple[Rounds, Rounds]:
    """Microseconds of each acquire, and those of the server in the script."""
    each: Rounds = {name: [] for name in limiters}
    server: Rounds = {name: [] for name in limiters}
    names = list(limiters)
    for limiter in limiters.values():
        await blocks(limiter, times)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            await blocks(limiters[name], times // 5)  # it has forgotten its last turn
            before = script()
            each[name].append(await blocks(limiters[name], times))
            server[name].append((script() - before) / times)
    return each, server


def made(periods: dict[str, float], store: str | None) -> dict[str, Limiter]:
    windows = {name: Window(PLENTY, per=per) for name, per in periods.items()}
    limits = {"Rate": Rate(PLENTY, per=1), **windows}
    return {name: Limiter(name, limit, store=store) for name, limit in limits.items()}


def made_full() -> dict[str, Limiter]:
    """A Rate and a Window that have one token for each acquire."""
    limits = {"Rate": Rate(100, per=60), FULL: Window(100, per=60)}
    tick = 60 * 1_000_000 // 100
    return {
        name: Limiter(name, limit, store=MemoryStore(TickingClock(tick)))
        for name, limit in limits.items()
    }


def ratio(found: Rounds, name: str) -> float:
    return median(mine / rate for mine, rate in zip(found[name], found["Rate"], strict=True))


async def measured(url: str, rounds: int) -> bool:
    memory, _ = await measure(made(IN_MEMORY, None), MEMORY, rounds, lambda: 0.0)
    full, _ = await measure(made_full(), MEMORY, rounds, lambda: 0.0)
    with Redis.from_url(url) as server:
        redis, script = await measure(
            made(ON_REDIS, url), REDIS, rounds, lambda: stats(server).microseconds
        )
    places = {"in memory": memory, "on Redis": redis, "on Redis, in the script": script}
    rows = [
        (
            place,
            figure(median(found["Rate"])),
            *(f"x{ratio(found, name):.2f}" for name in IN_MEMORY),
        )
        for place, found in places.items()
    ]
    columns(("", "us each, a Rate", *(f"a Window, {name}" for name in IN_MEMORY)), rows)
    say(f"in memory, {FULL}: a Rate {figure(median(full['Rate']))} us, x{ratio(full, FULL):.2f}")
    ratios = [ratio(found, name) for found in places.values() for name in IN_MEMORY]
    reached = max(*ratios, ratio(full, FULL)) <= GOAL
    say(f"goal: at most x{GOAL}: {'reached' if reached else 'NOT REACHED'}")
    return reached


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, not a figure")
    rounds = BRIEF if parser.parse_args(arguments).quick else ROUNDS
    return tool.on_private_server(lambda url: asyncio.run(measured(url, rounds)))


if __name__ == "__main__":
    raise SystemExit(main())
