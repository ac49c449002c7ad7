"""The client of one event loop: its connections to one store, which the calls of all sessions use.

The client decides which connection a call uses, and whether it is sent again or fails. Each session
has at most one call in flight, and operations that arrive meanwhile travel in its next call. A
session without a call in flight sends at once. After a lost reply the client sends the same bytes
again: the script knows the call's number and does nothing twice.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakSet, WeakValueDictionary

from redis.exceptions import ReadOnlyError

from headgate.errors import StoreError
from headgate.stores.redis.transport.failures import NotThereError, cannot
from headgate.stores.redis.transport.node import NOT_NOW, UNREADY, Call, Node, Sender
from headgate.stores.redis.transport.outages import outages_of
from headgate.stores.redis.transport.portal import LIFECYCLE, portal_loop
from headgate.stores.redis.transport.reconnection import Reconnection
from headgate.stores.redis.transport.shutdown import register
from headgate.stores.redis.transport.subscriber import Subscriptions
from headgate.stores.redis.transport.tasks import begun, stop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.shutdown import Unsent
    from headgate.stores.redis.transport.topology import Topology

# The seconds before a call is sent again while its slot moves, or after an exception.
PAUSE = 0.05
DRAIN_TIMEOUT = 1.0  # The seconds in which a loop that ends can send its releases.
# These errors end a connection because its server is no primary any more.
DEMOTED = ReadOnlyError, NotThereError
# A session's id ends with this letter if it subscribes to sharded channels (outbox.lua).
SHARDED = "s"


class Keeper(Protocol):
    """Takes over the senders of a client when its loop ends."""

    def take_over(self, client: Client) -> None: ...
    async def deliver(self, client: Client, until: float) -> None: ...
    def unsent(self, client: Client) -> list[Unsent]: ...


class Client:
    """The connections of one event loop to one store.

    There is one for each server that keeps names of this client, and one or more for notifications.
    """

    def __init__(self, topology: Topology, keeper: Keeper) -> None:
        # 128 random bits: no other client has this id, not even one in the child of a fork.
        self.id = secrets.token_hex(16)
        self.topology = topology
        self.keeper = keeper
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        # These are the senders of this loop, by key. Their queues keep them alive.
        self.senders: WeakValueDictionary[str, Sender] = WeakValueDictionary()
        # These senders come from loops that have ended. This loop may have one of the same key.
        self.adopted: WeakSet[Sender] = WeakSet()
        self._closed = False
        # The portal has taken over the sessions' permits and the operations that they must deliver.
        self.ended = False
        # `end` holds this lock. It is reentrant: a signal handler may end the client, too.
        self._ending = threading.RLock()
        # The loop did not run when the client ended: its tasks never end by themselves.
        self.abandoned = False
        self.of_portal = self.loop is portal_loop()
        # The number of sessions that got an id from this client.
        self._session_count = 0
        # These senders send a call at the end of this turn of the loop.
        self._ready: deque[Sender] = deque()
        self._flush_by = 0.0  # when those senders are sent for, at the latest
        # A call was sent at once in this turn of the loop.
        self._sent_at_once = False
        # Each connected server has its node here.
        self.nodes: dict[Endpoint, Node] = {}
        # These calls are sent again after PAUSE.
        self._paused: list[Call] = []
        self.reconnection = Reconnection(self, topology, self.loop)
        # This future wakes `_drain` after each reply or failure.
        self._drain_wakeup: asyncio.Future[None] | None = None
        self._outages = outages_of(topology)
        self._subscriptions = Subscriptions(self)
        self.listen = self._subscriptions.listen
        self.counts = self._subscriptions.counts
        lifecycle = self._run_lifecycle()
        # asyncio never enters the body of a task that it cancels before the first step. So the
        # first step happens here.
        lifecycle.send(None)
        self._lifecycle = begun(lifecycle, LIFECYCLE)
        register(self)

    @property
    def closed(self) -> bool:
        """Whether no call can be sent here any more.

        Some loops are closed without cancelling their tasks.
        """
        return self._closed or self.loop.is_closed()

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The calling task, if it belongs to this loop.

        Asking asyncio for the running loop would cost a system call each time.
        """
        return asyncio.current_task(self.loop) if threading.get_ident() == self.thread else None

    @property
    def here(self) -> bool:
        """Whether the caller runs in this loop."""
        return self.task is not None or self.loop is asyncio._get_running_loop()

    def forked(self) -> None:
        """In the child of a fork, no thread runs this client's loop."""
        self.thread = 0

    def new_session_id(self) -> str:
        self._session_count += 1
        return f"{self.id}.{self._session_count}{SHARDED if self.topology.sharded else ''}"

    # Sending --------------------------------------------------------------------------------------

    def ready(self, sender: Sender) -> None:
        """Send a call of `sender` at the end of this turn of the loop.

        So operations that arrive in the same turn travel in one call.
        """
        self._ready.append(sender)
        if len(self._ready) == 1:
            self._flush_soon()

    def check_flush(self) -> None:
        """An exception of a signal handler may have come in place of the callback."""
        if self._ready and self.loop.time() > self._flush_by:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self.loop.call_soon(self._flush)
        self._flush_by = self.loop.time() + PAUSE

    def at_once(self, sender: Sender) -> None:
        """Send a call of `sender` at once, because no other operation will travel with it.

        Further senders of the same turn send together at its end.
        """
        node = sender.node
        if node is None or node.cannot_send or (self._sent_at_once and not node.keeps()):
            self.ready(sender)
        else:
            first, self._sent_at_once = not self._sent_at_once, True
            try:
                self._send_next(sender)
            finally:
                # The call is on its way before `call_soon`, so the server's work overlaps with that
                # cost.
                if first:
                    self.loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._sent_at_once = False

    def _flush(self) -> None:
        """Send one call for each session, with one write for each connection."""
        if self._closed:
            return
        senders, writers = self._ready, []
        try:
            self._ready = deque()
            for node in self.nodes.values():
                if node.keep():
                    writers += [node]
            while senders:
                self._send_next(senders[0])
                del senders[0]
        except BaseException:
            for sender in senders:
                self.loop.call_later(PAUSE, self.ready, sender)
            raise
        finally:
            try:
                while writers:
                    writers[0].write()
                    del writers[0]
            except BaseException as interrupt:  # some of it may have left
                for node in writers:
                    node.cut(ConnectionError(f"a write was interrupted: {interrupt!r}"))
                raise

    def _send_next(self, sender: Sender) -> None:
        """Send the next call of `sender`. If it cannot be made or written, put it off."""
        try:
            now, command = self.loop.time(), sender.command()
            if command is not None:
                self.send(Call(sender, command, now, now))
        except BaseException:
            self.put_off(sender)
            raise

    def put_off(self, sender: Sender) -> None:
        """An exception came: send the present call of `sender`, or the next one, in a moment.

        That call may be in any of these places, or in none.
        """
        self._paused = [call for call in self._paused if call.sender is not sender]
        self.reconnection.withdraw(sender)
        for node in list(self.nodes.values()):
            node.withdraw(sender)
        sender.put_off()
        self.loop.call_later(PAUSE, self.ready, sender)

    @contextmanager
    def putting_off(self, calls: list[Call]) -> Iterator[None]:
        """If an exception comes, put off the calls that are left."""
        try:
            yield
        except BaseException:
            for call in calls.copy():
                self.put_off(call.sender)
            raise

    def send(self, call: Call) -> None:
        node = self.node_for(call)
        if node is None:
            self.reconnection.add_unrouted(call)
        else:
            node.say(call)

    def send_again(self, call: Call) -> None:
        self.send(call._replace(sent=self.loop.time()))

    def send_later(self, call: Call) -> None:
        self._paused.append(call)
        self.loop.call_later(PAUSE, self._resume, call)

    def _resume(self, call: Call) -> None:
        if not self._closed and call in self._paused:
            with self.putting_off([call]):
                self._paused.remove(call)
                self.send_again(call)

    def node_for(self, call: Call) -> Node | None:
        if call.there is not None:
            return self.nodes.get(call.there)
        sender = call.sender
        if sender.node is None or sender.node.closed:
            server = self.topology.where(sender.key)
            sender.node = None if server is None else self.nodes.get(server)
        return sender.node

    # Replies --------------------------------------------------------------------------------------

    def answered(self, call: Call, reply: Any, node: Node) -> None:
        try:
            self._note_reply(call, reply, node)
            call.sender.answered(reply)
        except Exception as senseless:
            call.sender.failed(self.cannot(senseless))
            node.cut(senseless)
        self.wake_drain()

    def _note_reply(self, call: Call, reply: Any, node: Node) -> None:
        if isinstance(reply, Exception) and str(reply).startswith(NOT_NOW):
            call.sender.met = False
            if str(reply).startswith((*UNREADY, "READONLY")):
                self.reconnection.unavailable.add(self.reconnection.part(node.endpoint))
        else:
            call.sender.met = self.reconnection.met = self._outages.met = True
            # A server that refuses all calls, such as one without memory, is not back yet.
            if self._outages.since and not isinstance(reply, Exception):
                for part in {self.reconnection.part(node.endpoint), None}:
                    self._outages.ends(part, self.loop)
            if self.reconnection.disturbed:
                self.reconnection.reached(node)

    def wake_drain(self) -> None:
        if self._drain_wakeup is not None and not self._drain_wakeup.done():
            self._drain_wakeup.set_result(None)

    # Lost connections -----------------------------------------------------------------------------

    def lost(self, node: Node, calls: list[Call], lost: Exception) -> None:
        """A connection is lost: its calls are sent by another one, if they may be retried."""
        self.nodes = {server: other for server, other in self.nodes.items() if other is not node}
        self.reconnection.suspects[node.endpoint] = lost
        with self.putting_off(calls):
            while calls:
                self.reconnection.reroute(calls[0]._replace(there=None), node.endpoint, lost)
                del calls[0]
        self._subscriptions.lost(node.endpoint, left=isinstance(lost, DEMOTED))
        for sender in [sender for sender in self.senders.values() if sender.node is node]:
            sender.doubt()

    def note_outage(self, sender: Sender, error: StoreError) -> None:
        """Callers of `sender` have failed with `error`."""
        self._outages.begins(self.reconnection.part(self.topology.where(sender.key)), error)

    def cannot(self, lost: BaseException) -> StoreError:
        return cannot(self.topology, lost)

    # Connecting -----------------------------------------------------------------------------------

    async def connect(self, server: Endpoint) -> None:
        connection = await server.connected()
        self.nodes[server] = Node(self, server, connection)
        if self._closed:  # The loop began to end just now.
            self.leave(self.nodes[server])
        else:
            self.reconnection.follow_sentinel()

    def leave_unused(self) -> None:
        """Close connections to servers of a Cluster that keep no names of this client any more.

        Other servers have taken over those names.
        """
        used = {sender.node for sender in self.senders.values()}
        for server, node in list(self.nodes.items()):
            if (
                server not in self.reconnection.unrouted
                and node not in used
                and not (node.calls or node.waiting)
            ):
                self.leave(node)

    def leave(self, node: Node) -> None:
        del self.nodes[node.endpoint]
        node.close()
        self._subscriptions.drop(node.endpoint)

    def reaches(self, server: Endpoint) -> bool:
        """Whether a connection for calls leads to `server`."""
        return server in self.nodes

    # Ending ---------------------------------------------------------------------------------------

    async def _run_lifecycle(self) -> None:
        """Wait until the loop ends. Then let its tasks end, and send their releases.

        Later releases go through the portal.
        """
        try:
            await asyncio.sleep(0)  # __init__ runs the first step, and the task goes on from here.
            await self.loop.create_future()
        except asyncio.CancelledError:
            for _ in range(3):
                await asyncio.sleep(0)
            await self._drain()
            self.end()
            # Some may have started after the loop began to end, and no other code waits for them.
            if tasks := self._tasks():
                await asyncio.wait(tasks, timeout=DRAIN_TIMEOUT)
            raise
        finally:
            self._close()

    def retire(self) -> None:
        """End before the loop does, because no limiter needs these connections any more."""
        self._lifecycle.cancel()

    def end(self) -> None:
        """Make no more calls here. The portal takes over the sessions' permits and the operations
        that they must deliver.

        Several threads may end the client of a closed loop. Each returns only when the portal has
        taken over.
        """
        with self._ending:
            if not self.ended:
                self.abandoned = not self.loop.is_running()
                self._close()
                self.keeper.take_over(self)
                self.ended = True

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [
            task
            for task in (
                *self.reconnection.tasks(),
                *self._subscriptions.tasks(),
            )
            if task is not None and not task.done()
        ]

    def _close(self) -> None:
        self._closed = True
        for task in self._tasks():
            stop(task)
        for node in self.nodes.values():
            node.close()
        self._subscriptions.halt()
        self.reconnection.halt()
        self._ready, self._paused = deque(), []

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while self._has_backlog():
                    self.reconnection.seek_all()
                    self._drain_wakeup = self.loop.create_future()
                    await self._drain_wakeup
        except TimeoutError:
            pass  # The leases expire by themselves.

    def _has_backlog(self) -> bool:
        unsent = self._paused or any(self.reconnection.unrouted.values())
        return bool(self._ready or unsent or any(node.busy for node in self.nodes.values()))
