"""A node: one server that a client is connected to, and the calls in flight on that connection.

It loads the library if the server lacks it. Calls to a server that is not ready wait in the node.
The client decides where a call goes instead, and handles the calls of a lost connection.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hiredis import HiredisError
from redis.exceptions import ReadOnlyError, ResponseError

from headgate.counts import TELEMETRY, note_call
from headgate.stores.redis.protocol.calls import Command
from headgate.stores.redis.protocol.index import Refresh
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.transport.connection import REPLY_TIMEOUT, Connection, pack
from headgate.stores.redis.transport.endpoint import (
    A_SENTINEL,
    is_denied,
    is_unknown,
    said_by_sentinel,
)
from headgate.stores.redis.transport.eviction_check import Eviction
from headgate.stores.redis.transport.failures import cannot

if TYPE_CHECKING:
    import asyncio

    from redis.asyncio.connection import AbstractConnection

    from headgate.errors import StoreError
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

LIBRARY = "library"  # This stands for the library in `Node._loading`.
IDLE = 60.0  # A client of several servers closes a connection after these seconds.
# With these errors the server refuses every call, before the script begins.
UNREADY = ("LOADING", "BUSY ", "CLUSTERDOWN The cluster", "MASTERDOWN")
# After these errors the same call may succeed later, here or elsewhere. CLUSTERDOWN and TRYAGAIN
# are for one name, whose slot is moving.
NOT_NOW = (*UNREADY, "CLUSTERDOWN", "TRYAGAIN", "READONLY")
# With these errors it says that it lacks the script or the library.
MISSING = ("NOSCRIPT", "ERR Function not found")
# `_create_keys` writes these, and the script ignores them. They live for a minute, or as long as
# the name.
PLACEHOLDERS = ("HSET", "told", ""), ("ZADD", "0", "-")
MINUTE = "60000"  # milliseconds
# A Cluster redirects with these words: the kind, the slot, the host and the port.
ELSEWHERE = re.compile(r"(MOVED|ASK) (\d+) (.*):(\d+)")


class Sender(Protocol):
    """The source of calls under one key. The transport knows nothing else about it."""

    # Its calls use this connection, as far as the client knows.
    node: Node | None
    # Whether its last call was answered. None: it has no outcome yet.
    met: bool | None

    # Whether no caller needs its calls. Then the end of a loop does not wait for them, and their
    # failures do not count as those of the server.
    @property
    def optional(self) -> bool: ...
    @property
    def key(self) -> str: ...
    @property
    def waits(self) -> bool: ...  # whether it has waiters
    def command(self) -> Command | Refresh | None: ...  # the next one; None: there is none
    def put_off(self) -> None: ...  # an exception came: `command` is asked for the same one again
    def answered(self, reply: Any) -> None: ...
    def failed(self, error: StoreError) -> None: ...
    # An attempt to send its call again has failed, `spent` seconds after the first one.
    def on_disconnect(self, lost: BaseException, spent: float) -> None: ...
    def on_notification(self, notification: str) -> None: ...
    def poll(self) -> None: ...  # send what the server must get, and ask for missed news
    def doubt(self) -> None: ...  # its server may have lost state
    # For how many seconds each caller lets the call be retried. None: it has set nothing.
    def retry_periods(self) -> list[float | None]: ...


class Call(NamedTuple):
    """One command in flight, or about to be sent again."""

    sender: Sender
    command: Command | Refresh
    # It was sent first and last at these times, by the loop's clock.
    first: float
    sent: float
    # This server gets the call once (ASKING), because the call's slot is moving there.
    there: Endpoint | None = None
    # One server has redirected it to another. Two servers that disagree must not do so for ever.
    sent_on: bool = False
    # Its keys were created on `there`.
    keys_created: bool = False
    # It carries the text of its script (EVAL).
    by_text: bool = False
    # Its server has refused it with this text. Now it awaits the reply to ROLE: see `_refused`.
    refusal: str = ""

    @property
    def may_lack_keys(self) -> bool:
        """Whether the server to which its slot moves may lack keys of a name."""
        is_command = isinstance(self.command, Command)
        return is_command and self.there is not None and not self.keys_created

    def server(self, topology: Topology) -> Endpoint | None:
        """The server that gets it, as far as is known."""
        return self.there or topology.where(self.sender.key)


class Retrying(Protocol):
    """The part of Reconnection that a node uses."""

    def check_topology(self, node: Node) -> None: ...
    def add_unrouted(self, call: Call) -> None: ...
    def may_retry(self, call: Call) -> bool: ...
    def watch_deadline(self, call: Call) -> None: ...


class Backoffs(Protocol):
    """The part of Availability that a node uses."""

    def note_reply(self, call: Call, reply: Any, node: Node) -> None: ...
    def note_refusal(self, call: Call) -> None: ...
    def next_backoff(self, server: Endpoint | None) -> float: ...


class Resending(Protocol):
    """The part of Sending that a node uses."""

    def send_again(self, call: Call) -> None: ...
    def send_later(self, call: Call) -> None: ...
    def put_off(self, sender: Sender) -> None: ...


class NodeClient(Protocol):
    """The part of the client that a node uses."""

    loop: asyncio.AbstractEventLoop
    topology: Topology

    @property
    def availability(self) -> Backoffs: ...
    @property
    def reconnection(self) -> Retrying: ...
    @property
    def sending(self) -> Resending: ...
    def lost(self, node: Node, calls: list[Call], error: Exception) -> None: ...
    def leave(self, node: Node) -> None: ...


class Postponed:
    """The calls that wait until their server is ready."""

    def __init__(self, node: Node) -> None:
        self.calls: deque[Call] = deque()
        self._node = node
        self._client = node.client
        # The server's error for the last of these calls.
        self._refusal = ""
        # This timer sends the first of them again.
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Call, refusal: str) -> None:
        """Let `call` wait. The calls are sent one by one, until one is answered."""
        self.calls.append(call)
        self._refusal = refusal
        self._client.reconnection.watch_deadline(call)
        if self._timer is None:
            self._try_later()

    def _try_later(self) -> None:
        backoff = self._client.availability.next_backoff(self._node.endpoint)
        self._timer = self._client.loop.call_later(backoff, self._try_one)

    def _try_one(self) -> None:
        self._timer = None
        if self.calls:
            call = self.calls.popleft()
            if self.calls:
                self._try_later()
            self._client.sending.send_again(call)

    def send_all(self) -> None:
        """The server has answered a call: send all that wait."""
        calls, self.calls = self.calls, deque()
        for call in calls:
            self._client.sending.send_again(call)

    def reroute(self) -> None:
        """Send each call to its new server, if another one has its name by now."""
        where, server = self._client.topology.where, self._node.endpoint
        for call in self._take(lambda call: where(call.sender.key) is not server):
            self._client.sending.send_again(call)

    def check_deadlines(self) -> None:
        """Answer the calls that may not be retried any more with the server's refusal."""
        may_retry = self._client.reconnection.may_retry
        for call in self._take(lambda call: not may_retry(call)):
            self._node.answer(call, ResponseError(self._refusal))

    def withdraw(self, sender: Sender) -> None:
        self.calls = deque(call for call in self.calls if call.sender is not sender)

    def _take(self, leaves: Callable[[Call], bool]) -> list[Call]:
        calls, self.calls = self.calls, deque()
        taken: list[Call] = []
        for call in calls:
            (taken if leaves(call) else self.calls).append(call)
        return taken

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Node:
    def __init__(
        self, client: NodeClient, endpoint: Endpoint, connection: AbstractConnection
    ) -> None:
        self.endpoint = endpoint
        # The garbage collector may release permits in the middle of sending. Their calls must not
        # be sent in between.
        self.writing = False
        self.closed = False
        # These calls and callbacks get the next replies, in the order of the commands.
        self.calls: deque[Call | Callable[[Any], None]] = deque()
        self.client = client
        # Until this time calls use scripts, because the library could not be loaded just now. 0:
        # no load has failed.
        self._scripts_until = 0.0
        self.postponed = Postponed(self)
        # These scripts, or the library, are being loaded. A call sent behind finds them.
        self._loading: set[str] = set()
        # This timer checks whether the oldest call was answered in time.
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self.connection = Connection(connection, self._replied, self._lose)
        self._eviction = Eviction(client.loop, client.topology, endpoint, self.send_command)

    @property
    def busy(self) -> bool:
        calls = [*self.postponed.calls, *self.calls]
        return any(isinstance(call, Call) and not call.sender.optional for call in calls)

    # Sending --------------------------------------------------------------------------------------

    def send_at_once(self, sender: Sender) -> bool:
        """Send a call of `sender` now. False: nothing is sent, so the caller sends it later.

        While other calls are in flight, it is better sent at the end of the loop's turn, in one
        write with those of other senders. But while the connection buffers commands, it will write
        this one together with them.
        """
        busy = self.calls and not self.connection.is_buffering()
        if self.writing or self.closed or busy:
            return False
        try:
            now, command = self.client.loop.time(), sender.command()
            if command is not None:
                self.send_call(Call(sender, command, now, now))
        except BaseException:
            self.client.sending.put_off(sender)
            raise
        return True

    def send_call(self, call: Call) -> None:
        if self._watch is None:
            self._watch = self.client.loop.call_later(REPLY_TIMEOUT, self._look_at_calls)
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
        command = call.command
        script = command.script
        must_write = False
        if command.for_others and self.client.topology.may_ping:
            must_write = self._ping_first()
        if call.there is not None:
            self.send_command(_ignore, "ASKING")
        name = ("FCALL", script.function) if self._by_function() else ("EVALSHA", script.digest)
        self.send_command(call, *name, *command.words)
        if must_write:
            self.connection.write()

    def _ping_first(self) -> bool:
        """Send a PING in one write with the next command. True: the caller has to call `write`.

        The call is a release of client A that may grant a permit to client B. The script notifies B
        before A gets its reply. But a server writes last to the connection that first had output
        (Redis and Valkey, putClientInPendingWriteQueue in networking.c), so it would write to A
        first. With the reply to a PING, A has output before B, and the server writes to B first.
        In a fleet that saves a quarter of a hand-off (python -m benchmarks.fleet).
        """
        must_write = self.connection.buffer()
        self.send_command(self._note_ping_reply, "PING")
        return must_write

    def _note_ping_reply(self, reply: Any) -> None:
        """Send no PING if the ACL refuses it: each refusal would add a line of the ACL LOG."""
        if isinstance(reply, HiredisError) and str(reply).startswith("NOPERM"):
            self.client.topology.may_ping = False

    def send_command(self, receiver: Call | Callable[[Any], None], *words: str | bytes) -> None:
        """Send a command. `receiver` gets the reply."""
        command = pack(words)
        self.writing = True
        self.calls.append(receiver)
        self.connection.send(command)
        self.writing = False

    def _by_function(self) -> bool:
        over = not self._scripts_until or self.client.loop.time() >= self._scripts_until
        return over and self.client.topology.may_use_functions

    def _look_at_calls(self) -> None:
        """Cut the connection if the server has not answered the oldest call in time."""
        self._watch = None
        oldest = next((call for call in self.calls if isinstance(call, Call)), None)
        if oldest is None:
            if self.client.topology.several:
                self._idle = self.client.loop.call_later(IDLE, self._rest)
        else:
            left = oldest.sent + REPLY_TIMEOUT - self.client.loop.time()
            if left > 0:
                self._watch = self.client.loop.call_later(left, self._look_at_calls)
            else:
                self.connection.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))

    def _rest(self) -> None:
        """Close an unused connection: a process may use each server of a Cluster for a moment."""
        self._idle = None
        if not (self.calls or self.postponed.calls):
            self.client.leave(self)

    # Replies --------------------------------------------------------------------------------------

    def _replied(self, reply: Any) -> None:
        call = self.calls[0]
        del self.calls[0]  # `del` is no function call: no signal handler runs before the `try`
        try:
            if not isinstance(call, Call):
                call(reply)
                return
            if call.by_text:
                self._loading.discard(call.command.script.digest)
            if call.refusal:
                text = A_SENTINEL if said_by_sentinel(reply) else call.refusal
                self.answer(call, ResponseError(text))
            elif isinstance(reply, HiredisError):
                self._refused(call, str(reply))
            else:
                self.answer(call, reply)
        except BaseException:  # of a signal handler
            if isinstance(call, Call):
                self.client.sending.put_off(call.sender)
            raise

    def _refused(self, call: Call, refusal: str) -> None:
        """Retry a call that was refused before the server did anything. Otherwise it fails."""
        elsewhere = ELSEWHERE.fullmatch(refusal)
        if is_unknown("FCALL", refusal) or is_denied("FCALL", refusal):
            self.client.topology.may_use_functions = False
            self.send_call(call)
        elif refusal.startswith(MISSING):
            self._load(call)
        elif elsewhere:
            self._redirect(call, *elsewhere.groups())
        elif refusal.startswith(NOT_NOW):
            self._not_now(call, refusal)
        elif is_unknown("EVALSHA", refusal):
            # This may be a Sentinel. Its answer to ROLE gives the error its text.
            self.send_command(call._replace(refusal=refusal), "ROLE")
        else:
            self.answer(call, ResponseError(refusal))

    def answer(self, call: Call, reply: Any) -> None:
        """Give the sender its reply, or the error with which its call has failed."""
        client = self.client
        if TELEMETRY.on:
            seconds = client.loop.time() - call.sent
            note_call(client.topology, self.endpoint, reply, seconds)
        try:
            client.availability.note_reply(call, reply, self)
            call.sender.answered(reply)
        except Exception as senseless:
            call.sender.failed(cannot(client.topology, senseless))
            self.connection.cut(senseless)

    def _not_now(self, call: Call, refusal: str) -> None:
        """The server cannot run the call now: retry later, here or elsewhere, or fail.

        The connection to a server that has become a replica is cut in any case: its address may
        lead to another server by now.
        """
        lacks_keys = refusal.startswith("TRYAGAIN") and call.may_lack_keys
        if lacks_keys and self.client.topology.may_use_functions:
            self._create_keys(call)
            return
        reconnection, demoted = self.client.reconnection, refusal.startswith("READONLY")
        if refusal.startswith("CLUSTERDOWN"):
            call.sender.node = None
            reconnection.check_topology(self)
        self.client.availability.note_refusal(call)
        # If the server was demoted, the call leaves for another one at once. So it keeps `sent_on`:
        # otherwise two servers could send it to each other for ever. Other calls pause first.
        again = call._replace(there=None, sent_on=call.sent_on and demoted)
        if not reconnection.may_retry(call):
            self.answer(call, ResponseError(refusal))
        elif demoted:
            reconnection.add_unrouted(again)
        elif refusal.startswith(UNREADY):
            self.postponed.add(again, refusal)
        else:
            self.client.sending.send_later(again)
        if demoted:
            self.connection.cut(ReadOnlyError(refusal))

    def _create_keys(self, call: Call) -> None:
        """Create the keys of a new name while its slot moves.

        The server that takes the slot runs a call only if all its keys exist, or if it has a single
        key. So each key is created by a command of its own, unless it exists.

        Redis 6.2, which has no functions, redirects a call even if it lacks only one key. Its other
        keys have still to move, and placeholders would block them. So the client creates none.
        """
        for key, (verb, *words) in zip(call.command.keys, PLACEHOLDERS, strict=True):
            for command in ((verb, key, *words), ("PEXPIRE", key, MINUTE, "NX")):
                self.send_command(_ignore, "ASKING")
                self.send_command(_ignore, *command)
        self.send_call(call._replace(keys_created=True))

    def _redirect(self, call: Call, word: str, slot: str, host: str, port: str) -> None:
        server = self.client.topology.server(host, int(port), self.endpoint)
        if server is None:
            text = (
                f"it is one of a Cluster, and {word} says that this name is at another: "
                "begin its URL with redis+cluster://"
            )
            self.answer(call, ResponseError(text))
            return
        # A redirect shows that the server answers, so the waiting calls leave, too.
        self.postponed.send_all()
        if word == "MOVED":
            self.client.topology.moved(int(slot), server)
            call.sender.node = None
        onward = call._replace(
            command=call.command.unnotified(),
            there=server if word == "ASK" else None,
            sent_on=True,
        )
        if not call.sent_on:
            self.client.sending.send_again(onward)
            return
        # Two servers may name each other for a moment while a slot moves.
        self.client.availability.note_refusal(onward)
        if self.client.reconnection.may_retry(onward):
            self.client.sending.send_later(onward)
        else:
            text = f"TRYAGAIN its servers disagree about who has this name: {word} {slot}"
            self.answer(onward, ResponseError(text))

    def _load(self, call: Call) -> None:
        script = call.command.script
        missing = LIBRARY if self._by_function() else script.digest
        if missing in self._loading:
            self.send_call(call)
            return
        self._loading.add(missing)
        if missing == LIBRARY:
            self.send_command(self._loaded, "FUNCTION", "LOAD", library().text)
            self.send_call(call)
        else:
            if call.there is not None:
                self.send_command(_ignore, "ASKING")
            self.send_command(call._replace(by_text=True), "EVAL", script.text, *call.command.words)

    def _loaded(self, reply: Any) -> None:
        """If the library cannot be loaded, now or ever, calls use scripts instead."""
        self._loading.discard(LIBRARY)
        refusal = str(reply).lower() if isinstance(reply, HiredisError) else ""
        if refusal.startswith(("noperm", "err unknown")):
            self.client.topology.may_use_functions = False
        elif refusal and "already exists" not in refusal:
            self._scripts_until = self.client.loop.time() + REPLY_TIMEOUT

    # Ending ---------------------------------------------------------------------------------------

    def withdraw(self, sender: Sender) -> None:
        """Withdraw the call of `sender`, which an exception has interrupted.

        The server may have received it. Then each later reply would go to the wrong call, so the
        connection ends.
        """
        self.postponed.withdraw(sender)
        calls = self.calls
        self.calls = deque(
            call for call in calls if not (isinstance(call, Call) and call.sender is sender)
        )
        # A redirected call is in flight here, while its sender's node may be another one.
        if sender.node is self or len(self.calls) < len(calls):
            self.connection.cut(ConnectionError("a call was interrupted"))

    def _lose(self, lost: Exception) -> None:
        self._end()
        calls, self.calls = self.calls, deque()
        waiting, self.postponed.calls = self.postponed.calls, deque()
        in_flight = [call._replace(refusal="") for call in calls if isinstance(call, Call)]
        self.client.lost(self, [*in_flight, *waiting], lost)

    def close(self) -> None:
        self._end()
        self.connection.close()

    def _end(self) -> None:
        self.closed = True
        self._eviction.stop()
        self.postponed.halt()
        for timer in (self._watch, self._idle):
            if timer is not None:
                timer.cancel()
        self._watch = self._idle = None


def _ignore(reply: Any) -> None:
    """Ignore this reply. The call behind it gets an answer in any case."""
