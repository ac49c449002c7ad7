"""Which servers answer, and the handling of calls to servers that do not.

A call without a connection is unrouted. It is sent when its server, or the server that replaced it,
is connected. It fails at the retry deadline of its callers.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain, count
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import AuthenticationError

from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot
from headgate.stores.redis.transport.outages import outages_of
from headgate.stores.redis.transport.tasks import begun, pause, trouble_of
from headgate.stores.redis.transport.topology import Sentinel

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.lifecycle import Lifecycle
    from headgate.stores.redis.transport.node import Call, Node, Sender
    from headgate.stores.redis.transport.sending import Sending
    from headgate.stores.redis.transport.topology import Topology

# A store that has answered before is retried for these seconds, unless the caller says otherwise.
# The script keeps the places of a silent session for 7.5 to 10 s after its last call.
OUTAGE = 10.0
# The longest pause before another attempt, in seconds, while callers wait and while none does.
LONGEST = 1.0
REVIVAL = 5.0


class Connections(Protocol):
    """The part of the client that Reconnection uses."""

    nodes: dict[Endpoint, Node]
    sending: Sending

    @property
    def closed(self) -> bool: ...
    @property
    def lifecycle(self) -> Lifecycle: ...
    async def connect(self, server: Endpoint) -> None: ...
    def leave_unused(self) -> None: ...


class Offers:
    """The senders with a backlog for a server that was unavailable."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._backlog: dict[Sender, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sender: Sender, attempt: int) -> None:
        """Send the backlog of `sender` again later.

        All backlogs are sent together, so that many senders ask no more often than one.
        """
        self._backlog[sender] = None
        if self._timer is None:
            self._timer = self.loop.call_later(pause(attempt, REVIVAL), self.send_all)

    def send_all(self) -> None:
        self.halt()
        self._timer = None
        backlog, self._backlog = self._backlog, {}
        for sender in backlog:
            sender.send_operations()

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Reconnection:
    def __init__(
        self, client: Connections, topology: Topology, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.topology = topology
        self.loop = loop
        self._client = client
        # The store has answered before.
        self.met = False
        # These calls have no connection, by server. None: their server is not known.
        self.unrouted: dict[Endpoint | None, list[Call]] = {}
        # These servers failed with these errors. Before another attempt the client asks where the
        # names are.
        self.suspects: dict[Endpoint | None, Exception] = {}
        # The number of attempts to reach each server since its last answer.
        self.attempts: dict[Endpoint | None, int] = {}
        # These parts of the store have answered no call since one was abandoned. New calls are not
        # retried there.
        self.abandoned: set[Endpoint | None] = set()
        # These parts have answered neither a call nor a PING since they failed.
        self.unavailable: set[Endpoint | None] = set()
        self.offers = Offers(loop)
        # This timer ends at the earliest retry deadline.
        self._deadline: asyncio.TimerHandle | None = None
        # The tasks, by server or part, see `_seek`, `_revive`, `_follow` and `_check_topology`.
        self._seeking: dict[Endpoint | None, asyncio.Task[None]] = {}
        self._reviving: dict[Endpoint | None, asyncio.Task[None]] = {}
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def add_unrouted(self, call: Call) -> None:
        server = self._server_of(call)
        # The next connection may lead to another server, which does not notify this session.
        call = call._replace(command=call.command._replace(notified=False))
        self.unrouted.setdefault(server, []).append(call)
        self.watch_deadline(call)
        self._seek_soon(server)

    def withdraw(self, sender: Sender) -> None:
        for server, calls in self.unrouted.items():
            self.unrouted[server] = [call for call in calls if call.sender is not sender]

    def reroute(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        """Retry a call that got no answer, or fail it. A wrong password is not retried."""
        passes = isinstance(lost, LOST) and not isinstance(
            lost.__cause__ or lost, AuthenticationError
        )
        if passes and self.may_retry(call):
            self.add_unrouted(call)
        else:
            self._fail(call, server, lost)

    def _seek_soon(self, server: Endpoint | None) -> None:
        """Connect in a task of its own, so that a silent server delays no call to another one."""
        seeking = self._seeking.get(server)
        if (seeking is None or seeking.done()) and not self._client.closed:
            self._seeking[server] = begun(self._seek(server), "headgate-connect")

    def _fail(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        for parts in (self.abandoned, self.unavailable):
            parts.add(self.part(server))
        call.sender.met = False
        call.sender.failed(cannot(self.topology, lost))
        self._client.lifecycle.wake_drain()

    # Retry deadlines ------------------------------------------------------------------------------

    def may_retry(self, call: Call) -> bool:
        """A wrong address fails at once: a store that was never reached is not retried."""
        return self._knows(call) and self.loop.time() < self._retry_until(call)

    def _knows(self, call: Call) -> bool:
        if call.sender.met is not None:
            return call.sender.met
        return self.met and self.part(self._server_of(call)) not in self.abandoned

    def part(self, server: Endpoint | None) -> Endpoint | None:
        """The part of the store that fails together with `server`: one of a Cluster, or all."""
        return server if self.topology.several else None

    def watch_deadline(self, call: Call) -> None:
        """Fail `call` when its retry deadline has passed. One timer serves all calls."""
        moment = self._retry_until(call)
        if self._knows(call) and (self._deadline is None or self._deadline.when() > moment):
            self._cancel_deadline()
            self._deadline = self.loop.call_at(moment, self._check_deadlines)

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
        for node in list(self._client.nodes.values()):
            node.check_deadlines()
        for server, calls in list(self.unrouted.items()):
            kept: list[Call] = []
            over: list[Call] = []
            for call in calls:
                (over if self._knows(call) and not self.may_retry(call) else kept).append(call)
            self.unrouted[server] = kept
            for call in over:
                self._fail(call, server, self.suspects.get(server) or TimeoutError())
        for call in chain(
            *self.unrouted.values(), *(node.waiting for node in self._client.nodes.values())
        ):
            self.watch_deadline(call)

    def note_reply(self, call: Call) -> None:
        """The server of `call` has answered with a refusal."""
        if call.sender.met is None:
            self.met = True
            self.abandoned.discard(self.part(self._server_of(call)))

    # Reconnecting ---------------------------------------------------------------------------------

    async def _seek(self, server: Endpoint | None) -> None:
        """Try to connect to `server` until all its unrouted calls are sent or have failed."""
        in_vain = False
        while server in self.unrouted:
            if in_vain or server in self.suspects:
                await asyncio.sleep(self.next_backoff(server))
            trouble = await self._reach(server)
            if trouble is not None and not self.met:
                # Another loop may have reached the store. In a known outage, a new loop gives up.
                outages = outages_of(self.topology)
                self.met = outages.met and not outages.since
            calls, in_vain = self.unrouted.pop(server), False
            with self._client.sending.putting_off(calls):
                while calls:
                    in_vain = not self._resend(calls[0], server, trouble) or in_vain
                    del calls[0]
            self._client.leave_unused()
        self._check_deadlines()

    def next_backoff(self, server: Endpoint | None) -> float:
        self.attempts[server] = attempts = self.attempts.get(server, 0) + 1
        return pause(attempts, LONGEST)

    def reached(self, node: Node) -> None:
        if self.part(node.endpoint) in self.abandoned:
            self.offers.send_all()
        for known in (node.endpoint, None):
            self.attempts.pop(known, None)
        for parts in (self.abandoned, self.unavailable):
            parts -= {self.part(node.endpoint), None}
        if node.waiting:
            node.ready()

    async def _reach(self, server: Endpoint | None) -> Exception | None:
        """Connect to `server` if calls still need it. Return the error that prevented it."""
        trouble = None
        if server is None or server in self.suspects:
            trouble = await trouble_of(self.topology.look(self.suspects))
            if trouble is None:
                self.suspects.pop(server, None)
        wanted = any(self._server_of(call) is server for call in self.unrouted[server])
        if server is not None and wanted and server not in self._client.nodes:
            trouble = await trouble_of(self._client.connect(server))
            if trouble is not None:
                self.suspects[server] = trouble
        return trouble

    def _resend(self, call: Call, server: Endpoint | None, trouble: Exception | None) -> bool:
        """Send an unrouted call again, or keep it unrouted, or fail it.

        Return whether it was sent, or waits for another server that has its name by now.
        """
        if self._client.sending.node_for(call) is not None:
            self._client.sending.send_again(call._replace(by_text=False))
            return True
        if self._server_of(call) is not server:
            self.add_unrouted(call)
            return True
        lost = trouble or NotThereError("no server has this name's slot")
        self.reroute(call._replace(there=None), server, lost)
        call.sender.on_disconnect(lost, self.loop.time() - call.first)
        return False

    def _server_of(self, call: Call) -> Endpoint | None:
        return call.there or self.topology.where(call.sender.key)

    async def _follow(self, sentinel: Sentinel) -> None:
        """Leave a server as soon as the Sentinel notifies that another one has replaced it."""
        while True:
            if await trouble_of(sentinel.switched()):
                # After 10 attempts the pause is random, up to REVIVAL.
                await asyncio.sleep(pause(10, REVIVAL))
                # The Sentinel may have notified during the pause.
                await trouble_of(sentinel.look(self.suspects))
            for server, node in list(self._client.nodes.items()):
                if server is not sentinel.anywhere():
                    node.cut(NotThereError("another server has taken its place"))

    def check_topology(self, node: Node) -> None:
        """The server of `node` may be in a minority of a split Cluster, without saying so."""
        if self._looking is None or self._looking.done():
            self._looking = begun(self._check_topology(node), "headgate-look")

    async def _check_topology(self, node: Node) -> None:
        if await trouble_of(self.topology.look({*self.suspects, node.endpoint})) is None:
            node.reroute_waiting()
        # A random pause spreads the questions of a fleet.
        await asyncio.sleep(pause(10, LONGEST))

    # Unavailable servers --------------------------------------------------------------------------

    def is_unavailable(self, key: str) -> bool:
        """Whether the server of `key` is unavailable. Then a task PINGs it. Any thread may ask."""
        part = self.part(self.topology.where(key)) if self.unavailable else None
        if part not in self.unavailable:
            return False
        if part not in self._reviving and not self._client.closed:
            with suppress(RuntimeError):  # The loop was closed this moment.
                self.loop.call_soon_threadsafe(self._revive_soon, part)
        return True

    def _revive_soon(self, part: Endpoint | None) -> None:
        if part not in self._reviving:
            self._reviving[part] = begun(self._revive(part), "headgate-revive")

    async def _revive(self, part: Endpoint | None) -> None:
        """PING an unavailable part until it is ready. A server that loads its data refuses."""
        try:
            for attempt in count(1):
                await asyncio.sleep(pause(attempt, REVIVAL))
                if part not in self.unavailable or await trouble_of(self._ping(part)) is None:
                    break
            self.unavailable.discard(part)
        finally:
            del self._reviving[part]

    async def _ping(self, part: Endpoint | None) -> None:
        """PING the server of `part`, unless it has left the Cluster."""
        await self.topology.look(self.suspects)
        server = self.topology.anywhere()
        if server is None:
            raise NotThereError("no server of the store is known")
        if part is None or part in self.topology.servers():
            await (part or server).asked("PING")

    # For the client -------------------------------------------------------------------------------

    def follow_sentinel(self) -> None:
        if self._following is None and isinstance(self.topology, Sentinel):
            self._following = begun(self._follow(self.topology), "headgate-follow")

    def seek_all(self) -> None:
        for server in self.unrouted:
            self._seek_soon(server)

    @property
    def disturbed(self) -> bool:
        return bool(self.attempts or self.abandoned or self.unavailable)

    def tasks(self) -> list[asyncio.Task[None] | None]:
        known = [*self._seeking.values(), *self._reviving.values()]
        return [*known, self._following, self._looking]

    def halt(self) -> None:
        """Stop the timers: their loop may go on running."""
        self.offers.halt()
        if self._deadline is not None:
            self._deadline.cancel()


def retry_for(seconds: float | None) -> float:
    """The seconds for which a call is retried. None: the caller has set none."""
    return OUTAGE if seconds is None else seconds
