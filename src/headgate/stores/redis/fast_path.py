"""The fast path for threads: a blocking acquire that can pass this instant asks the server itself.

It does not go through the portal's loop. There is one blocking connection for each process and
server, used by one thread at a time. A thread that finds it in use goes through the portal. So does
every acquire that has to wait. So does an acquire whose server is not known or has changed. Only
the fast script travels here, so no acquire is ever left behind in the queue.
"""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from hiredis import HiredisError, Reader

from headgate.counts import TELEMETRY, note_call
from headgate.forks import fork_error
from headgate.permit import Issuer, Permit
from headgate.stores.redis.protocol.calls import CLUSTERED, keys_of, words_at_once
from headgate.stores.redis.protocol.operations import KNOWN, Caller, new_caller
from headgate.stores.redis.protocol.replies import parse_grant
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT, SILENCE, pack
from headgate.threads import CHECK, begin, runs

if TYPE_CHECKING:
    import socket

    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Grant
    from headgate.request import Request
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

# Errors of sockets and replies are raised in these modules.
OURS = (__name__, "socket", "ssl", parse_grant.__module__)


class FastIssuer(Issuer, Protocol):
    """The permit issuer of a queue."""

    @property
    def key(self) -> str: ...
    @property
    def limits(self) -> LimitSync: ...
    def hold(self, permit: Permit, lease: int) -> None: ...
    def cancel_uncertain(self, caller: Caller) -> None: ...


class FastPath:
    """The blocking connections of this process to one store."""

    def __init__(self, topology: Topology) -> None:
        self.process = os.getpid()
        self._topology = topology
        self._busy = False  # a thread uses a connection
        self._connections: dict[Endpoint, BlockingConnection] = {}
        # The result of the connection attempt in progress.
        self._opened: SimpleQueue[BlockingConnection | None] = SimpleQueue()
        # In the child of a fork, this object is the parent's, which goes on with the acquire.
        self._of_parent = False
        # `.0` tells the script that each call has the number of its acquire (sessions.lua).
        self.id = f"{secrets.token_hex(16)}.0"
        self._calls = 0
        # The names of these calls, for the index. Its refresh takes them out.
        self.names: set[str] = set()

    def acquire(self, issuer: FastIssuer, request: Request) -> Permit | None:
        """A permit for this instant. None: go through the portal."""
        if issuer.limits.declares != KNOWN or self._busy:
            return None
        # No call stands between the check and this line, so neither another thread nor a signal
        # handler comes in between.
        self._busy = True
        try:
            server = self._topology.where(issuer.key)
            timeout = REPLY_TIMEOUT if request.max_sleep is None else SILENCE
            permit = None if server is None else self._ask(server, issuer, request, timeout)
        finally:
            self._busy = False
        if self._of_parent:
            if permit is not None:
                permit.held = False  # the parent holds it
            raise fork_error(issuer.name)
        return permit

    def fork(self) -> None:
        """In the child of a fork: close the connections, and end the wait of a thread.

        The child reads nothing that the server sends to the parent.
        """
        self._of_parent = True
        for connection in self._connections.values():
            connection.close()
        self._opened.put(None)

    def _ask(
        self, server: Endpoint, issuer: FastIssuer, request: Request, timeout: float
    ) -> Permit | None:
        start = monotonic()
        if server not in self._connections and not self._open(server, timeout):
            return None
        self._calls += 1
        self.names.add(issuer.name)
        caller = new_caller((self.id, self._calls, request.text))
        declared, permit = issuer.limits.declared, None
        believed = lease_end(declared)
        keys = keys_of(issuer.key)
        number, flags = str(self._calls), CLUSTERED * self._topology.several
        words = words_at_once(keys, declared.program, self.id, number, flags, request.text)
        try:
            reply = self._exchange_surely(server, words, timeout)
            grant = read_reply(reply, caller)
            if grant is not None and not self._of_parent:
                waited = monotonic() - start
                permit = Permit(issuer, request.units, grant, waited, caller, believed, self)
                if permit.held and self.process == os.getpid():
                    issuer.hold(permit, declared.lease)
            return permit
        except BaseException as lost:
            if permit is not None:
                permit.held = False
            self._give_up(server, issuer, caller)
            if not is_ours(lost):
                raise
            return None

    def _give_up(self, server: Endpoint, issuer: FastIssuer, caller: Caller) -> None:
        """Close the connection and cancel the acquire: the server may still grant it."""
        self._close(server)
        if not self._of_parent:
            issuer.cancel_uncertain(caller)

    def _exchange_surely(self, server: Endpoint, words: tuple[str, ...], timeout: float) -> Any:
        """Send a call, and send it once more, byte for byte, if the reply was lost.

        The script knows the call's number, so it does nothing twice.
        """
        try:
            return self._exchange(server, words, timeout)
        except (OSError, HiredisError) as lost:
            self._close(server)
            if (
                isinstance(lost, TimeoutError)  # one timeout is enough
                or not is_ours(lost)
                or self._of_parent
                or not self._open(server, timeout)
            ):
                raise
            return self._exchange(server, words, timeout)

    def _exchange(self, server: Endpoint, words: tuple[str, ...], timeout: float) -> Any:
        fast, connection = library().fast, self._connections[server]
        name = ("FCALL", fast.function) if self._topology.functions else ("EVALSHA", fast.digest)
        start = monotonic()
        reply = connection.exchange(pack((*name, *words)), timeout)
        if TELEMETRY.on:
            note_call(self._topology, server, reply, monotonic() - start)
        # Only this path uses the script, so it gives the text to a server without functions.
        if isinstance(reply, HiredisError) and str(reply).startswith("NOSCRIPT"):
            reply = connection.exchange(pack(("EVAL", fast.text, *words)), timeout)
        if isinstance(reply, HiredisError) and str(reply).startswith("READONLY"):
            self._close(server)  # the host name may lead to another server now
        return reply

    def _open(self, server: Endpoint, timeout: float) -> bool:
        """Connect in a new thread.

        redis-py would take an exception of a signal handler for an error of the connection.
        """
        opened: SimpleQueue[BlockingConnection | None] = SimpleQueue()
        self._opened = opened
        thread = begin(partial(connect, server, timeout, opened), "headgate-connect")
        connection, running = None, True
        # Read `running` first: one more look follows the end of the thread.
        while running:
            running = runs(thread)
            with suppress(Empty):
                connection = opened.get(timeout=CHECK)
                break
        if connection is None:
            return False  # the portal raises the error for that
        self._connections[server] = connection
        return True

    def _close(self, server: Endpoint) -> None:
        connection = self._connections.pop(server, None)
        if connection is not None:
            connection.close()


