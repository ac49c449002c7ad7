"""The fast path for threads: a blocking acquire that can pass this instant asks the server itself.

It does not go through the portal's loop. A process has one blocking connection to each server of a
store. One thread at a time uses them. A thread that finds them in use goes through the portal. So
does an acquire that has to wait, or whose server is not known or has changed. No acquire may wait
in the queue here, so none is left behind in it.

The first acquire of a name also declares the limits. It never replaces others: see main.lua.
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
from headgate.stores.redis.protocol.operations import KNOWN, UPDATED, Caller, new_caller
from headgate.stores.redis.protocol.replies import parse_grant
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT, SILENCE, pack
from headgate.threads import CHECK, NoThreadError, begin, runs

if TYPE_CHECKING:
    import socket

    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Grant
    from headgate.request import Request
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

# The modules that raise errors of sockets and replies.
EXCHANGE_MODULES = (__name__, "socket", "ssl", parse_grant.__module__)


class FastIssuer(Issuer, Protocol):
    """The permit issuer of a queue, as the fast path sees it."""

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
        # This is the child of a fork. Only the parent goes on with an acquire in progress.
        self._of_parent = False
        # `.0` tells the script that a call and its acquire have the same number (sessions.lua).
        self.id = f"{secrets.token_hex(16)}.0"
        self._calls = 0
        # The names of acquires on this path. A refresh of the index takes them out.
        self.names: set[str] = set()

    def acquire(self, issuer: FastIssuer, request: Request) -> Permit | None:
        """A permit for this instant. None: go through the portal."""
        if self._busy:
            return None
        # Python calls no function between the check and this line. So neither another thread nor a
        # signal handler comes in between.
        self._busy = True
        try:
            permit = self._ask(issuer, request)
        finally:
            self._busy = False
        if self._of_parent:
            if permit is not None:
                permit.held = False  # the parent holds it
            raise fork_error(issuer.name)
        return permit

    def forked(self) -> None:
        """In the child of a fork: close the connections, and end the wait of a thread.

        The child reads nothing that the server sends to the parent.
        """
        self._of_parent = True
        for connection in self._connections.values():
            connection.close()
        self._opened.put(None)

    def _ask(self, issuer: FastIssuer, request: Request) -> Permit | None:
        start = monotonic()
        timeout = REPLY_TIMEOUT if request.max_sleep is None else SILENCE
        declared, statement = issuer.limits.limits_for_call(True, ())
        server = self._server(issuer.key, statement, timeout)
        if server is None:
            return None
        self._calls += 1
        self.names.add(issuer.name)
        caller = new_caller((self.id, self._calls, request.text))
        permit = None
        certain_until = lease_end(declared)
        keys = keys_of(issuer.key)
        number, flags = str(self._calls), CLUSTERED * self._topology.several
        words = words_at_once(
            keys, declared.program, self.id, number, statement, flags, request.text
        )
        try:
            reply = self._exchange_with_retry(server, statement, words, timeout)
            grant = read_reply(reply, caller)
            if grant is not None and not self._of_parent:
                issuer.limits.note_carried(declared.program, statement)
                waited = monotonic() - start
                permit = Permit(issuer, request.units, grant, waited, caller, certain_until, self)
                # A fork may have come since the check above.
                if permit.held and self.process == os.getpid():
                    issuer.hold(permit, declared.lease)
            return permit
        except BaseException as lost:
            if permit is not None:
                permit.held = False
            self._give_up(server, issuer, caller)
            if not is_exchange_error(lost):
                raise
            return None

    def _server(self, key: str, statement: int, timeout: float) -> Endpoint | None:
        """The server to ask, once it is connected. None: the portal asks.

        `statement`: of the call, about its limits. A call that brings an update goes through the
        portal's session. Only a call whose limits are known opens a connection. So if the server
        is away, only the portal tries to connect for the first acquire of a name.
        """
        server = self._topology.where(key)
        if server is None or statement == UPDATED:
            return None
        ready = server in self._connections or (statement == KNOWN and self._open(server, timeout))
        return server if ready else None

    def _give_up(self, server: Endpoint, issuer: FastIssuer, caller: Caller) -> None:
        """Close the connection and cancel the acquire: the server may still grant it."""
        self._close(server)
        if not self._of_parent:
            issuer.cancel_uncertain(caller)

    def _exchange_with_retry(
        self, server: Endpoint, statement: int, words: tuple[str, ...], timeout: float
    ) -> Any:
        """Send a call, and send it once more, byte for byte, if the reply was lost.

        The script knows the call's number, so it does nothing twice.
        """
        try:
            return self._exchange(server, statement, words, timeout)
        except (OSError, HiredisError) as lost:
            self._close(server)
            if (
                isinstance(lost, TimeoutError)  # the caller has waited for long enough
                or not is_exchange_error(lost)
                or self._of_parent
                or not self._open(server, timeout)
            ):
                raise
            return self._exchange(server, statement, words, timeout)

    def _exchange(
        self, server: Endpoint, statement: int, words: tuple[str, ...], timeout: float
    ) -> Any:
        script = library().fast if statement == KNOWN else library().whole
        connection, functions = self._connections[server], self._topology.may_use_functions
        name = ("FCALL", script.function) if functions else ("EVALSHA", script.digest)
        start = monotonic()
        try:
            reply = connection.exchange(pack((*name, *words)), timeout)
            # No other code sends the fast script, so a server without functions gets the text here.
            if isinstance(reply, HiredisError) and str(reply).startswith("NOSCRIPT"):
                reply = connection.exchange(pack(("EVAL", script.text, *words)), timeout)
        except (OSError, HiredisError) as lost:
            self._note_call(server, lost, start)
            raise
        self._note_call(server, reply, start)
        if isinstance(reply, HiredisError) and str(reply).startswith("READONLY"):
            self._close(server)  # the host name may lead to another server now
        return reply

    def _note_call(self, server: Endpoint, outcome: object, start: float) -> None:
        if TELEMETRY.on and not self._of_parent:  # the parent counts its own call
            note_call(self._topology, server, outcome, monotonic() - start)

    def _open(self, server: Endpoint, timeout: float) -> bool:
        """Connect in a new thread, and return whether that worked.

        In this thread, redis-py would take an exception of a signal handler for an error of the
        connection.
        """
        opened: SimpleQueue[BlockingConnection | None] = SimpleQueue()
        self._opened = opened
        try:
            thread = begin(partial(connect, server, timeout, opened), "headgate-connect")
        except NoThreadError:  # the portal may run already
            return False
        connection, running = None, True
        # `running` is read before the result. So the loop looks for a result once more after the
        # thread has ended.
        while running:
            running = runs(thread)
            with suppress(Empty):
                connection = opened.get(timeout=CHECK)
                break
        if connection is None:
            return False  # the portal tries it, too, and raises the error
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

    def __init__(self, connected: socket.socket, timeout: float) -> None:
        self._socket = connected
        self._timeout = timeout
        self._reader = Reader()
        self.close: Callable[[], object] = weakref.finalize(self, connected.close)

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
    """Put a new connection into `opened`, or None after an error."""
    connection = None
    with suppress(Exception):
        redis_py = server.blocking(timeout)
        redis_py.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        # BlockingConnection owns the socket from here on, as in connection.py.
        connected, redis_py._sock = redis_py._sock, None
        assert connected is not None, "redis-py has just connected it"
        connection = BlockingConnection(connected, timeout)
    opened.put(connection)


def is_exchange_error(error: BaseException) -> bool:
    """Whether a socket or a reply has raised `error`, and not a signal handler.

    An exception of a signal handler comes from a frame of the handler's own module.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return isinstance(error, (OSError, HiredisError, ValueError)) and raised_in in EXCHANGE_MODULES


def lease_end(declared: Declaration) -> float | None:
    """Until when a permit is certainly held if it is granted from now on, by the monotonic clock.

    None: these limits hold no permits.
    """
    return monotonic() + declared.lease / 1_000_000 if declared.holds else None


def read_reply(reply: Any, caller: Caller) -> Grant | None:
    """The grant of an acquire, if there is one.

    The script may also have granted nothing, or not known the limits. After a reply that is an
    error, the portal asks again, and raises the right exception.
    """
    found = parse_grant(reply) if isinstance(reply, bytes) else None
    # A reply begins with the session and the number of its call. Here the acquire has that number.
    if found is None or found[:2] != caller[:2]:
        return None
    return found.grant
