"""Which server has a name's keys: a single one, the primary of a Sentinel, or one of a Cluster.

This knowledge is a hint: a wrong server answers MOVED or READONLY, or not at all. Then the client
asks for the present state again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Coroutine, Hashable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from redis.crc import key_slot
from redis.exceptions import AuthenticationError

from headgate.stores.redis.transport.endpoint import Endpoint
from headgate.stores.redis.transport.failures import NotThereError, failure_text
from headgate.stores.redis.transport.tasks import NoAnswerError, first_answer

T = TypeVar("T")
# This generator leaves the user's random state alone, and differs after a fork.
CHANCE = random.SystemRandom()
NAMED = 3  # The most servers that an error names.
# A Sentinel's channels, each with the positions of the service and of the new primary's host in a
# message. The Sentinel that leads a failover publishes +switch-master late, when all replicas
# follow the new primary. +promoted-slave comes earlier, but from that Sentinel only.
NOTIFICATIONS = {"+switch-master": (0, 3), "+promoted-slave": (5, 2)}
Suspects = Collection[Endpoint | None]  # These servers failed just now.


class Topology:
    """The servers of one store. Any loop and any thread may ask. Only `look` takes time.

    Here one primary has all names. A Cluster replaces each method.
    """

    # The rights of this user, as far as is known. False, too, if the server has no functions.
    may_use_functions = may_ask_info = may_ping = may_index = True
    # Sharded channels are used. Only a Cluster has them.
    sharded = False
    # The store has several servers, each with its own names.
    several = False

    def __init__(self, identity: Hashable, primary: Endpoint | None) -> None:
        # It is equal for topologies with the same servers and the same settings.
        self.identity = identity
        self._primary = primary

    def where(self, key: str) -> Endpoint | None:
        """The server of `key`, as far as is known."""
        return self._primary

    def servers(self) -> Collection[Endpoint]:
        """The servers with names, as far as is known."""
        return [] if self._primary is None else [self._primary]

    def anywhere(self) -> Endpoint | None:
        """Any server of the store, as far as is known."""
        return self._primary

    def server(self, host: str, port: int, source: Endpoint) -> Endpoint | None:
        """The server that `source` has named. None: it is none of this store."""
        return None

    def moved(self, slot: int, server: Endpoint) -> None:
        """From now on calls for `slot` go to `server`."""

    async def look(self, suspects: Suspects) -> None:
        """Find out where all names are now. `suspects` are asked last.

        Raise the errors of an unavailable server (`LOST`).
        """


class Standalone(Topology):
    """A single server, always the same."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.identity, endpoint)

    def __str__(self) -> str:
        return str(self._primary)


class Sentinel(Topology):
    """The primary of a service, as its Sentinels name it."""

    def __init__(self, template: Endpoint, sentinels: Sequence[Endpoint], service: str) -> None:
        identity = frozenset(sentinel.identity for sentinel in sentinels)
        super().__init__((service, template.identity, identity), None)
        self._template = template
        self._sentinels = list(sentinels)
        self._service = service
        self._servers: dict[tuple[str, int], Endpoint] = {}

    async def look(self, suspects: Suspects) -> None:
        """Ask the Sentinels for the primary.

        The one that answers is asked last the next time. So headgate does not rely for ever on a
        Sentinel that lags behind.
        """
        sentinel, address = await ask_in_turn(
            self._sentinels, self._named_by, "Sentinel", f"a service named {self._service!r}"
        )
        last = self._sentinels.index(sentinel) + 1
        self._sentinels = self._sentinels[last:] + self._sentinels[:last]
        self._believe(*address)

    async def _named_by(self, sentinel: Endpoint) -> tuple[bytes, bytes] | None:
        address: tuple[bytes, bytes] | None = await sentinel.asked(
            "SENTINEL", "get-master-addr-by-name", self._service
        )
        return address

    async def switched(self) -> None:
        """Wait until the Sentinel notifies that another server is the primary.

        A planned failover cuts no connection, and the former primary goes on answering for seconds.
        Raise the errors of an unavailable Sentinel (`LOST`).
        """
        # `look` has put the Sentinel that answered last at the end.
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
        self._primary = self._servers.setdefault(address, self._template.at(*address))

    def __str__(self) -> str:
        places = ", ".join(str(sentinel).partition("/")[0] for sentinel in self._sentinels)
        return f"{self._service} by Sentinel at {places}"


class Cluster(Topology):
    """The primaries of a Cluster, each with its slots."""

    several = sharded = True

    def __init__(self, seeds: Sequence[Endpoint]) -> None:
        super().__init__(frozenset(seed.identity for seed in seeds), None)
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
        """The server that `source` has named.

        If the named host is empty or unknown ("?"), it is the host of `source` itself.
        """
        address = (source.host if host in ("", "?") else host, port)
        return self._servers.setdefault(address, self._seeds[0].at(*address))

    def moved(self, slot: int, server: Endpoint) -> None:
        self._slots[slot] = server

    async def look(self, suspects: Suspects) -> None:
        known = list(self.servers())
        shuffled = [
            *CHANCE.sample(known, len(known)),
            *CHANCE.sample(self._seeds, len(self._seeds)),
        ]
        source, ranges = await ask_in_turn(
            sorted(shuffled, key=suspects.__contains__),
            self._slots_at,
            "server",
            "the slots of a Cluster",
        )
        slots: dict[int, Endpoint] = {}
        for first, last, (host, port, *_), *_ in ranges:
            owner = self.server((host or b"").decode(), port, source)
            slots.update(dict.fromkeys(range(first, last + 1), owner))
        self._slots = slots

    async def _slots_at(self, server: Endpoint) -> Sequence[Any] | None:
        """The slots of the Cluster. None: the server was reset, or has joined no Cluster yet."""
        return await server.asked("CLUSTER", "SLOTS") or None

    def __str__(self) -> str:
        return f"Cluster at {', '.join(str(seed).partition('/')[0] for seed in self._seeds)}"


@lru_cache(maxsize=4096)
def slot_of(key: str) -> int:
    return int(key_slot(key.encode()))


async def ask_in_turn(
    servers: Sequence[Endpoint],
    ask: Callable[[Endpoint], Coroutine[Any, Any, T | None]],
    kind: str,
    what: str,
) -> tuple[Endpoint, T]:
    """The first answer, with its server. The error names servers that could not be asked, and why.

    The client does not retry after a wrong password. So that is the cause of the error only if no
    server failed in another way.
    """
    try:
        return await first_answer(servers, ask)
    except NoAnswerError as no_answer:
        troubles = no_answer.troubles
    silent = {server: trouble for server, trouble in troubles.items() if trouble is not None}
    reasons = []
    if len(silent) < len(troubles):
        reasons.append(f"no {kind} knows {what}")
    if silent:
        named = [f"{server.place} ({failure_text(trouble)})" for server, trouble in silent.items()]
        more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
        reasons.append(
            f"{len(silent)} of {len(troubles)} {kind}s could not be asked, "
            f"{', '.join(named[:NAMED])}{more}"
        )
    raise NotThereError("; ".join(reasons) or f"no {kind} was named") from min(
        silent.values(),
        key=lambda trouble: isinstance(trouble, AuthenticationError),
        default=None,
    )
