"""`python -m benchmarks.rate_block`: where the time of `async with` over a rate in memory goes.

A ladder of blocks: each does one thing more than the one before, with headgate's own parts, up to
the limiter itself. asyncio.Semaphore stands beside it. All take turns in one process. Each figure
is the median of its turns.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from statistics import median
from threading import Lock
from time import perf_counter
from typing import Any

from benchmarks import machine
from benchmarks.table import columns, say
from headgate import Limiter, Rate
from headgate.clock import SystemClock
from headgate.gate.compile import declaration

PLENTY = Rate(1_000_000_000, per=1)
BLOCKS = 5_000  # in a turn
ROUNDS, BRIEF = 60, 5


class Empty:
    """A block of Python that does nothing."""

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        pass


class Queued:
    """A block that asks an object of its own, as all stores share one limiter class."""

    def __init__(self, enter: Callable[[], bool], leave: Callable[[], None]) -> None:
        self.enter, self.leave = enter, leave

    async def __aenter__(self) -> None:
        enter = self.enter
        if not enter():
            raise RuntimeError("the benchmark has used up its limit")

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        leave = self.leave
        leave()


def passes() -> bool:
    return True


def nothing() -> None:
    pass


def locked(decide: Callable[[], bool]) -> Callable[[], bool]:
    """Limiters of threads share their state, so each decision takes a lock."""
    lock = Lock()
    acquire, release = lock.acquire, lock.release

    def enter() -> bool:
        acquire(False)
        try:
            return decide()
        finally:
            release()

    return enter


def timed() -> Callable[[], bool]:
    now = SystemClock().now

    def decide() -> bool:
        return now() > 0

    return decide


def counted() -> Callable[[], bool]:
    now, (rule,) = SystemClock().now, declaration((PLENTY,)).rules()
    rule.open(now())
    admit = rule.admit

    def decide() -> bool:
        return admit(now())

    return decide


def ladder() -> dict[str, Any]:
    return {
        "an empty block": Empty(),
        "and a call to enter and to leave": Queued(passes, nothing),
        "and a lock": Queued(locked(passes), nothing),
        "and the clock": Queued(locked(timed()), nothing),
        "and the token bucket": Queued(locked(counted()), nothing),
        "headgate: waiters, interrupts, pauses, forks": Limiter("rate", PLENTY),
        "asyncio.Semaphore": asyncio.Semaphore(),
    }


async def seconds(block: Any) -> float:
    start = perf_counter()
    for _ in range(BLOCKS):
        async with block:
            pass
    return (perf_counter() - start) / BLOCKS


async def measure(rounds: int) -> dict[str, float]:
    blocks, found = ladder(), dict[str, list[float]]()
    names = list(blocks)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found.setdefault(name, []).append(await seconds(blocks[name]))
    return {name: median(found[name]) * 1e6 for name in names}


def show(found: dict[str, float]) -> None:
    rows, before = [], 0.0
    for name, each in found.items():
        rows.append((name, f"{each:.2f}", f"+{each - before:.2f}" if each > before else ""))
        before = each
    columns(("", "us each", "more than the line before"), rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rate_block", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, not a figure")
    rounds = BRIEF if parser.parse_args(arguments).quick else ROUNDS
    say(machine.facts())
    show(asyncio.run(measure(rounds)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