class BlockingConnection:
    """A connection that sends one command and reads one reply.

    A finalizer closes the socket when the connection is dropped. The finalizer keeps the socket
    until it has closed it, so Python logs no ResourceWarning.
    """

    def __init__(self, its: socket.socket, timeout: float) -> None:
        self._socket = its
        self._timeout = timeout
        self._reader = Reader()
        self.close: Callable[[], object] = weakref.finalize(self, its.close)

    def exchange(self, command: bytes, timeout: float) -> Any:
        if timeout != self._timeout:
            self._socket.settimeout(timeout)
            self._timeout = timeout
        self._socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(4096)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply


def connect(
    server: Endpoint, timeout: float, opened: SimpleQueue[BlockingConnection | None]
) -> None:
    connection = None
    with suppress(Exception):
        redis_py = server.blocking(timeout)
        redis_py.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        # This object owns the socket from here on, as in connection.py.
        its, redis_py._sock = redis_py._sock, None
        assert its is not None, "it was made just now"
        connection = BlockingConnection(its, timeout)
    opened.put(connection)


def is_ours(error: BaseException) -> bool:
    """Whether a socket or a reply has raised `error`.

    An exception of a signal handler comes from a frame of the handler's own module.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return isinstance(error, (OSError, HiredisError, ValueError)) and raised_in in OURS


def lease_end(declared: Declaration) -> float | None:
    """Until when a grant of this moment is held for certain. None: it holds nothing."""
    return monotonic() + declared.lease / 1_000_000 if declared.holds else None


def read_reply(reply: Any, caller: Caller) -> Grant | None:
    """The grant of the fast script, if there is one.

    The script may also have granted nothing, or not known the limits.
    """
    # For a reply that is an error, the portal raises the right exception.
    found = parse_grant(reply) if isinstance(reply, bytes) else None
    if found is None or found[:2] != caller[:2]:
        return None
    return found.grant
