"""Which servers answer, and what becomes of the calls of those that do not.

A call without a connection is unrouted. It goes on when its server, or the one that has taken its
place, is reached; its callers fail when they have waited for long enough. A server that was given
up is asked from time to time until it answers again.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import chain, compress, count
from typing import TYPE_CHECKING, Protocol

from redis.exceptions import AuthenticationError

from headgate.stores.redis.protocol.messages import without_claim
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot
from headgate.stores.redis.transport.tasks import begun, pause, trouble_of
from headgate.stores.redis.transport.topology import Sentinel

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.node import Call, Node, Sender
    from headgate.stores.redis.transport.topology import Topology

# Seconds for which a store that was there is looked for again, if unsaid: as long as the script
# keeps the places of a silent session.
OUTAGE = 10.0
LONGEST = 1.0  # seconds before another attempt, at most
REVIVAL = 5.0  # the same while the store is away and no caller waits for it


class Connections(Protocol):
    """What the reconnection asks of the client that has made it."""

    nodes: dict[Endpoint, Node]

    @property
    def closed(self) -> bool: ...
    def node_for(self, call: Call) -> Node | None: ...
    async def connect(self, server: Endpoint) -> None: ...
    def leave_unused(self) -> None: ...
    def send_again(self, call: Call) -> None: ...
    def wake_drain(self) -> None: ...


class Offers:
    """The senders that owe something to a server that was away."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._backlog: dict[Sender, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, sender: Sender, attempt: int) -> None:
        """What `sender` owes to a server that is away is offered again, the more rarely the more often that was in vain: all that is
        owed at once, so that many senders ask no more often than one.
        """
        self._backlog[sender] = None
        if self._timer is None:
            self._timer = self.loop.call_later(pause(attempt, REVIVAL), self.send_all)

    def send_all(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        backlog, self._backlog = self._backlog, {}
        for sender in backlog:
            sender.send_operations()

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Reconnection:
    """Of one client."""

    def __init__(
        self, client: Connections, topology: Topology, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.topology = topology
        self.loop = loop
        self._client = client
        self.met = False  # the store has answered before
        # Calls on no connection, by server: it was lost, or is to be made.
        self.unrouted: dict[Endpoint | None, list[Call]] = {}
        # Asked in vain. The topology is looked up before they are asked again.
        self.suspects: dict[Endpoint | None, Exception] = {}
        self.attempts: dict[Endpoint | None, int] = {}  # to reach each, since it has answered
        # Parts of the store that have not answered a call since they were given up, and those
        # that have not answered anything.
        self.abandoned: set[Endpoint | None] = set()
        self.unavailable: set[Endpoint | None] = set()
        self.offers = Offers(loop)
        self._deadline: asyncio.TimerHandle | None = None  # for the earliest retry deadline
        self._seeking: dict[Endpoint | None, asyncio.Task[None]] = {}
        self._reviving: dict[Endpoint | None, asyncio.Task[None]] = {}  # by part
        self._following: asyncio.Task[None] | None = None  # a Sentinel's announcements
        self._looking: asyncio.Task[None] | None = None

    def add_unrouted(self, call: Call) -> None:
        server = self._server_of(call)
        call = call._replace(
            command=without_claim(call.command)
        )  # the next connection may lead to another server
        self.unrouted.setdefault(server, []).append(call)
        self.watch_deadline(call)
        self._seek_soon(server)

    def reroute(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        """A password does not become right by being sent again."""
        passes = isinstance(lost, LOST) and not isinstance(
            lost.__cause__ or lost, AuthenticationError
        )
        if passes and self.may_retry(call):
            self.add_unrouted(call)
        else:
            self._fail(call, server, lost)

    def _seek_soon(self, server: Endpoint | None) -> None:
        """Each server in a task of its own: one that says nothing keeps nobody waiting whose names are at another."""
        seeking = self._seeking.get(server)
        if (seeking is None or seeking.done()) and not self._client.closed:
            self._seeking[server] = begun(self._seek(server), "headgate-connect")

    def _fail(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        for parts in (self.abandoned, self.unavailable):
            parts.add(self.part(server))
        call.sender.met = False
        call.sender.failed(cannot(self.topology, lost))
        self._client.wake_drain()

    # For how long ------------------------------------------------------------------------------------

    def may_retry(self, call: Call) -> bool:
        """Whether it is worth while to try a call again. Not where the store was never met: a wrong address is to be told at once;
        nor where its server was given up, and has not answered since.
        """
        return self._knows(call) and self.loop.time() < self._retry_until(call)

    def _knows(self, call: Call) -> bool:
        if call.sender.met is not None:
            return call.sender.met
        return self.met and self.part(self._server_of(call)) not in self.abandoned

    def part(self, server: Endpoint | None) -> Endpoint | None:
        """What is away together with `server`, and back with it: where each has names of its own that is nobody else."""
        return server if self.topology.several else None

    def watch_deadline(self, call: Call) -> None:
        """See to it that `call` learns when it has hoped for long enough: one timer for all who hope."""
        moment = self._retry_until(call)
        if not self._knows(call):
            return
        if self._deadline is None or self._deadline.when() > moment:
            self._cancel_deadline()
            self._deadline = self.loop.call_at(moment, self._check_deadlines)

    def _retry_until(self, call: Call) -> float:
        """When the last caller whom `call` answers has retried for long enough."""
        return call.first + max(map(retry_for, call.sender.patience()), default=OUTAGE)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _check_deadlines(self) -> None:
        """Who has hoped for long enough learns, whatever is still being tried."""
        self._cancel_deadline()
        for node in list(self._client.nodes.values()):
            node.check_deadlines()
        for server, calls in list(self.unrouted.items()):
            over = [self._knows(call) and not self.may_retry(call) for call in calls]
            self.unrouted[server] = [
                call for call, is_over in zip(calls, over, strict=True) if not is_over
            ]
            for call in compress(calls, over):
                self._fail(call, server, self.suspects.get(server) or TimeoutError())
        for call in chain(
            *self.unrouted.values(), *(node.waiting for node in self._client.nodes.values())
        ):
            self.watch_deadline(call)

    def note_reply(self, call: Call) -> None:
        """Its server has answered, though not to the point."""
        if call.sender.met is None:
            self.met = True
            self.abandoned.discard(self.part(self._server_of(call)))

    # Connecting again --------------------------------------------------------------------------------

    async def _seek(self, server: Endpoint | None) -> None:
        """Until all that was unrouted for want of `server` is on its way again, or was given up. None: nobody knows of which."""
        in_vain = False
        while server in self.unrouted:
            if in_vain or server in self.suspects:
                await asyncio.sleep(self.next_backoff(server))
            trouble = await self._reach(server)
            on_their_way = [
                self._resend(call, server, trouble) for call in self.unrouted.pop(server)
            ]
            in_vain = not all(on_their_way)
            self._client.leave_unused()
        self._check_deadlines()

    def next_backoff(self, server: Endpoint | None) -> float:
        """Seconds until a server is asked again that was asked in vain: the more often, the longer."""
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
        """Look for everything, if that is in doubt, and connect to `server`, if it is still wanted. What stood in the way."""
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
        """Who has a connection now is sent; whose name is elsewhere by now is looked for there; who has neither hopes on, if the
        store was there before, or learns.
        """
        if self._client.node_for(call) is not None:
            self._client.send_again(call._replace(by_text=False))
            return True
        if self._server_of(call) is not server:
            self.add_unrouted(call)
            return True
        lost = trouble or NotThereError("no server has this name's slot")
        self.reroute(call._replace(there=None), server, lost)
        call.sender.adrift(lost, self.loop.time() - call.first)
        return False

    def _server_of(self, call: Call) -> Endpoint | None:
        return call.there or self.topology.where(call.sender.key)

    async def _follow(self, sentinel: Sentinel) -> None:
        """Leave a server as soon as it is announced that another one has taken its place."""
        while True:
            if await trouble_of(sentinel.switched()):
                await asyncio.sleep(pause(10, REVIVAL))
                await trouble_of(
                    sentinel.look(self.suspects)
                )  # it may have been announced meanwhile
            for server, node in list(self._client.nodes.items()):
                if server is not sentinel.anywhere():
                    node.cut(NotThereError("another server has taken its place"))

    def check_topology(self, node: Node) -> None:
        """Find out whether others have taken over what `peer` had: it is one of a minority, perhaps, and will not say so."""
        if self._looking is None or self._looking.done():
            self._looking = begun(self._check_topology(node), "headgate-look")

    async def _check_topology(self, node: Node) -> None:
        if await trouble_of(self.topology.look({*self.suspects, node.endpoint})) is None:
            node.send_on()
        await asyncio.sleep(pause(10, LONGEST))  # before the next look

    # Servers that were given up ----------------------------------------------------------------------

    def is_unavailable(self, key: str) -> bool:
        """Whether who has `key` was looked for in vain. Whoever asks, from any thread, has it looked for until it answers."""
        part = self.part(self.topology.where(key)) if self.unavailable else None
        if part not in self.unavailable:
            return False
        if part not in self._reviving and not self._client.closed:
            with suppress(RuntimeError):  # it was closed this moment
                self.loop.call_soon_threadsafe(self._revive_soon, part)
        return True

    def _revive_soon(self, part: Endpoint | None) -> None:
        if part not in self._reviving:
            self._reviving[part] = begun(self._revive(part), "headgate-revive")

    async def _revive(self, part: Endpoint | None) -> None:
        """It is back when it is ready for calls: a server that is still loading says so to a PING, too."""
        try:
            for attempt in count(1):
                await asyncio.sleep(pause(attempt, REVIVAL))
                if part not in self.unavailable or await trouble_of(self._ping(part)) is None:
                    break
            self.unavailable.discard(part)
        finally:
            del self._reviving[part]

    async def _ping(self, part: Endpoint | None) -> None:
        """Others may have taken over all that it had: then there is nothing that is away."""
        server = await self.any_server()
        if part is None or part in self.topology.servers():
            await (part or server).asked("PING")

    async def any_server(self) -> Endpoint:
        """Any server of the store, after a look at where everything is."""
        await self.topology.look(self.suspects)
        server = self.topology.anywhere()
        if server is None:
            raise NotThereError("no server of the store is known")
        return server

    # Ending ------------------------------------------------------------------------------------------

    def follow_sentinel(self) -> None:
        if self._following is None and isinstance(self.topology, Sentinel):
            self._following = begun(self._follow(self.topology), "headgate-follow")

    def seek_all(self) -> None:
        """Look for every server that a call waits for."""
        for server in self.unrouted:
            self._seek_soon(server)

    @property
    def disturbed(self) -> bool:
        return bool(self.attempts or self.abandoned or self.unavailable)

    def tasks(self) -> list[asyncio.Task[None] | None]:
        known = [*self._seeking.values(), *self._reviving.values()]
        return [*known, self._following, self._looking]

    def halt(self) -> None:
        """Stop the timers. Their loop may run on."""
        self.offers.halt()
        if self._deadline is not None:
            self._deadline.cancel()


def retry_for(seconds: float | None) -> float:
    """For how many seconds a caller lets a server be looked for. None: it has not said."""
    return OUTAGE if seconds is None else seconds
