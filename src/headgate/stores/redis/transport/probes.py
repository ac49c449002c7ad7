"""Probes of one server: which commands the user may run, and what the server says about itself.

A probe changes nothing. A command that would write gets arguments with which it has no effect. A
server checks the rights of a command first, so any other error shows that the user has the right.
Each right that is missing adds a line to the server's ACL LOG.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import BusyLoadingError, NoPermissionError, ResponseError

from headgate.stores.redis.transport.connection import REPLY_TIMEOUT
from headgate.stores.redis.transport.endpoint import is_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headgate.stores.redis.transport.endpoint import Endpoint

# No encoded name begins with "/", so this is the key of no name. It never exists.
KEY = "headgate:{/doctor}"
FUNCTIONS = {"fcall": ("FCALL", "headgate", "0"), "function|load": ("FUNCTION", "LOAD", "")}
SCRIPTS = {"evalsha": ("EVALSHA", "0" * 40, "0"), "eval": ("EVAL", "return 1", "0")}
OF_A_CLUSTER = {
    "cluster|slots": ("CLUSTER", "SLOTS"),
    "asking": ("ASKING",),
    "spublish": ("SPUBLISH", KEY, ""),
    "ssubscribe": ("SSUBSCRIBE", KEY),
    "sunsubscribe": ("SUNSUBSCRIBE", KEY),
}
# By the rights of docs/redis.md. After a subscription the connection takes no other commands, so
# these are the last.
COMMANDS: dict[str, tuple[str, ...]] = {
    "time": ("TIME",),
    "ping": ("PING",),
    "info": ("INFO",),
    "del": ("DEL", KEY),
    "pexpire": ("PEXPIRE", KEY, "1"),
    "hget": ("HGET", KEY, "-"),
    "hmget": ("HMGET", KEY, "-"),
    "hset": ("HSET", KEY, "a field", "its value", "a field without a value"),
    "hkeys": ("HKEYS", KEY),
    "hdel": ("HDEL", KEY, "-"),
    "zadd": ("ZADD", KEY, "XX", "0", "-"),
    "zrem": ("ZREM", KEY, "-"),
    "zcard": ("ZCARD", KEY),
    "zcount": ("ZCOUNT", KEY, "0", "1"),
    "zscore": ("ZSCORE", KEY, "-"),
    "zrange": ("ZRANGE", KEY, "0", "1"),
    "zrangebyscore": ("ZRANGEBYSCORE", KEY, "0", "1"),
    "zremrangebyscore": ("ZREMRANGEBYSCORE", KEY, "0", "1"),
    **FUNCTIONS,
    **SCRIPTS,
    "publish": ("PUBLISH", KEY, ""),
    "subscribe": ("SUBSCRIBE", KEY),
}


@dataclass(frozen=True, slots=True)
class Probed:
    """The reply to each probe, or its error. `skew`: the server's clock less ours, in seconds."""

    replies: dict[str, Any]
    skew: float | None

    def is_missing(self, right: str) -> bool:
        return isinstance(self.replies[right], NoPermissionError)

    def works(self, rights: Iterable[str]) -> bool:
        """Whether the server knows all these commands, and the user may run them."""
        return not any(self.is_missing(each) or self.is_unknown(each) for each in rights)

    def is_unknown(self, right: str) -> bool:
        reply, command = self.replies[right], right.partition("|")[0]
        return isinstance(reply, ResponseError) and is_unknown(command, str(reply))

    def info(self) -> dict[str, str]:
        reply = self.replies["info"]
        lines = reply.decode().splitlines() if isinstance(reply, bytes) else []
        return dict(line.split(":", 1) for line in lines if ":" in line)


async def probe(server: Endpoint, cluster: bool) -> Probed:
    """Ask one command after another. Raises an error of LOST if the connection is lost."""
    commands = {**COMMANDS, **(OF_A_CLUSTER if cluster else {})}
    replies: dict[str, Any] = {}
    skew = None
    async with server.talk() as connection:
        for right, words in commands.items():
            if right in SCRIPTS and Probed(replies, skew).works(FUNCTIONS):
                continue  # functions suffice, and most users may not run scripts
            sent = time()
            async with asyncio.timeout(REPLY_TIMEOUT):
                await connection.send_command(*words)
                try:
                    replies[right] = await connection.read_response()
                except (ResponseError, BusyLoadingError) as refusal:
                    replies[right] = refusal
            if right == "time" and isinstance(replies[right], list):
                seconds, micros = map(int, replies[right])
                skew = seconds + micros / 1_000_000 - (sent + time()) / 2
    return Probed(replies, skew)
