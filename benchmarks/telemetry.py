"""`python -m benchmarks.telemetry`: the cost of headgate.telemetry for an acquire that passes at
once, beside the hooks of throttled-py.

All settings take turns in one process, on the same limiter. Each figure is the median of the ratios
to "off" in the same round. Exit status: 1 when an acquire in memory is over the goal with a setting
on. 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from statistics import median
from time import perf_counter
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from benchmarks import tool
from benchmarks.table import columns, figure, say
from headgate import Concurrency, Limiter, Rate
from headgate.telemetry import opentelemetry, prometheus, reading

GOAL = 1.03  # an acquire in memory with everything on, against the same with everything off
PLENTY = 1_000_000_000
ROUNDS, BRIEF = 60, 5
MEMORY, REDIS = 5_000, 200  # acquires in a round
Setting = Callable[[], AbstractContextManager[None]]
Work = Callable[[int], Awaitable[None]]


@contextmanager
def counting() -> Iterator[None]:
    reading.switch_on()
    yield
    reading.switch_off()


@contextmanager
def otel() -> Iterator[None]:
    instrumented = opentelemetry.instrument(MeterProvider([InMemoryMetricReader()]))
    yield
    instrumented.uninstrument()


@contextmanager
def scraped() -> Iterator[None]:
    registry, collector = CollectorRegistry(), prometheus.collector()
    registry.register(collector)
    yield
    registry.unregister(collector)
    reading.switch_off()


SETTINGS: dict[str, Setting] = {
    "off": nullcontext,
    "counting": counting,
    "OpenTelemetry": otel,
    "Prometheus": scraped,
}


def blocks(limiter: Any) -> Work:
    async def work(times: int) -> None:
        for _ in range(times):
            async with limiter:
                pass

    return work


def permits(limiter: Limiter) -> Work:
    async def work(times: int) -> None:
        for _ in range(times):
            (await limiter.acquire()).release()

    return work


def throttled(hooks: Sequence[Any]) -> Work:
    from throttled.asyncio import Throttled, rate_limiter

    quota = rate_limiter.per_hour(PLENTY)
    return blocks(Throttled(key="k", using="token_bucket", quota=quota, hooks=list(hooks)))


async def compare(works: dict[str, tuple[Work, Setting]], times: int, rounds: int) -> list[float]:
    """The median ratio of each work to the first, and at the end the microseconds of the first."""
    for work, _ in works.values():
        await work(times)
    seconds: dict[str, list[float]] = {name: [] for name in works}
    names = list(works)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            work, setting = works[name]
            with setting():
                await work(times // 10)
                start = perf_counter()
                await work(times)
                seconds[name].append(perf_counter() - start)
    first = seconds[names[0]]
    ratios = [
        median(each / base for each, base in zip(seconds[name], first, strict=True))
        for name in names
    ]
    return [*ratios, median(first) / times * 1e6]


async def measured(url: str, rounds: int) -> bool:
    rate, slots = Rate(PLENTY, per=1), Concurrency(1000)
    acquires = {
        "in memory: async with, a Rate": (blocks(Limiter("rate", rate)), MEMORY),
        "in memory: async with, a Concurrency": (blocks(Limiter("slots", slots)), MEMORY),
        "in memory: acquire() and release()": (permits(Limiter("permits", slots)), MEMORY),
        "on Redis: async with, a Rate": (blocks(Limiter("rate", rate, store=url)), REDIS),
        "on Redis: async with, a Concurrency": (blocks(Limiter("slots", slots, store=url)), REDIS),
    }
    rows, reached = [], True
    for title, (work, times) in acquires.items():
        works = {name: (work, setting) for name, setting in SETTINGS.items()}
        *ratios, each = await compare(works, times, rounds)
        rows.append((title, figure(each), *(f"x{ratio:.3f}" for ratio in ratios[1:])))
        reached = reached and (times == REDIS or max(ratios) <= GOAL)
    columns(("", "us each, off", *list(SETTINGS)[1:]), rows)
    await show_peer(rounds)
    say(f"goal: at most x{GOAL} in memory: {'reached' if reached else 'NOT REACHED'}")
    return reached


async def show_peer(rounds: int) -> None:
    from throttled.asyncio.contrib.otel import OTelHook

    meter = MeterProvider([InMemoryMetricReader()]).get_meter("peer")
    works = {
        "off": (throttled([]), SETTINGS["off"]),
        "OpenTelemetry": (throttled([OTelHook(meter)]), SETTINGS["off"]),
    }
    _, ratio, each = await compare(works, MEMORY // 5, rounds)
    columns(
        ("", "us each, off", "OpenTelemetry"),
        [("throttled-py, in memory: async with, a bucket", figure(each), f"x{ratio:.3f}")],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.telemetry", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a look, not a figure")
    rounds = BRIEF if parser.parse_args(arguments).quick else ROUNDS
    return tool.on_private_server(lambda url: asyncio.run(measured(url, rounds)))


if __name__ == "__main__":
    raise SystemExit(main())
