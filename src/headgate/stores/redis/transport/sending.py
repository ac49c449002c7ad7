"""The sending of calls that wait for the end of the loop's turn, and of calls that are sent again.

Each session has at most one call in flight, and operations that arrive meanwhile travel in its next
call. After a lost reply the same bytes are sent again: the script knows the call's number and does
nothing twice.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from headgate.stores.redis.transport.node import Call, Node, Sender

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from headgate.stores.redis.transport.connection import Connection
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

# The seconds before a call is sent again while its slot moves, or after an exception.
PAUSE = 0.05


class Unrouted(Protocol):
    """The calls without a connection."""

    def add_unrouted(self, call: Call) -> None: ...
    def withdraw(self, sender: Sender) -> None: ...


class Connections(Protocol):
    """The part of the client that Sending uses."""

    loop: asyncio.AbstractEventLoop
    topology: Topology
    nodes: dict[Endpoint, Node]
    ended: bool

    @property
    def reconnection(self) -> Unrouted: ...


class Sending:
    def __init__(self, client: Connections) -> None:
        self._client = client
        self._loop = client.loop
        # These senders send a call at the end of this turn of the loop.
        self._ready: deque[Sender] = deque()
        self._flush_by = 0.0  # if `_flush` has not begun by then, see `check_flush`
        # These calls are sent again after PAUSE.
        self._paused: list[Call] = []

    @property
    def has_backlog(self) -> bool:
        return bool(self._ready or self._paused)

    def ready(self, sender: Sender) -> None:
        """Send a call of `sender` at the end of this turn of the loop.

        So operations that arrive in the same turn travel in one call.
        """
        self._ready.append(sender)
        if len(self._ready) == 1:
            self._flush_soon()

    def check_flush(self) -> None:
        """Schedule `_flush` again if it is late: a signal handler may have raised in its place."""
        if self._ready and self._loop.time() > self._flush_by:
            self._flush_soon()

    def _flush_soon(self) -> None:
        self._loop.call_soon(self._flush)
        self._flush_by = self._loop.time() + PAUSE

    def _flush(self) -> None:
        """Send one call for each session, with one write for each connection."""
        if self._client.ended:
            return
        senders, writers = self._ready, []
        try:
            self._ready = deque()
            if len(senders) > 1:
                for node in self._client.nodes.values():
                    if node.connection.buffer():
                        writers += [node.connection]
            while senders:
                self._send_next(senders[0])
                del senders[0]
        except BaseException:
            # `put_off` may have done this for the first of them. Twice is harmless: the second
            # time, it has no call to send.
            for sender in senders:
                self._loop.call_later(PAUSE, self.ready, sender)
            raise
        finally:
            write_all(writers)

    def _send_next(self, sender: Sender) -> None:
        """Send the next call of `sender`. If it cannot be made or written, put it off."""
        try:
            now, command = self._loop.time(), sender.command()
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
        self._client.reconnection.withdraw(sender)
        for node in list(self._client.nodes.values()):
            node.withdraw(sender)
        sender.put_off()
        self._loop.call_later(PAUSE, self.ready, sender)

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
            self._client.reconnection.add_unrouted(call)
        else:
            node.send_call(call)

    def send_again(self, call: Call) -> None:
        self.send(call._replace(sent=self._loop.time()))

    def send_later(self, call: Call) -> None:
        self._paused.append(call)
        self._loop.call_later(PAUSE, self._resume, call)

    def _resume(self, call: Call) -> None:
        if not self._client.ended and call in self._paused:
            with self.putting_off([call]):
                self._paused.remove(call)
                self.send_again(call)

    def node_for(self, call: Call) -> Node | None:
        if call.there is not None:
            return self._client.nodes.get(call.there)
        sender = call.sender
        if sender.node is None or sender.node.closed:
            server = self._client.topology.where(sender.key)
            sender.node = None if server is None else self._client.nodes.get(server)
        return sender.node

    def halt(self) -> None:
        self._ready, self._paused = deque(), []


def write_all(connections: list[Connection]) -> None:
    try:
        while connections:
            connections[0].write()
            del connections[0]
    except BaseException as interrupt:  # some of it may have left
        for connection in connections:
            connection.cut(ConnectionError(f"a write was interrupted: {interrupt!r}"))
        raise
