"""Which server has a name's keys: the one there is, the one that Sentinel calls the primary, or one of a Cluster.

Here lives knowing and finding out; connecting is the link's. What is known is a hint: a server that is asked in vain says so
(MOVED, READONLY, no answer), and then it is looked for again.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from redis.crc import key_slot
from redis.exceptions import AuthenticationError

from headgate.stores.redis.transport.endpoint import Endpoint
from headgate.stores.redis.transport.failures import NotThereError, words
from headgate.stores.redis.transport.tasks import NoAnswerError, first_answer

CHANCE = random.SystemRandom()  # not the user's own, and another one after a fork
NAMED = 3  # servers that a message names at most
# A Sentinel's channels, and the positions of the service and of the new primary's host in a message. The
# Sentinel that leads a failover publishes +switch-master only when all replicas follow the new primary.
NOTIFICATIONS = {"+switch-master": (0, 3), "+promoted-slave": (5, 2)}
Suspects = Collection[Endpoint | None]  # who was asked in vain just now


class Topology(Protocol):
    """The servers of one store. It may be asked from any loop and thread; only `look` takes time."""

    functions: bool  # until a server says that it has none for us
    informs: bool  # until a server says that we may not ask it for INFO
    several: bool  # servers, each with names of its own: one may be away while others are there
    identity: Hashable  # equal for those that lead to the same servers with the same settings
    sharded: bool  # a Cluster, until a server says that it has no sharded channels for us

    def where(self, key: str) -> Endpoint | None:
        """Who has `key`, as far as is known; None: look first."""

    def servers(self) -> Collection[Endpoint]:
        """Who has names, as far as is known."""

    def anywhere(self) -> Endpoint | None:
        """Any server of the store."""

    def server(self, host: str, port: int, source: Endpoint) -> Endpoint | None:
        """The server that another one has named; None: it is none of ours."""

    def moved(self, slot: int, server: Endpoint) -> None:
        """From now on the slot is asked for there."""

    async def look(self, suspects: Suspects) -> None:
        """Find out where everything is now; `suspects` are asked last. Raises what a server that is away looks like."""


class Standalone:
    """One server, always the same."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.functions = self.informs = True
        self.several = self.sharded = False
        self.identity: Hashable = endpoint.identity
        self._endpoint = endpoint

    def where(self, key: str) -> Endpoint:
        return self._endpoint

    def servers(self) -> Collection[Endpoint]:
        return [self._endpoint]

    def anywhere(self) -> Endpoint:
        return self._endpoint

    def server(self, host: str, port: int, source: Endpoint) -> None:
        """There is but one."""

    def moved(self, slot: int, server: Endpoint) -> None:
        """There is but one."""

    async def look(self, suspects: Suspects) -> None:
        """There is nothing to find out."""

    def __str__(self) -> str:
        return str(self._endpoint)


class Sentinel:
    """The primary of a service, as its Sentinels have it."""

    def __init__(self, like: Endpoint, sentinels: Sequence[Endpoint], service: str) -> None:
        self.functions = self.informs = True
        self.several = self.sharded = False
        self.identity: Hashable = (
            service,
            like.identity,
            frozenset(sentinel.identity for sentinel in sentinels),
        )
        self._like = like
        self._sentinels = list(sentinels)
        self._service = service
        self._servers: dict[tuple[str, int], Endpoint] = {}
        self._primary: Endpoint | None = None

    def where(self, key: str) -> Endpoint | None:
        return self._primary

    def servers(self) -> Collection[Endpoint]:
        return [] if self._primary is None else [self._primary]

    def anywhere(self) -> Endpoint | None:
        return self._primary

    def server(self, host: str, port: int, source: Endpoint) -> None:
        """There is but one."""

    def moved(self, slot: int, server: Endpoint) -> None:
        """There is but one."""

    async def look(self, suspects: Suspects) -> None:
        """Who has answered is asked last the next time, lest one that lags is believed for ever."""
        try:
            sentinel, address = await first_answer(self._sentinels, self._named_by)
        except NoAnswerError as ignore_reply:
            raise nothing_known(
                ignore_reply.troubles, "Sentinel", f"a service named {self._service!r}"
            ) from cause_of(ignore_reply.troubles)
        last = self._sentinels.index(sentinel) + 1
        self._sentinels = self._sentinels[last:] + self._sentinels[:last]
        self._believe(*address)

    async def _named_by(self, sentinel: Endpoint) -> tuple[bytes, bytes] | None:
        address: tuple[bytes, bytes] | None = await sentinel.asked(
            "SENTINEL", "get-master-addr-by-name", self._service
        )
        return address

    async def switched(self) -> None:
        """Until the Sentinel announces that another server is the primary.

        A planned failover cuts no connection, and for seconds the former primary goes on answering.
        Raises what a Sentinel that is away looks like.
        """
        async with self._sentinels[0].talk() as connection:
            await connection.send_command("SUBSCRIBE", *NOTIFICATIONS)
            while True:
                kind, channel, said = await connection.read_response()
                if kind != b"message":
                    continue
                words, (service, host) = said.split(b" "), NOTIFICATIONS[channel.decode()]
                if words[service] == self._service.encode():
                    self._believe(*words[host : host + 2])
                    return

    def _believe(self, host: bytes, port: bytes) -> None:
        address = host.decode(), int(port)
        self._primary = self._servers.setdefault(address, self._like.at(*address))

    def __str__(self) -> str:
        return f"{self._service} by Sentinel at {', '.join(str(sentinel).partition('/')[0] for sentinel in self._sentinels)}"


