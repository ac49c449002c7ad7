"""The warning about servers that may evict keys. A user without permission for INFO gets none."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hiredis import HiredisError

from headgate.log_writer import log

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

EVERY = 600.0  # The seconds between two checks: the policy can change while the server runs.
_warned: set[str] = set()


@dataclass
class Eviction:
    """Checks one server when the client connects, and from time to time."""

    loop: AbstractEventLoop
    topology: Topology
    endpoint: Endpoint
    send: Callable[[Callable[[Any], None], str, str], None]

    def __post_init__(self) -> None:
        self._timer = self.loop.call_later(0.0, self._ask)

    def _ask(self) -> None:
        if self.topology.may_ask_info:
            self.send(self._check_policy, "INFO", "memory")
            self._timer = self.loop.call_later(EVERY, self._ask)

    def _check_policy(self, reply: Any) -> None:
        where = str(self.endpoint)
        if isinstance(reply, HiredisError):
            self.topology.may_ask_info = not str(reply).startswith("NOPERM")
        elif (policy := dangerous(reply.decode())) and where not in _warned:
            _warned.add(where)
            log(
                logging.WARNING,
                "The Redis server at %s may evict keys (maxmemory-policy %s): a limiter whose key "
                "is evicted forgets who holds and what was counted. Set maxmemory-policy "
                "noeviction, or give headgate a server of its own.",
                where,
                policy,
            )

    def stop(self) -> None:
        self._timer.cancel()


def dangerous(info: str) -> str:
    """The policy, if it may evict keys, else an empty text."""
    facts = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    policy = facts.get("maxmemory_policy", "noeviction")
    return "" if policy == "noeviction" or facts.get("maxmemory") == "0" else policy
