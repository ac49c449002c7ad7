"""A peer: one server that a link is connected to, and the calls that are on their way there.

Here live sending and hearing on one connection, what a server may lack (the library, a moment), and the watch over its silence.
Where a call goes when this is not the place, and what becomes of calls whose connection is lost, is the link's.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hiredis import HiredisError
from redis.exceptions import ReadOnlyError, ResponseError

from headgate.stores.redis.protocol.messages import Command, without_claim
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.transport.connection import Connection, packed
from headgate.stores.redis.transport.endpoint import (
    A_SENTINEL,
    REPLY_TIMEOUT,
    is_unknown,
    said_by_sentinel,
)
from headgate.stores.redis.transport.eviction_check import Eviction

if TYPE_CHECKING:
    import asyncio

    from redis.asyncio.connection import AbstractConnection

    from headgate.errors import StoreError
    from headgate.stores.redis.transport.endpoint import Endpoint
    from headgate.stores.redis.transport.topology import Topology

LIBRARY = "library"
IDLE = 60.0  # seconds after which one of several servers is left that nothing was said to
UNREADY = (
    "LOADING",
    "BUSY ",
    "CLUSTERDOWN The cluster",
    "MASTERDOWN",
)  # so the server refuses everybody before the script began
ELSEWHEN = ("CLUSTERDOWN", "TRYAGAIN")  # so it refuses one name, whose slot is on its way
NOT_NOW = (*UNREADY, *ELSEWHEN, "READONLY")
MISSING = ("NOSCRIPT", "ERR Function not found")
# What a key may hold of which a name takes no notice, new or known: see shared.lua. It lives for a minute, or as long as the name.
PLACEHOLDERS = ("HSET", "told", ""), ("ZADD", 0, "-"), ("ZADD", "inf", "end")
MINUTE = 60_000
# A server writes last to the connection that had something to hear first (putClientInPendingWriteQueue in networking.c, Redis and
# Valkey). With a word before it, the reply to a call goes out behind what the call announces: who hears that does not wait for one
# more write, and for one more process to wake up. Beside a fleet that is a quarter of a hand-off (python -m benchmarks.fleet).
PING = ("PING",)
ELSEWHERE = re.compile(r"(MOVED|ASK) (\d+) (.*):(\d+)")


class Sender(Protocol):
    """The source of calls under one key. The transport knows no more of it."""

    node: Node | None  # the connection that its calls use, as far as the client knows
    met: bool | None  # whether its last call was answered; None: it has made none

    @property
    def key(self) -> str: ...
    @property
    def waits(self) -> bool: ...
    def command(self) -> Command: ...
    def answered(self, reply: Any) -> None: ...
    def failed(self, error: StoreError) -> None: ...
    def adrift(self, lost: BaseException, spent: float) -> None: ...
    def heard(self, notification: str) -> None: ...
    def look(self) -> None: ...
    def doubt(self) -> None: ...
    def patience(self) -> list[float | None]: ...
    def send_operations(self) -> None: ...


class Call(NamedTuple):
    """One command on its way."""

    sender: Sender
    command: Command
    first: float  # when it was sent for the first time, by the loop's clock, and
    sent: float  # for the last time
    there: Endpoint | None = None  # it is to be asked for there this once: its slot is being moved
    sent_on: bool = (
        False  # by one server to another: two that disagree must not send it round and round
    )
    keys_created: bool = False  # its keys were made where it is to be asked for
    by_text: bool = False  # it brings the script that it names


class Retrying(Protocol):
    """What a node asks about calls that its server does not carry out now."""

    def check_topology(self, node: Node) -> None: ...
    def add_unrouted(self, call: Call) -> None: ...
    def may_retry(self, call: Call) -> bool: ...
    def watch_deadline(self, call: Call) -> None: ...
    def note_reply(self, call: Call) -> None: ...
    def next_backoff(self, server: Endpoint | None) -> float: ...


class Router(Protocol):
    """What a node asks of the client that has made it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def topology(self) -> Topology: ...
    @property
    def reconnection(self) -> Retrying: ...
    def answered(self, call: Call, reply: Any, node: Node) -> None: ...
    def lost(self, node: Node, calls: list[Call], lost: Exception) -> None: ...
    def leave(self, node: Node) -> None: ...
    def send_again(self, call: Call) -> None: ...
    def send_later(self, call: Call) -> None: ...


