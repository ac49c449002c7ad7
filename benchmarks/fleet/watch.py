"""The view of a fleet from outside while it runs: bare round trips, connections, places in the
queue, the server's own figures.

It looks seldom enough not to be a load, and says nothing about headgate.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from redis.asyncio import Redis

from benchmarks.peers import bare, wire
from benchmarks.stage import Opening, Stage
from benchmarks.usage import Stats, stats_of

WIRE, REDIS_PY = "headgate's wire", "redis-py"
BARE: dict[str, Opening] = {WIRE: wire.evalsha, REDIS_PY: bare.evalsha}
BETWEEN = 0.02  # seconds between two bare round trips
LOOKS = 2.0  # seconds between two looks at connections and places


@dataclass
class Seen:
    bare: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BARE})
    connections: Counter[str] = field(
        default_factory=Counter
    )  # the most at once, by the name of a process
    places: dict[str, float] = field(default_factory=dict)
    before: Stats = field(default_factory=Stats)
    after: Stats = field(default_factory=Stats)

    @property
    def done(self) -> Stats:
        return self.after - self.before


class Watch:
    """Opened before a fleet starts; `look_on` from its start to its end."""

    def __init__(self, url: str, name: str, runner: asyncio.Runner, stack: ExitStack) -> None:
        self._runner = runner
        self._server: Redis = Redis.from_url(url, decode_responses=True)
        stack.callback(lambda: runner.run(self._server.aclose()))
        stage = Stage(url, runner, name)
        self._calls = {
            each: stack.enter_context(opening(stage))(f"{name}-bare")
            for each, opening in BARE.items()
        }
        self._who = f"headgate:{{{name}}}:who"
        self._prefix = f"{name}-"

    def look_on(self, start: float, end: float) -> Seen:
        return self._runner.run(self._look_on(start, end))

    async def _look_on(self, start: float, end: float) -> Seen:
        """Between two moments of the monotonic clock."""
        seen = Seen()
        await asyncio.sleep(start - perf_counter())
        seen.before = await stats_of(self._server)
        look = start
        while perf_counter() < end:
            for name, call in self._calls.items():
                asked = perf_counter()
                await call()
                seen.bare[name].append(perf_counter() - asked)
                await asyncio.sleep(BETWEEN / len(BARE))
            if perf_counter() >= look:
                look += LOOKS
                await self._look(seen)
        seen.after = await stats_of(self._server)
        return seen

    async def _look(self, seen: Seen) -> None:
        names = Counter(client["name"] for client in await self._server.client_list())
        seen.connections |= Counter(
            {name: count for name, count in names.items() if name.startswith(self._prefix)}
        )
        scores: Any = await self._server.zrange(self._who, 0, -1, withscores=True)
        seen.places.update(
            {who: score for who, score in scores if ":" in who and not who.startswith("+")}
        )  # the waiters
