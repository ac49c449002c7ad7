"""The client of one event loop: its connections to one store, which the calls of all sessions use.

One part sends calls at the end of the loop's turn (sending.py). Another decides whether a call
without a connection is sent again or fails (reconnection.py).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, WeakValueDictionary

from redis.exceptions import ReadOnlyError

from headgate.counts import TELEMETRY, note_call
from headgate.stores.redis.transport.availability import Availability
from headgate.stores.redis.transport.failures import NotThereError
from headgate.stores.redis.transport.lifecycle import Keeper, Lifecycle
from headgate.stores.redis.transport.node import Call, Node, Sender
from headgate.stores.redis.transport.portal import portal_loop
from headgate.stores.redis.transport.reconnection import Reconnection
from headgate.stores.redis.transport.sending import Sending
from headgate.stores.redis.transport.subscriber import Subscriptions
from headgate.stores.redis.transport.tasks import stop

if TYPE_CHECKING:
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

# With these errors headgate cuts the connection to a server that is no primary any more: see
# `Node._not_now` and `Reconnection._follow`.
DEMOTED = ReadOnlyError, NotThereError
# A session's id ends with this letter if it subscribes to sharded channels (outbox.lua).
SHARDED = "s"


class Client:
    """The connections of one event loop to one store.

    There is one for each server that keeps names of this client, and one or more for notifications.
    """

    def __init__(self, topology: Topology, keeper: Keeper) -> None:
        # 128 random bits: no other client has this id, not even one in the child of a fork.
        self.id = secrets.token_hex(16)
        self.topology = topology
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.process = os.getpid()
        # These are the senders of this loop, by key. Their queues keep them alive.
        self.senders: WeakValueDictionary[str, Sender] = WeakValueDictionary()
        # These senders come from loops that have ended. This loop may have one of the same key.
        self.adopted: WeakSet[Sender] = WeakSet()
        self.ended = False  # `close` was called; see `Lifecycle.handed_over` for its sessions
        self.of_portal = self.loop is portal_loop()
        self._session_count = 0
        self.nodes: dict[Endpoint, Node] = {}
        self.sending = Sending(self)
        self.availability = Availability(self)
        self.reconnection = Reconnection(self)
        self.subscriptions = Subscriptions(self)
        self.lifecycle = Lifecycle(self, keeper)

    @property
    def closed(self) -> bool:
        """Whether no call can be sent here any more.

        Some loops are closed without cancelling their tasks.
        """
        return self.ended or self.loop.is_closed()

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The calling task, if it belongs to this loop.

        Comparing threads is cheaper: asyncio finds the running loop by a system call.
        """
        return asyncio.current_task(self.loop) if threading.get_ident() == self.thread else None

    @property
    def here(self) -> bool:
        """Whether the caller runs in this loop, in a task or in a callback."""
        return self.task is not None or self.loop is asyncio._get_running_loop()

    def forked(self) -> None:
        """In the child of a fork, no thread runs this client's loop."""
        self.thread = 0

    def new_session_id(self) -> str:
        self._session_count += 1
        return f"{self.id}.{self._session_count}{SHARDED if self.topology.sharded else ''}"

    def lost(self, node: Node, calls: list[Call], error: Exception) -> None:
        """A connection is lost: its calls are sent by another one, if they may be retried."""
        self.nodes = {server: other for server, other in self.nodes.items() if other is not node}
        self.availability.suspects[node.endpoint] = error
        with self.sending.putting_off(calls):
            while calls:
                if TELEMETRY.on:
                    seconds = self.loop.time() - calls[0].sent
                    note_call(self.topology, node.endpoint, error, seconds)
                self.reconnection.reroute(calls[0]._replace(there=None), node.endpoint, error)
                del calls[0]
        self.subscriptions.lost(node.endpoint, replaced=isinstance(error, DEMOTED))
        for sender in [sender for sender in self.senders.values() if sender.node is node]:
            sender.doubt()

    async def connect(self, server: Endpoint) -> None:
        connection = await server.connected()
        self.nodes[server] = Node(self, server, connection)
        if self.ended:  # The loop began to end just now.
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
                and not (node.calls or node.postponed.calls)
            ):
                self.leave(node)

    def leave(self, node: Node) -> None:
        del self.nodes[node.endpoint]
        node.close()
        self.subscriptions.drop(node.endpoint)

    def retry_backlog(self) -> bool:
        """Whether calls are in flight or left to send. If so, connect for the unrouted ones."""
        unrouted = chain(*self.reconnection.unrouted.values())
        has_backlog = (
            self.sending.has_backlog
            or any(node.busy for node in self.nodes.values())
            or any(not call.sender.optional for call in unrouted)
        )
        if has_backlog:
            self.reconnection.seek_all()
        return has_backlog

    def tasks(self) -> list[asyncio.Task[None]]:
        parts = self.availability, self.reconnection, self.subscriptions
        tasks = [task for part in parts for task in part.tasks()]
        return [task for task in tasks if task is not None and not task.done()]

    def close(self) -> None:
        self.ended = True
        for task in self.tasks():
            stop(task)
        for node in self.nodes.values():
            node.close()
        self.subscriptions.halt()
        self.availability.halt()
        self.reconnection.halt()
        self.sending.halt()