class Node:
    """One connection. Replies come in the order of what was sent: a call's, or what hears anything else."""

    def __init__(self, client: Router, endpoint: Endpoint, connection: AbstractConnection) -> None:
        self.endpoint = endpoint
        self.sending = False  # the collector may drop permits in the middle of sending, and they may not be sent in between
        self.closed = False
        self.calls: deque[Call | Callable[[Any], None]] = deque()
        self.client = client
        self._loop = client.loop
        self._scripts_until = 0.0  # the library could not be loaded just now
        self.waiting: deque[Call] = deque()  # until the server is ready
        self._refusal = ""  # what it has said to the last of them
        self._retry_timer: asyncio.TimerHandle | None = None  # of the first of them
        self._loading: set[str] = (
            set()
        )  # what is being loaded: who needs it too comes behind and need not bring it again
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._connection = Connection(connection, self._replied, self._lose)
        self.keep, self.keeps, self.write = (
            self._connection.keep,
            self._connection.keeps,
            self._connection.write,
        )
        self._may_ping = True
        self._eviction = Eviction(self._loop, client.topology, endpoint, self.send)

    @property
    def cannot_send(self) -> bool:
        """Whether nothing can be said this moment. In the middle of sending, the collector may have dropped a permit."""
        return self.sending or self.closed

    @property
    def busy(self) -> bool:
        return bool(self.waiting) or any(isinstance(call, Call) for call in self.calls)

    # Sending -------------------------------------------------------------------------------------------------------------

    def say(self, call: Call) -> None:
        if self._watch is None:
            self._begin_watch()
        script, words, for_others = call.command
        writes = for_others and self._may_ping and self._ping_first()
        if call.there is not None:
            self.send(_anything, "ASKING")
        name = ("FCALL", script.function) if self._by_function() else ("EVALSHA", script.digest)
        self.send(call, *name, *words)
        if writes:
            self.write()

    def _ping_first(self) -> bool:
        """Say a word before what comes now, in one write with it; whether nobody else will write."""
        writes = self.keep()
        self.send(self._note_ping_reply, *PING)
        return writes

    def _note_ping_reply(self, reply: Any) -> None:
        """Whom the server does not let say it goes without: each refusal would be a line of its ACL LOG."""
        self._may_ping = not (isinstance(reply, HiredisError) and str(reply).startswith("NOPERM"))

    def send(self, hears: Call | Callable[[Any], None], *words: Any) -> None:
        command = packed(*words)
        self.sending = True
        self.calls.append(hears)
        self._connection.send(command)
        self.sending = False

    def _by_function(self) -> bool:
        return self.client.topology.functions and self._loop.time() >= self._scripts_until

    def _begin_watch(self) -> None:
        self._watch = self._loop.call_later(REPLY_TIMEOUT, self._look_at_calls)
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _look_at_calls(self) -> None:
        """A server that does not answer in time is as good as gone."""
        self._watch = None
        oldest = next((call for call in self.calls if isinstance(call, Call)), None)
        if oldest is None:
            if self.client.topology.several:
                self._idle = self._loop.call_later(IDLE, self._rest)
        else:
            left = oldest.sent + REPLY_TIMEOUT - self._loop.time()
            if left > 0:
                self._watch = self._loop.call_later(left, self._look_at_calls)
            else:
                self.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))

    def _rest(self) -> None:
        """A process may have used names of all servers of a Cluster, each for a moment."""
        self._idle = None
        if not (self.calls or self.waiting):
            self.client.leave(self)

    # Hearing -------------------------------------------------------------------------------------------------------------

    def _replied(self, reply: Any) -> None:
        call = self.calls.popleft()
        if not isinstance(call, Call):
            call(reply)
            return
        if call.by_text:
            self._loading.discard(call.command.script.digest)
        if isinstance(reply, HiredisError):
            self._refused(call, str(reply))
        else:
            self.client.answered(call, reply, self)

    def _refused(self, call: Call, refusal: str) -> None:
        """The server may have refused before anything was done: then it gets what it lacks, or a moment, or another is asked."""
        elsewhere = ELSEWHERE.fullmatch(refusal)
        if has_no_functions(refusal):
            self.client.topology.functions = False
            self.say(call)
        elif refusal.startswith(MISSING):
            self._load(call)
        elif elsewhere:
            self._redirect(call, *elsewhere.groups())
        elif refusal.startswith(NOT_NOW):
            self._not_now(call, refusal)
        elif is_unknown("EVALSHA", refusal):
            self.send(partial(self._without_scripts, call, refusal), "ROLE")
        else:
            self.client.answered(call, ResponseError(refusal), self)

    def _without_scripts(self, call: Call, refusal: str, role: Any) -> None:
        text = A_SENTINEL if said_by_sentinel(role) else refusal
        self.client.answered(call, ResponseError(text), self)

    def _not_now(self, call: Call, refusal: str) -> None:
        """A server that is a replica by now is left in any case: another may be named instead, or its address lead to another."""
        if (
            refusal.startswith("TRYAGAIN")
            and call.there is not None
            and not call.keys_created
            and self.client.topology.functions
        ):
            self._create_keys(call)
            return
        if refusal.startswith("CLUSTERDOWN"):
            call.sender.node = None
            self.client.reconnection.check_topology(self)
        demoted = refusal.startswith("READONLY")
        self.client.reconnection.note_reply(call)
        if not self.client.reconnection.may_retry(call):
            self.client.answered(call, ResponseError(refusal), self)
        elif demoted:
            self.client.reconnection.add_unrouted(call._replace(there=None))
        elif refusal.startswith(UNREADY):
            self._postpone(call._replace(there=None, sent_on=False), refusal)
        else:
            self.client.send_later(call._replace(there=None, sent_on=False))
        if demoted:
            self.cut(ReadOnlyError(refusal))

    def _create_keys(self, call: Call) -> None:
        """A name that is new in a slot on its way: where that comes from there is no key of it, and where it goes a call is let in
        that finds all its keys, or has but one. So each is made by itself, unless it is there.

        Not on Redis 6.2, which has no functions: it sends on who lacks one key, and the others must find their places free.
        """
        keys = call.command.words[1 : 1 + call.command.words[0]]
        for key, (verb, *words) in zip(keys, PLACEHOLDERS, strict=False):
            for command in ((verb, key, *words), ("PEXPIRE", key, MINUTE, "NX")):
                self.send(_anything, "ASKING")
                self.send(_anything, *command)
        self.say(call._replace(keys_created=True))

    def _postpone(self, call: Call, refusal: str) -> None:
        """Who comes now comes later: one after the other, until one is answered."""
        self.waiting.append(call)
        self._refusal = refusal
        self.client.reconnection.watch_deadline(call)
        if self._retry_timer is None:
            self._try_later()

    def _try_later(self) -> None:
        self._retry_timer = self._loop.call_later(
            self.client.reconnection.next_backoff(self.endpoint), self._try_one
        )

    def _try_one(self) -> None:
        self._retry_timer = None
        if self.waiting:
            call = self.waiting.popleft()
            if self.waiting:
                self._try_later()
            self.client.send_again(call)

    def ready(self) -> None:
        """It has answered somebody: all may ask."""
        for call in self._take_waiting():
            self.client.send_again(call)

    def send_on(self) -> None:
        """Who has been held, and whose name is at another server by now, is sent there."""
        waiting, where = self._take_waiting(), self.client.topology.where
        self.waiting.extend(call for call in waiting if where(call.sender.key) is self.endpoint)
        for call in waiting:
            if where(call.sender.key) is not self.endpoint:
                self.client.send_again(call)

    def _take_waiting(self) -> deque[Call]:
        waiting, self.waiting = self.waiting, deque()
        return waiting

    def check_deadlines(self) -> None:
        """Who has been held for long enough is text what the server says."""
        waiting, self.waiting = self.waiting, deque()
        self.waiting.extend(call for call in waiting if self.client.reconnection.may_retry(call))
        for call in waiting:
            if not self.client.reconnection.may_retry(call):
                self.client.answered(call, ResponseError(self._refusal), self)

    def _redirect(self, call: Call, word: str, slot: str, host: str, port: str) -> None:
        server = self.client.topology.server(host, int(port), self.endpoint)
        if server is None:
            text = f"it is one of a Cluster, and {word} says that this name is at another: begin its URL with redis+cluster://"
            self.client.answered(call, ResponseError(text), self)
            return
        self.ready()
        if word == "MOVED":
            self.client.topology.moved(int(slot), server)
            call.sender.node = None
        there = server if word == "ASK" else None
        onward = call._replace(command=without_claim(call.command), there=there, sent_on=True)
        if call.sent_on:
            self._disagreed(onward, f"{word} {slot}")
        else:
            self.client.send_again(onward)

    def _disagreed(self, call: Call, text: str) -> None:
        """While a slot changes hands each of two servers may name the other, for a moment."""
        self.client.reconnection.note_reply(call)
        if self.client.reconnection.may_retry(call):
            self.client.send_later(call)
        else:
            self.client.answered(
                call,
                ResponseError(f"TRYAGAIN its servers disagree about who has this name: {text}"),
                self,
            )

    def _load(self, call: Call) -> None:
        script, words, _ = call.command
        missing = LIBRARY if self._by_function() else script.digest
        if missing in self._loading:
            self.say(call)
            return
        self._loading.add(missing)
        if missing == LIBRARY:
            self.send(self._loaded, "FUNCTION", "LOAD", library().text)
            self.say(call)
        else:
            if call.there is not None:
                self.send(_anything, "ASKING")
            self.send(call._replace(by_text=True), "EVAL", script.text, *words)

    def _loaded(self, reply: Any) -> None:
        """The library is there, perhaps because somebody else was faster; where it cannot be now, or ever, scripts will do."""
        self._loading.discard(LIBRARY)
        refusal = str(reply).lower() if isinstance(reply, HiredisError) else ""
        if refusal.startswith(("noperm", "err unknown")):
            self.client.topology.functions = False
        elif refusal and "already exists" not in refusal:
            self._scripts_until = self._loop.time() + REPLY_TIMEOUT

    # Ending --------------------------------------------------------------------------------------------------------------

    def cut(self, lost: Exception) -> None:
        self._connection.cut(lost)

    def _lose(self, lost: Exception) -> None:
        self._end()
        calls, self.calls = self.calls, deque()
        self.client.lost(
            self, [*(call for call in calls if isinstance(call, Call)), *self._take_waiting()], lost
        )

    def close(self) -> None:
        self._end()
        self._connection.close()

    def _end(self) -> None:
        self.closed = True
        self._eviction.stop()
        for timer in (self._watch, self._idle, self._retry_timer):
            if timer is not None:
                timer.cancel()
        self._watch = self._idle = self._retry_timer = None


def has_no_functions(refusal: str) -> bool:
    """A server that is too old for functions, or lets this user call none."""
    return is_unknown("FCALL", refusal) or (
        refusal.startswith("NOPERM") and "'fcall'" in refusal.lower()
    )


def _anything(reply: Any) -> None:
    """Whatever the server says to this, the call behind it is answered."""
