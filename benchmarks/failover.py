"""`python -m benchmarks.failover`: how long a failover takes, by the timeouts that decide it.

A primary is killed with SIGKILL while two processes hand a permit to and fro. The table says how
long no caller was granted anything, and how many calls failed. Three failovers of each kind take a
minute; `--defaults` adds one with the timeouts that Redis has if nothing is said (two minutes
more).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import NamedTuple

from benchmarks import machine
from benchmarks.table import say
from headgate import Concurrency, Limiter, StoreError
from tests.clusters import Cluster
from tests.sentinels import Sentinels
from tests.servers import ServerMissing

ADVISED = 3000  # milliseconds: the advice of docs/redis.md
DEFAULTS = {"Cluster": 15_000, "Sentinel": 30_000}  # Redis's own
ROUNDS = 3
CALM = 2.0  # seconds of work before the fault, and after it
OVER = 60.0  # seconds after which a failover is given up
WORKERS = 4  # of each process, for each name
OPTIONS = {"Cluster": "cluster-node-timeout", "Sentinel": "down-after-milliseconds"}


class Place(NamedTuple):
    """A topology of our own, the names that are used there, and how its primary is broken."""

    url: str
    names: Sequence[str]  # the first one is kept by the server that is broken
    kill: Callable[[], object]


class Work:
    """Callers of two processes that take one permit in turns, and others that only try."""

    def __init__(self, name: str, url: str) -> None:
        joint = "&" if "?" in url else "?"
        urls = [f"{url}{joint}socket_connect_timeout={5 + number}" for number in range(2)]
        self.limiters = [Limiter(name, Concurrency(1), store=its) for its in urls]
        self.granted = [monotonic()]
        self.refused = 0  # acquires that raised StoreError
        self.failed = 0  # tries that did
        self._over = False

    async def run(self) -> None:
        waiting = [self._wait(limiter) for limiter in self.limiters for _ in range(WORKERS)]
        await asyncio.gather(*waiting, *(self._try(limiter) for limiter in self.limiters))

    def stop(self) -> None:
        self._over = True

    def gap(self, since: float) -> float:
        """The longest time without a grant, in seconds."""
        times = [moment for moment in self.granted if moment >= since]
        return max(after - before for before, after in zip([since, *times], times, strict=False))

    async def _wait(self, limiter: Limiter) -> None:
        while not self._over:
            try:
                async with limiter.acquire():
                    self.granted.append(monotonic())
                    await asyncio.sleep(0.001)
            except StoreError:
                self.refused += 1
                await asyncio.sleep(0.01)

    async def _try(self, limiter: Limiter) -> None:
        while not self._over:
            try:
                permit = await limiter.atry_acquire()
                if permit:
                    await permit.arelease()
            except StoreError:
                self.failed += 1
            await asyncio.sleep(0.01)


@contextmanager
def a_cluster(timeout: int) -> Iterator[Place]:
    cluster = Cluster(node_timeout=timeout)
    cluster.start()
    try:
        node, other = cluster.masters()[:2]
        names = [cluster.name_on(each, "failover") for each in (node, other)]
        yield Place(cluster.user_url, names, node.kill)
    finally:
        cluster.stop()


@contextmanager
def some_sentinels(timeout: int) -> Iterator[Place]:
    sentinels = Sentinels(down_after=timeout)
    sentinels.start()
    try:
        primary = sentinels.primary
        yield Place(sentinels.user_url, ["failover"], primary.kill)
    finally:
        sentinels.stop()


PLACES = {"Cluster": a_cluster, "Sentinel": some_sentinels}


async def survive(place: Place) -> list[Work]:
    """The primary dies; go on until all names have been granted again for a while."""
    works = [Work(name, place.url) for name in place.names]
    running = [asyncio.create_task(work.run()) for work in works]
    await asyncio.sleep(CALM)
    killed = monotonic()
    place.kill()
    async with asyncio.timeout(OVER):
        while any(work.granted[-1] < killed + 1 for work in works):  # noqa: ASYNC110  # they are many
            await asyncio.sleep(0.1)
    await asyncio.sleep(CALM)
    for work in works:
        work.stop()
    await asyncio.gather(*running)
    return works


def failovers(kind: str, timeout: int, rounds: int) -> None:
    gaps, refused, failed, beside = [], 0, 0, []
    for _ in range(rounds):
        with PLACES[kind](timeout) as place:
            work, *others = asyncio.run(survive(place))
        gaps.append(work.gap(work.granted[0]))
        refused, failed = refused + work.refused, failed + work.failed
        beside += [other.gap(other.granted[0]) for other in others]
    words = [
        kind,
        f"`{OPTIONS[kind]} {timeout}`",
        span(gaps),
        span(beside) if beside else "",
        refused,
        failed,
    ]
    say(f"| {' | '.join(map(str, words))} |")


def span(values: Sequence[float]) -> str:
    least, most = f"{min(values):.1f}", f"{max(values):.1f}"
    return f"{least} s" if least == most else f"{least} to {most} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--timeouts", nargs="+", type=int, default=[ADVISED], help="milliseconds")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--defaults", action="store_true", help="one failover with Redis's own timeouts"
    )
    asked = parser.parse_args(arguments)
    say(f"{machine.versions()}\n")
    try:
        say(
            "| | | no grant for | a name of another node | acquires that failed | tries that "
            "failed |"
        )
        say("|---|---|---|---|---|---|")
        for kind in PLACES:
            for timeout in asked.timeouts:
                failovers(kind, timeout, asked.rounds)
            if asked.defaults:
                failovers(kind, DEFAULTS[kind], 1)
    except ServerMissing as missing:
        say(str(missing))
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
