"""Which servers of a store answer, as far as one client knows.

A part of a store fails as a whole. It is one server of a Cluster. Elsewhere it is all of the store,
and named None.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol

from headgate.stores.redis.transport.backoff import LONGEST, REVIVAL, backoff
from headgate.stores.redis.transport.failures import NotThereError
from headgate.stores.redis.transport.node import NOT_NOW, UNREADY, Call, Node, Sender
from headgate.stores.redis.transport.outages import outages_of
from headgate.stores.redis.transport.tasks import begun, trouble_of

if TYPE_CHECKING:
    from headgate.errors import StoreError
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology


class Closable(Protocol):
    """The part of the client that Availability uses."""

    loop: asyncio.AbstractEventLoop
    topology: Topology

    @property
    def closed(self) -> bool: ...


class Backlog:
    """The senders with unsent operations for a server that was unavailable. They poll it after a
    pause.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._senders: dict[Sender, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sender: Sender, attempt: int) -> None:
        """Let `sender` poll later: together with the others, so that many ask as often as one."""
        self._senders[sender] = None
        if self._timer is None:
            self._timer = self.loop.call_later(backoff(attempt, REVIVAL), self.poll_all)

    def poll_all(self) -> None:
        self.halt()
        self._timer = None
        senders, self._senders = self._senders, {}
        for sender in senders:
            sender.poll()

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def drop(self) -> None:
        self.halt()
        self._senders = {}


class Availability:
    def __init__(self, client: Closable) -> None:
        self._client = client
        self._topology = client.topology
        # The store has answered this client, or another loop: see `note_other_loops`.
        self.met = False
        # These servers failed with these errors. Before another attempt the client asks where the
        # names are.
        self.suspects: dict[Endpoint | None, Exception] = {}
        # The number of attempts to reach each server since its last answer.
        self._attempts: dict[Endpoint | None, int] = {}
        # A call to these parts has failed for good, and none was answered since. Until one is
        # answered, the first call of a sender is not retried there.
        self._abandoned: set[Endpoint | None] = set()
        # The same parts, and those that are not ready. Acquires may do without them
        # (`on_store_error`) until a call or a PING is answered.
        self.unavailable: set[Endpoint | None] = set()
        self.backlog = Backlog(client.loop)
        self._outages = outages_of(client.topology)
        # The tasks, by part, see `_revive`.
        self._reviving: dict[Endpoint | None, asyncio.Task[None]] = {}

    def _part(self, server: Endpoint | None) -> Endpoint | None:
        """The part of the store that fails together with `server`: one of a Cluster, or all."""
        return server if self._topology.several else None

    def is_retryable(self, call: Call) -> bool:
        """Whether the server of `call` has answered before, and may soon do so again."""
        if call.sender.met is not None:
            return call.sender.met
        return self.met and self._part(call.server(self._topology)) not in self._abandoned

    def next_backoff(self, server: Endpoint | None) -> float:
        self._attempts[server] = attempts = self._attempts.get(server, 0) + 1
        return backoff(attempts, LONGEST)

    def note_reply(self, call: Call, reply: Any, node: Node) -> None:
        if isinstance(reply, Exception) and str(reply).startswith(NOT_NOW):
            call.sender.met = False
            if str(reply).startswith((*UNREADY, "READONLY")):
                self.unavailable.add(self._part(node.endpoint))
        else:
            call.sender.met = self.met = self._outages.met = True
            # A server that refuses all calls, such as one without memory, is not back yet.
            if self._outages.present and not isinstance(reply, Exception):
                # Outages of names whose server was not known are listed under None.
                for part in {self._part(node.endpoint), None}:
                    self._outages.ends(part, self._client.loop)
            if self._attempts or self._abandoned or self.unavailable:
                self._reached(node, self._part(node.endpoint))

    def _reached(self, node: Node, part: Endpoint | None) -> None:
        if part in self._abandoned:
            self.backlog.poll_all()
        # None: see `note_reply`.
        for known in (node.endpoint, None):
            self._attempts.pop(known, None)
        for parts in (self._abandoned, self.unavailable):
            parts.difference_update((part, None))
        node.postponed.send_all()

    def note_refusal(self, call: Call) -> None:
        """The server of `call` answers, but not now. So a sender's first call is retryable, too."""
        if call.sender.met is None:
            self.met = True
            self._abandoned.discard(self._part(call.server(self._topology)))

    def note_failure(self, server: Endpoint | None) -> None:
        """A call to `server` has failed for good."""
        for parts in (self._abandoned, self.unavailable):
            parts.add(self._part(server))

    def note_outage(self, sender: Sender, error: StoreError) -> None:
        """Callers of `sender` have failed with `error`."""
        self._outages.begins(self._part(self._topology.where(sender.key)), error)

    def note_other_loops(self) -> None:
        """Count the store as reached if another loop has reached it and knows of no outage."""
        if not self.met:
            self.met = self._outages.met and not self._outages.present

    def is_unavailable(self, key: str) -> bool:
        """Whether the server of `key` is unavailable. Then a task PINGs it. Any thread may ask."""
        part = self._part(self._topology.where(key)) if self.unavailable else None
        if part not in self.unavailable:
            return False
        if part not in self._reviving and not self._client.closed:
            with suppress(RuntimeError):  # The loop was closed this moment.
                self._client.loop.call_soon_threadsafe(self._revive_soon, part)
        return True

    def _revive_soon(self, part: Endpoint | None) -> None:
        if part not in self._reviving:
            self._reviving[part] = begun(self._revive(part), "headgate-revive")

    async def _revive(self, part: Endpoint | None) -> None:
        """PING an unavailable part until it is ready. A server that loads its data refuses."""
        try:
            for attempt in count(1):
                await asyncio.sleep(backoff(attempt, REVIVAL))
                if part not in self.unavailable or await trouble_of(self._ping(part)) is None:
                    break
            self.unavailable.discard(part)
        finally:
            del self._reviving[part]

    async def _ping(self, part: Endpoint | None) -> None:
        """PING the server of `part`, unless it has left the Cluster."""
        await self._topology.look(self.suspects)
        server = self._topology.anywhere()
        if server is None:
            raise NotThereError("no server of the store is known")
        if part is None or part in self._topology.servers():
            await (part or server).asked("PING")

    def tasks(self) -> list[asyncio.Task[None]]:
        return list(self._reviving.values())

    def halt(self) -> None:
        """The client has ended. It drops its senders and errors, because both refer to the store.

        The store may refer to the client for long, and would not be collected either.
        """
        self.backlog.drop()
        self.suspects.clear()
