"""The work of a server, by its own INFO: scripts, notifications, CPU and connections.

Only reading and subtracting live here; each tool uses the figures in its own way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

# No part of a work: they look at the server, or connect to it.
LOOKING = {
    "info",
    "config|resetstat",
    "hello",
    "select",
    "ping",
    "client|setinfo",
    "subscribe",
    "script|load",
}
SCRIPTS = ("evalsha", "eval", "fcall")


@dataclass(frozen=True)
class Stats:
    """The work of the server: calls of scripts, their microseconds, commands inside, notifications,
    and its own CPU seconds.
    """

    calls: int = 0
    microseconds: int = 0
    inside: int = 0
    announced: int = 0
    cpu: float = 0.0

    def __sub__(self, other: Stats) -> Stats:
        return Stats(
            self.calls - other.calls,
            self.microseconds - other.microseconds,
            self.inside - other.inside,
            self.announced - other.announced,
            self.cpu - other.cpu,
        )


def stats(server: Redis) -> Stats:
    return read(server.info("commandstats"), server.info("cpu"))


async def stats_of(server: AsyncRedis) -> Stats:
    return read(await server.info("commandstats"), await server.info("cpu"))


def read(commandstats: dict[str, Any], cpu: dict[str, Any]) -> Stats:
    commands = {name.removeprefix("cmdstat_"): value for name, value in commandstats.items()}
    scripts = [commands.pop(name) for name in SCRIPTS if name in commands]
    return Stats(
        sum(script["calls"] for script in scripts),
        sum(script["usec"] for script in scripts),
        sum(value["calls"] for name, value in commands.items() if name not in LOOKING),
        commands.get("publish", {"calls": 0})["calls"],
        cpu["used_cpu_user"] + cpu["used_cpu_sys"],
    )
