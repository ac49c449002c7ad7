"""`python -m benchmarks.keys_in_process`: the time and the memory of each key of one process.

headgate's keyed limiter and the strategies of limits in memory use the same keys, one after the
other. Each round of a contestant runs in a process of its own, and contestants take turns. Each
figure is the median of its rounds. Exit status: 1 when headgate is not ahead of the moving window
of limits in all three.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from multiprocessing.queues import SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple

from benchmarks import table
from benchmarks.many_keys import resident

KEYS, ROUNDS = 200_000, 3
OURS, PEER = "headgate, limiter[key]", "limits, moving window"
Use = Callable[[str], Awaitable[Any]]


class Figures(NamedTuple):
    first: float  # microseconds
    known: float
    size: float  # bytes


def headgate() -> Use:
    from headgate import Limiter

    limiter = Limiter("keys", "1000/hour")

    async def use(key: str) -> None:
        async with limiter[key]:
            pass

    return use


def limits(strategy: str) -> Use:
    from limits import RateLimitItemPerHour
    from limits.aio.storage import MemoryStorage
    from limits.aio.strategies import STRATEGIES

    strategies: dict[str, Any] = dict(STRATEGIES)
    hit: Callable[..., Awaitable[Any]] = strategies[strategy](MemoryStorage()).hit
    item = RateLimitItemPerHour(1000)
    return lambda key: hit(item, key)


CONTESTANTS: dict[str, Callable[[], Use]] = {
    OURS: headgate,
    PEER: lambda: limits("moving-window"),
    "limits, fixed window": lambda: limits("fixed-window"),
}


async def measured(use: Use, keys: int) -> Figures:
    names = [f"tenant-{number}" for number in range(keys)]
    await use("the first makes what all keys share")
    before = resident()
    first = await timed(use, names)
    size = (resident() - before) / keys
    return Figures(first, await timed(use, names), size)


async def timed(use: Use, names: Sequence[str]) -> float:
    start = perf_counter()
    for name in names:
        await use(name)
    return (perf_counter() - start) / len(names) * 1_000_000


def turn(name: str, keys: int, results: SimpleQueue[Figures]) -> None:
    results.put(asyncio.run(measured(CONTESTANTS[name](), keys)))


def rounds_of(keys: int, rounds: int) -> Iterator[tuple[str, Figures]]:
    context = multiprocessing.get_context("spawn")
    for _ in range(rounds):
        for name in CONTESTANTS:
            results: SimpleQueue[Figures] = context.SimpleQueue()
            process = context.Process(target=turn, args=(name, keys, results), daemon=True)
            process.start()
            process.join()
            if process.exitcode:
                raise RuntimeError(f"{name} ended with {process.exitcode}")
            yield name, results.get()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.keys_in_process")
    add = parser.add_argument
    add("--keys", type=int, default=KEYS, metavar="N", help=f"{KEYS:,} unless told")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"{ROUNDS} unless told")
    options = parser.parse_args(arguments)
    found: dict[str, list[Figures]] = {name: [] for name in CONTESTANTS}
    for name, figures in rounds_of(options.keys, options.rounds):
        found[name].append(figures)
    middle = {name: Figures(*map(median, zip(*its, strict=True))) for name, its in found.items()}
    table.say(f"\n{options.keys:,} keys, each used once, and then once more")
    heads = ("", "first use, us", "known key, us", "bytes a key", "")
    rows = [
        (name, f"{its.first:.1f}", f"{its.known:.1f}", f"{its.size:,.0f}", "")
        for name, its in middle.items()
    ]
    table.columns(heads, rows)
    pairs = zip(Figures._fields, middle[OURS], middle[PEER], strict=True)
    behind = [field for field, ours, peer in pairs if ours >= peer]
    table.say(f"not ahead of {PEER}: {', '.join(behind)}" if behind else f"ahead of {PEER}")
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
