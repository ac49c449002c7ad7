"""A link: one event loop's connections to one store, on which the calls of all its lanes travel.

Here live which way a call goes, going again, and giving up. Each lane has one call on its way at most, and what arrives meanwhile
travels in its next; a lane with nothing on its way sends at once. A call whose reply was lost is sent again, byte for byte: the
script knows its number and does nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from contextlib import suppress
from itertools import chain, compress, count
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, WeakValueDictionary

from redis.exceptions import AuthenticationError, ReadOnlyError

from headgate.errors import StoreError
from headgate.stores.redis.protocol.messages import without_claim
from headgate.stores.redis.transport.endpoint import LOST
from headgate.stores.redis.transport.failures import NotThereError, cannot
from headgate.stores.redis.transport.node import NOT_NOW, UNREADY, Call, Node, Sender
from headgate.stores.redis.transport.outages import outages_of
from headgate.stores.redis.transport.portal import GUARDIAN, portal_loop
from headgate.stores.redis.transport.shutdown import register
from headgate.stores.redis.transport.subscriber import Subscriptions
from headgate.stores.redis.transport.tasks import begun, pause, stop, trouble_of
from headgate.stores.redis.transport.topology import Sentinel

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.shutdown import Unsent
    from headgate.stores.redis.transport.topology import Topology

PAUSE = 0.05  # seconds until a name is asked for again whose slot is on its way
OUTAGE = 10.0  # seconds for which a store that was there is looked for again, if unsaid: a silent session keeps its places as long
LONGEST = 1.0  # seconds before another attempt, at most
REVIVAL = 5.0  # the same while the store is away and nothing hangs on it
FAREWELL = 1.0  # seconds for the releases of a loop that ends
LEFT = ReadOnlyError, NotThereError  # why a connection ends whose server is no primary any more
SHARDED = "s"  # the end of a session whose subscriptions are to sharded channels (sessions.lua)


class Keeper(Protocol):
    """What goes on with the senders of a client whose loop ends."""

    def take_over(self, client: Client) -> None: ...
    async def deliver(self, client: Client, until: float) -> list[Unsent]: ...


class Client:
    """The connections of one event loop to one store: one for each server that has names of ours, and one to listen."""

    def __init__(self, topology: Topology, keeper: Keeper) -> None:
        self.id = secrets.token_hex(16)  # 128 bits: nobody else's, after a fork neither
        self.topology = topology
        self._keeper = keeper
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        # By key. The queues keep them.
        self.senders: WeakValueDictionary[str, Sender] = WeakValueDictionary()
        # From loops that have ended. Another sender of this loop may have the same key.
        self.adopted: WeakSet[Sender] = WeakSet()
        self._closed = False
        self.ended = False  # the portal has what the lanes owe and hold
        self._ending = (
            threading.RLock()
        )  # reentrant, because a signal handler may end the link, too
        self.abandoned = False  # the loop did not run then: its tasks never end by themselves
        self.of_portal = self.loop is portal_loop()
        self._session_count = 0
        self._ready: list[Sender] = []
        self._said = False  # something was sent at once in this turn of the loop
        self._nodes: dict[Endpoint, Node] = {}
        self._paused: list[Call] = []  # to be sent again in a moment
        self._stranded: dict[
            Endpoint | None, list[Call]
        ] = {}  # on no connection, by server: it was lost, or is to be made
        self._doubted: dict[
            Endpoint | None, Exception
        ] = {}  # asked in vain: all is looked for before they are asked again
        self._attempts: dict[Endpoint | None, int] = {}  # to reach each since it has answered
        self._met = False  # the store has answered before
        self._given_up: set[Endpoint | None] = (
            set()
        )  # and these parts of it have not answered a call since they were given up
        self._away: set[Endpoint | None] = set()  # nor anything else
        self._despair: asyncio.TimerHandle | None = (
            None  # of the first who will have hoped for long enough
        )
        self._owing: dict[Sender, None] = {}  # something, to a server that was away
        self._offer: asyncio.TimerHandle | None = None  # of what they owe
        self._quiet: asyncio.Future[None] | None = None
        self._seeking: dict[Endpoint | None, asyncio.Task[None]] = {}
        self._reviving: dict[Endpoint | None, asyncio.Task[None]] = {}  # by part
        self._following: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._outages = outages_of(topology)
        self._subscriptions = Subscriptions(self)
        self.listen = self._subscriptions.listen
        self.counts = self._subscriptions.counts
        guard = self._guard()
        guard.send(
            None
        )  # asyncio never enters the body of a task that it cancels before its first step
        self._guardian = begun(guard, GUARDIAN)
        register(self)

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent here any more: some loops are closed without a last word to their tasks."""
        return self._closed or self.loop.is_closed()

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task of this loop that asks, if it is one. (Asking which loop runs here costs a system call each time.)"""
        return asyncio.current_task(self.loop) if threading.get_ident() == self.thread else None

    @property
    def here(self) -> bool:
        """Whether it is this loop that asks."""
        return self.task is not None or self.loop is asyncio._get_running_loop()

    def forked(self) -> None:
        """In the child of a fork: nothing of this is here."""
        self.thread = 0

    def new_session_id(self) -> str:
        self._session_count += 1
        return f"{self.id}.{self._session_count}{SHARDED if self.topology.sharded else ''}"

    # Sending -------------------------------------------------------------------------------------------------------------

    def ready(self, sender: Sender) -> None:
        """`sender` has something to send: at the end of this turn of the loop, so that who comes together travels together."""
        if not self._ready:
            self.loop.call_soon(self._flush)
        self._ready.append(sender)

    def at_once(self, sender: Sender) -> None:
        """`sender` has something to send, and nothing will travel with it: unless others come in the same turn, who go together."""
        node = sender.node
        if node is None or node.busy_or_gone or (self._said and not node.keeps()):
            self.ready(sender)
        else:
            first, self._said = not self._said, True
            now = self.loop.time()
            node.say(Call(sender, sender.command(), now, now))
            if first:  # the server is at work already
                self.loop.call_soon(self._turned)

    def _turned(self) -> None:
        self._said = False

    def _flush(self) -> None:
        """One call for each session, and one write for each connection."""
        if self._closed:
            return
        senders, self._ready = self._ready, []
        writers = [node for node in self._nodes.values() if node.keep()]
        for sender in senders:
            now = self.loop.time()
            self.send(Call(sender, sender.command(), now, now))
        for node in writers:
            node.write()

    def send(self, call: Call) -> None:
        node = self._node_for(call)
        if node is None:
            self.strand(call)
        else:
            node.say(call)

    def send_again(self, call: Call) -> None:
        self.send(call._replace(sent=self.loop.time()))

    def send_later(self, call: Call) -> None:
        self._paused.append(call)
        self.loop.call_later(PAUSE, self._resume, call)

    def _resume(self, call: Call) -> None:
        if not self._closed:
            self._paused.remove(call)
            self.send_again(call)

    def _node_for(self, call: Call) -> Node | None:
        if call.there is not None:
            return self._nodes.get(call.there)
        sender = call.sender
        if sender.node is None or sender.node.gone:
            server = self.topology.where(sender.key)
            sender.node = None if server is None else self._nodes.get(server)
        return sender.node

    # Hearing -------------------------------------------------------------------------------------------------------------

    def answered(self, call: Call, reply: Any, node: Node) -> None:
        if isinstance(reply, Exception) and str(reply).startswith(NOT_NOW):
            call.sender.met = False
            if str(reply).startswith((*UNREADY, "READONLY")):
                self._away.add(self._part(node.endpoint))
        else:
            call.sender.met = self._met = True
            if self._outages.since:
                for part in {self._part(node.endpoint), None}:
                    self._outages.ends(part, self.loop)
            if self._attempts or self._given_up or self._away:
                self._reached(node)
        try:
            call.sender.answered(reply)
        except Exception as senseless:
            call.sender.failed(self.cannot(senseless))
            node.cut(senseless)
        self._stir()

    def _stir(self) -> None:
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)

    # Losing --------------------------------------------------------------------------------------------------------------

    def lost(self, node: Node, calls: list[Call], lost: Exception) -> None:
        """A connection is gone: what was on its way goes another, if there is hope."""
        self._nodes = {server: other for server, other in self._nodes.items() if other is not node}
        self._doubted[node.endpoint] = lost
        for call in calls:
            self._go_another_way(call._replace(there=None), node.endpoint, lost)
        self._subscriptions.lost(node.endpoint, left=isinstance(lost, LEFT))
        for sender in [sender for sender in self.senders.values() if sender.node is node]:
            sender.doubt()

    def _go_another_way(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        """A password does not become right by being sent again."""
        passes = isinstance(lost, LOST) and not isinstance(
            lost.__cause__ or lost, AuthenticationError
        )
        if passes and self.hopes(call):
            self.strand(call)
        else:
            self._give_up(call, server, lost)

    def strand(self, call: Call) -> None:
        server = self._place(call)
        call = call._replace(
            command=without_claim(call.command)
        )  # the next connection may lead to another server
        self._stranded.setdefault(server, []).append(call)
        self.hope_until(call)
        self._seek_soon(server)

    def _seek_soon(self, server: Endpoint | None) -> None:
        """Each server in a task of its own: one that says nothing keeps nobody waiting whose names are at another."""
        seeking = self._seeking.get(server)
        if (seeking is None or seeking.done()) and not self.closed:
            self._seeking[server] = begun(self._seek(server), "headgate-connect")

    def hopes(self, call: Call) -> bool:
        """Whether it is worth while to try a call again. Not where the store was never met: a wrong address is to be told at once;
        nor where its server was given up, and has not answered since.
        """
        return self._knows(call) and self.loop.time() < self._despairs_at(call)

    def _knows(self, call: Call) -> bool:
        if call.sender.met is not None:
            return call.sender.met
        return self._met and self._part(self._place(call)) not in self._given_up

    def _part(self, server: Endpoint | None) -> Endpoint | None:
        """What is away together with `server`, and back with it: where each has names of its own that is nobody else."""
        return server if self.topology.several else None

    def hope_until(self, call: Call) -> None:
        """See to it that `call` learns when it has hoped for long enough: one timer for all who hope."""
        moment = self._despairs_at(call)
        if not self._knows(call):
            return
        if self._despair is None or self._despair.when() > moment:
            self._nobody_hopes()
            self._despair = self.loop.call_at(moment, self._look_at_hopes)

    def _despairs_at(self, call: Call) -> float:
        """When the last caller whom `call` answers has retried for long enough."""
        return call.first + max(map(retry_for, call.sender.patience()), default=OUTAGE)

    def _nobody_hopes(self) -> None:
        if self._despair is not None:
            self._despair.cancel()
            self._despair = None

    def _look_at_hopes(self) -> None:
        """Who has hoped for long enough learns, whatever is still being tried."""
        self._nobody_hopes()
        for node in list(self._nodes.values()):
            node.look_at_hopes()
        for server, calls in list(self._stranded.items()):
            over = [self._knows(call) and not self.hopes(call) for call in calls]
            self._stranded[server] = [
                call for call, is_over in zip(calls, over, strict=True) if not is_over
            ]
            for call in compress(calls, over):
                self._give_up(call, server, self._doubted.get(server) or TimeoutError())
        for call in chain(*self._stranded.values(), *(node.held for node in self._nodes.values())):
            self.hope_until(call)

    def is_there(self, call: Call) -> None:
        """Its server has answered, though not to the point."""
        if call.sender.met is None:
            self._met = True
            self._given_up.discard(self._part(self._place(call)))

    def _give_up(self, call: Call, server: Endpoint | None, lost: Exception) -> None:
        for parts in (self._given_up, self._away):
            parts.add(self._part(server))
        call.sender.met = False
        call.sender.failed(self.cannot(lost))
        self._stir()

    def note_outage(self, sender: Sender, error: StoreError) -> None:
        """Callers of `sender` have failed with `error`."""
        self._outages.begins(self._part(self.topology.where(sender.key)), error)

    def cannot(self, lost: BaseException) -> StoreError:
        return cannot(self.topology, lost)

    # Owing ---------------------------------------------------------------------------------------------------------------

    def offer_later(self, sender: Sender, attempt: int) -> None:
        """What `sender` owes to a server that is away is offered again, the more rarely the more often that was in vain: all that is
        owed at once, so that many senders ask no more often than one.
        """
        self._owing[sender] = None
        if self._offer is None:
            self._offer = self.loop.call_later(pause(attempt, REVIVAL), self._offer_all)

    def _offer_all(self) -> None:
        if self._offer is not None:
            self._offer.cancel()
            self._offer = None
        owing, self._owing = self._owing, {}
        for sender in owing:
            sender.send_operations()

    # Connecting ----------------------------------------------------------------------------------------------------------

    async def _seek(self, server: Endpoint | None) -> None:
        """Until all that was stranded for want of `server` is on its way again, or was given up. None: nobody knows of which."""
        in_vain = False
        while server in self._stranded:
            if in_vain or server in self._doubted:
                await asyncio.sleep(self.next_pause(server))
            trouble = await self._reach(server)
            on_their_way = [
                self._go_on(call, server, trouble) for call in self._stranded.pop(server)
            ]
            in_vain = not all(on_their_way)
            self._leave_unused()
        self._look_at_hopes()

    def next_pause(self, server: Endpoint | None) -> float:
        """Seconds until a server is asked again that was asked in vain: the more often, the longer."""
        self._attempts[server] = attempts = self._attempts.get(server, 0) + 1
        return pause(attempts, LONGEST)

    def _reached(self, node: Node) -> None:
        if self._part(node.endpoint) in self._given_up:
            self._offer_all()
        for known in (node.endpoint, None):
            self._attempts.pop(known, None)
        for parts in (self._given_up, self._away):
            parts -= {self._part(node.endpoint), None}
        if node.held:
            node.ready()

    async def _reach(self, server: Endpoint | None) -> Exception | None:
        """Look for everything, if that is in doubt, and connect to `server`, if it is still wanted. What stood in the way."""
        trouble = None
        if server is None or server in self._doubted:
            trouble = await trouble_of(self.topology.look(self._doubted))
            if trouble is None:
                self._doubted.pop(server, None)
        wanted = any(self._place(call) is server for call in self._stranded[server])
        if server is not None and wanted and server not in self._nodes:
            trouble = await trouble_of(self._connect(server))
            if trouble is not None:
                self._doubted[server] = trouble
        return trouble

    def _go_on(self, call: Call, server: Endpoint | None, trouble: Exception | None) -> bool:
        """Who has a connection now is sent; whose name is elsewhere by now is looked for there; who has neither hopes on, if the
        store was there before, or learns.
        """
        if self._node_for(call) is not None:
            self.send_again(call._replace(by_text=False))
            return True
        if self._place(call) is not server:
            self.strand(call)
            return True
        lost = trouble or NotThereError("no server has this name's slot")
        self._go_another_way(call._replace(there=None), server, lost)
        call.sender.adrift(lost, self.loop.time() - call.first)
        return False

    def _place(self, call: Call) -> Endpoint | None:
        return call.there or self.topology.where(call.sender.key)

    async def _connect(self, server: Endpoint) -> None:
        connection = await server.connected()
        self._nodes[server] = Node(self, server, connection)
        if self._closed:  # the loop began to end just now
            self.leave(self._nodes[server])
        elif self._following is None and isinstance(self.topology, Sentinel):
            self._following = begun(self._follow(self.topology), "headgate-follow")

    async def _follow(self, sentinel: Sentinel) -> None:
        """Leave a server as soon as it is announced that another one has taken its place."""
        while True:
            if await trouble_of(sentinel.switched()):
                await asyncio.sleep(pause(10, REVIVAL))
                await trouble_of(
                    sentinel.look(self._doubted)
                )  # it may have been announced meanwhile
            for server, node in list(self._nodes.items()):
                if server is not sentinel.anywhere():
                    node.cut(NotThereError("another server has taken its place"))

    def look_beyond(self, node: Node) -> None:
        """Find out whether others have taken over what `peer` had: it is one of a minority, perhaps, and will not say so."""
        if self._looking is None or self._looking.done():
            self._looking = begun(self._look_beyond(node), "headgate-look")

    async def _look_beyond(self, node: Node) -> None:
        if await trouble_of(self.topology.look({*self._doubted, node.endpoint})) is None:
            node.send_on()
        await asyncio.sleep(pause(10, LONGEST))  # before the next look

    def _leave_unused(self) -> None:
        """Of a Cluster's servers only those with names of ours: others have taken over what was theirs."""
        used = {sender.node for sender in self.senders.values()}
        for server, node in list(self._nodes.items()):
            if server not in self._stranded and node not in used and not (node.calls or node.held):
                self.leave(node)

    def leave(self, node: Node) -> None:
        del self._nodes[node.endpoint]
        node.close()
        self._subscriptions.drop(node.endpoint)

    def reaches(self, server: Endpoint) -> bool:
        """Whether a connection for calls leads to `server`."""
        return server in self._nodes

    async def anybody(self) -> Endpoint:
        """Any server of the store, after a look at where everything is."""
        await self.topology.look(self._doubted)
        server = self.topology.anywhere()
        if server is None:
            raise NotThereError("no server of the store is known")
        return server

    # Being away ----------------------------------------------------------------------------------------------------------

    def away(self, key: str) -> bool:
        """Whether who has `key` was looked for in vain. Whoever asks, from any thread, has it looked for until it answers."""
        part = self._part(self.topology.where(key)) if self._away else None
        if part not in self._away:
            return False
        if part not in self._reviving and not self.closed:
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
                if part not in self._away or await trouble_of(self._ping(part)) is None:
                    break
            self._away.discard(part)
        finally:
            del self._reviving[part]

    async def _ping(self, part: Endpoint | None) -> None:
        """Others may have taken over all that it had: then there is nothing that is away."""
        server = await self.anybody()
        if part is None or part in self.topology.servers():
            await (part or server).asked("PING")

    # Ending --------------------------------------------------------------------------------------------------------------

    async def _guard(self) -> None:
        """Stay until the loop ends; then let its tasks end, and send what they gave back. What comes later goes another way."""
        try:
            await asyncio.sleep(0)  # __init__ drives it so far, and its task goes on from here
            await self.loop.create_future()
        except asyncio.CancelledError:
            for _ in range(3):
                await asyncio.sleep(0)
            await self._say_goodbye()
            self.end()
            if (
                chores := self._chores()
            ):  # made after the loop began to end, it may be: nobody else waits for them
                await asyncio.wait(chores, timeout=FAREWELL)
            raise
        finally:
            self._close()

    def retire(self) -> None:
        """End before the loop does: no limiter needs these connections any more."""
        self._guardian.cancel()

    def end(self) -> None:
        """No call is made here any more. The portal goes on with what the lanes owe and hold.

        Several threads may end the link of a closed loop. Each returns only when the portal has it.
        """
        with self._ending:
            if not self.ended:
                self.abandoned = not self.loop.is_running()
                self._close()
                self._keeper.take_over(self)
                self.ended = True

    async def deliver(self, until: float) -> list[Unsent]:
        """Wait until all that was said here has arrived, at most until `until` by the monotonic clock.

        Return what has not.
        """
        return await self._keeper.deliver(self, until)

    def _chores(self) -> list[asyncio.Task[None]]:
        return [
            task
            for task in (
                *self._seeking.values(),
                *self._reviving.values(),
                self._following,
                self._looking,
                *self._subscriptions.tasks(),
            )
            if task is not None and not task.done()
        ]

    def _close(self) -> None:
        self._closed = True
        for chore in self._chores():
            stop(chore)
        for node in self._nodes.values():
            node.close()
        self._subscriptions.halt()
        for timer in (self._offer, self._despair):
            if timer is not None:  # The loop may run on, and the sessions are another thread's.
                timer.cancel()
        self._ready, self._paused = [], []

    async def _say_goodbye(self) -> None:
        try:
            async with asyncio.timeout(FAREWELL):
                while self._something_to_say():
                    for server in self._stranded:
                        self._seek_soon(server)
                    self._quiet = self.loop.create_future()
                    await self._quiet
        except TimeoutError:
            pass  # the leases end by themselves

    def _something_to_say(self) -> bool:
        on_no_connection = self._paused or any(self._stranded.values())
        return bool(
            self._ready or on_no_connection or any(node.busy for node in self._nodes.values())
        )


def retry_for(seconds: float | None) -> float:
    """For how many seconds a caller lets a server be looked for. None: it has not said."""
    return OUTAGE if seconds is None else seconds
