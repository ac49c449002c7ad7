"""Which names, keys and queues a Redis store has. These questions declare and change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from headgate.errors import StoreError
from headgate.keys import encoded
from headgate.stores.redis.members import read_members, read_oldest_waits
from headgate.stores.redis.protocol.index import NAMES, living
from headgate.stores.redis.protocol.members import WAITING
from headgate.stores.redis.transport.portal import blocking
from headgate.stores.redis.transport.questions import replies_or_errors, replies_to, scan
from headgate.stores.status import QueueLength, longest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headgate.stores.members import Members
    from headgate.stores.redis.transport.topology import Topology

TIMEOUT = 2.0  # seconds that servers get to answer for the names in `among`


class RedisLists:
    """The lists of one store. Errors name the call. The "/" at its end tells `title` that."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def names(self) -> list[str]:
        return blocking(self.anames, "headgate.names()/")

    async def anames(self) -> list[str]:
        names = await encoded_names(self._topology, "headgate.names()")
        # Only a name of the classics has a "/": in other names it is percent-encoded.
        return sorted(unquote(name) for name in names if "/" not in name)

    def keys(self, name: str) -> list[str]:
        return blocking(lambda: self.akeys(name), "headgate.keys_of()/")

    async def akeys(self, name: str) -> list[str]:
        # An encoded name has no special character of a glob pattern.
        start = f"headgate:{{{encoded(name)}:"
        found = await scan(self._topology, "headgate.keys_of()", f"{start}*}}")
        return sorted(unquote(key.removeprefix(start).removesuffix("}")) for key in found)

    def longest(self) -> list[QueueLength]:
        return blocking(self.alongest, "headgate.longest_queues()/")

    async def alongest(self, among: Sequence[str] | None = None) -> list[QueueLength]:
        """The longest queues of all names. With `among`, only of these names, without those whose
        server fails or is silent.
        """
        call = "headgate.longest_queues()"
        names = await self.anames() if among is None else among
        keys = [f"headgate:{{{encoded(name)}}}:who" for name in names]
        questions = [(key, ("ZCOUNT", key, *WAITING)) for key in keys]
        if among is None:
            lengths = await replies_to(self._topology, call, questions)
        else:
            lengths = await replies_or_errors(self._topology, call, questions, TIMEOUT)
        return longest(
            QueueLength(name, None, length)
            for name, length in zip(names, lengths, strict=True)
            if not isinstance(length, StoreError)
        )

    async def amembers(self, name: str) -> Members:
        return await read_members(self._topology, name)

    async def aoldest_waits(self, names: Sequence[str]) -> list[float | None]:
        return await read_oldest_waits(self._topology, names)


async def encoded_names(topology: Topology, call: str) -> list[str]:
    """The names in the index, also those of classics (`Semaphore/name`)."""
    every = "ZRANGEBYSCORE", NAMES, "-inf", "+inf", "WITHSCORES"
    time, members = await replies_to(topology, call, [(NAMES, ("TIME",)), (NAMES, every)])
    return living(members, int(time[0]))
