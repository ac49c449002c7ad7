"""The handling of calls whose server does not answer, and the watch for servers that are replaced.

A call without a connection is unrouted. It is sent when its server, or the server that replaced it,
is connected. It fails at the retry deadline of its callers.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import AuthenticationError

from headgate.stores.redis.transport.availability import Availability
from headgate.stores.redis.transport.backoff import LONGEST, REVIVAL, backoff
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot
from headgate.stores.redis.transport.tasks import begun, trouble_of
from headgate.stores.redis.transport.topology import Sentinel

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.node import Call, Node, Sender
    from headgate.stores.redis.transport.sending import Sending
    from headgate.stores.redis.transport.topology import Topology

# A store that has answered before is retried for these seconds, unless the caller says otherwise.
# The script keeps the places of a silent session for 7.5 to 10 s after its last call.
OUTAGE = 10.0


class Connections(Protocol):
    """The part of the client that Reconnection uses."""

    loop: asyncio.AbstractEventLoop
    topology: Topology
    nodes: dict[Endpoint, Node]
    availability: Availability
    sending: Sending

    @property
    def closed(self) -> bool: ...
    async def connect(self, server: Endpoint) -> None: ...
    def leave_unused(self) -> None: ...


class Reconnection:
    def __init__(self, client: Connections) -> None:
        self._client = client
        self._loop = client.loop
        self._topology = client.topology
        self._availability = client.availability
        self._suspects = client.availability.suspects
        # These calls have no connection, by server. None: their server is not known.
        self.unrouted: dict[Endpoint | None, list[Call]] = {}
        # This timer ends at the earliest retry deadline.
        self._deadline: asyncio.TimerHandle | None = None
        # The tasks, by server, see `_seek`, `_follow` and `_check_topology`.
        self._seeking: dict[Endpoint | None, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def add_unrouted(self, call: Call) -> None:
        server = call.server(self._topology)
        # The call says that its server notifies the session. The next server may be another one.
        call = call._replace(command=call.command.unnotified())
        self.unrouted.setdefault(server, []).append(call)
        self.watch_deadline(call)
        self._seek_soon(server)

    def withdraw(self, sender: Sender) -> None:
        for server, calls in self.unrouted.items():
            self.unrouted[server] = [call for call in calls if call.sender is not sender]

    def reroute(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        """Retry a call that got no answer, or fail it. A wrong password is not retried."""
        retryable = isinstance(lost, LOST) and not isinstance(
            lost.__cause__ or lost, AuthenticationError
        )
        if retryable and self.may_retry(call):
            self.add_unrouted(call)
        else:
            self._fail(call, server, lost)

    def _seek_soon(self, server: Endpoint | None) -> None:
        """Connect in a task of its own, so that a silent server delays no call to another one."""
        seeking = self._seeking.get(server)
        if (seeking is None or seeking.done()) and not self._client.closed:
            self._seeking[server] = begun(self._seek(server), "headgate-connect")

    def _fail(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        if not call.sender.optional:
            self._availability.note_failure(server)
        call.sender.met = False
        call.sender.failed(cannot(self._topology, lost))

    # Retry deadlines ------------------------------------------------------------------------------

    def may_retry(self, call: Call) -> bool:
        """A wrong address fails at once: a store that was never reached is not retried."""
        return self._availability.is_retryable(call) and self._loop.time() < self._retry_until(call)

    def watch_deadline(self, call: Call) -> None:
        """Fail `call` when its retry deadline has passed. One timer serves all calls."""
        moment, retryable = self._retry_until(call), self._availability.is_retryable(call)
        if retryable and (self._deadline is None or self._deadline.when() > moment):
            self._cancel_deadline()
            self._deadline = self._loop.call_at(moment, self._check_deadlines)

    def _retry_until(self, call: Call) -> float:
        """The latest retry deadline among the callers of `call`."""
        return call.first + max(map(retry_for, call.sender.retry_periods()), default=OUTAGE)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_deadlines(self) -> None:
        """Fail each call after its retry deadline, even if an attempt is still under way."""
        self._cancel_deadline()
        retryable = self._availability.is_retryable
        for node in list(self._client.nodes.values()):
            node.postponed.check_deadlines()
        for server, calls in list(self.unrouted.items()):
            kept: list[Call] = []
            over: list[Call] = []
            for call in calls:
                # `_seek` fails a call that is not retryable, after its attempt to connect.
                (over if retryable(call) and not self.may_retry(call) else kept).append(call)
            self.unrouted[server] = kept
            for call in over:
                self._fail(call, server, self._suspects.get(server) or TimeoutError())
        postponed = (node.postponed.calls for node in self._client.nodes.values())
        for call in chain(*self.unrouted.values(), *postponed):
            self.watch_deadline(call)

    # Reconnecting ---------------------------------------------------------------------------------

    async def _seek(self, server: Endpoint | None) -> None:
        """Try to connect to `server` until all its unrouted calls are sent or have failed."""
        in_vain = False
        while server in self.unrouted:
            if in_vain or server in self._suspects:
                await asyncio.sleep(self._availability.next_backoff(server))
            trouble = await self._reach(server)
            if trouble is not None:
                # Calls are retried if another loop reached the store.
                self._availability.note_other_loops()
            calls, in_vain = self.unrouted.pop(server), False
            with self._client.sending.putting_off(calls):
                while calls:
                    if not self._resend(calls[0], server, trouble):
                        in_vain = True
                    del calls[0]
            self._client.leave_unused()
        self._check_deadlines()  # its timer may be that of a call that was sent

    async def _reach(self, server: Endpoint | None) -> Exception | None:
        """Connect to `server` if calls still need it. Return the error that prevented it."""
        trouble = None
        if server is None or server in self._suspects:
            trouble = await trouble_of(self._topology.look(self._suspects))
            if trouble is None:
                self._suspects.pop(server, None)
        wanted = any(call.server(self._topology) is server for call in self.unrouted[server])
        if server is not None and wanted and server not in self._client.nodes:
            trouble = await trouble_of(self._client.connect(server))
            if trouble is not None:
                self._suspects[server] = trouble
        return trouble

    def _resend(self, call: Call, server: Endpoint | None, trouble: Exception | None) -> bool:
        """Send an unrouted call again, or keep it unrouted, or fail it.

        Return whether it was sent, or waits for another server that has its name by now.
        """
        if self._client.sending.node_for(call) is not None:
            self._client.sending.send_again(call._replace(by_text=False))
            return True
        if call.server(self._topology) is not server:
            self.add_unrouted(call)
            return True
        lost = trouble or NotThereError("no server has this name's slot")
        self.reroute(call._replace(there=None), server, lost)
        call.sender.on_disconnect(lost, self._loop.time() - call.first)
        return False

    async def _follow(self, sentinel: Sentinel) -> None:
        """Leave a server as soon as the Sentinel notifies that another one has replaced it."""
        while True:
            if await trouble_of(sentinel.switched()):
                # 10 stands for many failed attempts: a random backoff, up to REVIVAL.
                await asyncio.sleep(backoff(10, REVIVAL))
                # The Sentinel may have notified meanwhile.
                await trouble_of(sentinel.look(self._suspects))
            for server, node in list(self._client.nodes.items()):
                if server is not sentinel.anywhere():
                    node.connection.cut(NotThereError("another server has taken its place"))

    def check_topology(self, node: Node) -> None:
        """Ask other servers where the names of `node` are now: its own server may be in the
        minority of a split Cluster.
        """
        if self._looking is None or self._looking.done():
            self._looking = begun(self._check_topology(node), "headgate-look")

    async def _check_topology(self, node: Node) -> None:
        if await trouble_of(self._topology.look({*self._suspects, node.endpoint})) is None:
            node.postponed.reroute()
        # A random backoff spreads the questions of a fleet.
        await asyncio.sleep(backoff(10, LONGEST))

    def follow_sentinel(self) -> None:
        if self._following is None and isinstance(self._topology, Sentinel):
            self._following = begun(self._follow(self._topology), "headgate-follow")

    def seek_all(self) -> None:
        for server in self.unrouted:
            self._seek_soon(server)

    def tasks(self) -> list[asyncio.Task[None] | None]:
        return [*self._seeking.values(), self._following, self._looking]

    def halt(self) -> None:
        """Stop the timer: its loop may go on running. The calls' senders go on elsewhere."""
        self._cancel_deadline()
        self.unrouted.clear()


def retry_for(seconds: float | None) -> float:
    """The seconds for which a call is retried. None: the caller has set none."""
    return OUTAGE if seconds is None else seconds