class Cluster:
    """The primaries of a Cluster, each with its slots."""

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        self.functions = self.informs = self.several = self.sharded = True
        self.identity: Hashable = frozenset(seed.identity for seed in seeds)
        self._seeds = seeds
        self._servers: dict[tuple[str, int], Endpoint] = {}
        self._slots: dict[int, Endpoint] = {}

    def where(self, key: str) -> Endpoint | None:
        return self._slots.get(slot_of(key))

    def servers(self) -> Collection[Endpoint]:
        return list(dict.fromkeys(self._slots.values()))

    def anywhere(self) -> Endpoint | None:
        return CHANCE.choice(list(self._slots.values())) if self._slots else None

    def server(self, host: str, port: int, source: Endpoint) -> Endpoint:
        """Who names no host, or one that it does not know, means the one under which it was asked itself."""
        address = (source.host if host in ("", "?") else host, port)
        return self._servers.setdefault(address, self._seeds[0].at(*address))

    def moved(self, slot: int, server: Endpoint) -> None:
        self._slots[slot] = server

    async def look(self, suspects: Suspects) -> None:
        known = list(self.servers())
        known, seeds = (
            CHANCE.sample(known, len(known)),
            CHANCE.sample(self._seeds, len(self._seeds)),
        )
        try:
            server, ranges = await first_answer(
                sorted([*known, *seeds], key=suspects.__contains__), self._slots_at
            )
        except NoAnswerError as ignore_reply:
            raise nothing_known(
                ignore_reply.troubles, "server", "the slots of a Cluster"
            ) from cause_of(ignore_reply.troubles)
        self._slots = {slot: owner for slots, owner in self._read(ranges, server) for slot in slots}

    async def _slots_at(self, server: Endpoint) -> Sequence[Any] | None:
        """None of one that was reset, or has met nobody yet."""
        return await server.asked("CLUSTER", "SLOTS") or None

    def _read(self, ranges: Sequence[Any], source: Endpoint) -> list[tuple[range, Endpoint]]:
        return [
            (range(first, last + 1), self.server((host or b"").decode(), port, source))
            for first, last, (host, port, *_), *_ in ranges
        ]

    def __str__(self) -> str:
        return f"Cluster at {', '.join(str(seed).partition('/')[0] for seed in self._seeds)}"


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    return int(key_slot(key.encode()))


def nothing_known(
    troubles: Mapping[Endpoint, BaseException | None], kind: str, what: str
) -> NotThereError:
    """Who could not be asked and why, out of how many."""
    mute = [
        f"{server.place} ({words(trouble)})"
        for server, trouble in troubles.items()
        if trouble is not None
    ]
    more = f" and {len(mute) - NAMED} more" if len(mute) > NAMED else ""
    told = (
        f"{len(mute)} of {len(troubles)} {kind}s could not be asked, {', '.join(mute[:NAMED])}{more}"
        if mute
        else ""
    )
    knows = f"no {kind} knows {what}" if len(mute) < len(troubles) else ""
    return NotThereError("; ".join(filter(None, (knows, told))) or f"no {kind} was named")


def cause_of(troubles: Mapping[Endpoint, BaseException | None]) -> BaseException | None:
    """Any of them but a wrong password, if there is one: that alone would be no reason to try again."""
    return max(
        filter(None, troubles.values()),
        key=lambda trouble: not isinstance(trouble, AuthenticationError),
        default=None,
    )
