"""The shortcut for threads: a blocking acquire that can pass this instant asks the server itself, without the portal's loop.

Here lives one blocking connection for each process and server, used by turns: a thread that finds it taken goes by the portal, and
so does every acquire that has to wait, or whose server is not known or has changed. Only the quick script travels here, so nothing
is ever left behind in the queue.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from hiredis import HiredisError, Reader, pack_command

from headgate.gate.gate import Grant
from headgate.stores.redis.endpoint import REPLY_TIMEOUT, SILENCE
from headgate.stores.redis.script import library

if TYPE_CHECKING:
    import socket

    from headgate.request import Request
    from headgate.stores.redis.endpoint import Endpoint
    from headgate.stores.redis.line import RedisLine
    from headgate.stores.redis.topology import Topology


class Passed(NamedTuple):
    """A grant, who has it, until when it is held for certain (None: it holds nothing), and for which lease it was granted."""

    grant: Grant
    caller: str
    believed: float | None
    lease: int


class Shortcut:
    """The blocking connections to one store."""

    def __init__(self, topology: Topology) -> None:
        self.process = os.getpid()
        self._topology = topology
        self._lock = threading.Lock()
        self._talks: dict[Endpoint, Talk] = {}
        self._session = f"{secrets.token_hex(16)}.0"
        self._calls = 0

    def acquire(self, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        """A grant for this instant; None: ask properly. `unsure` hears of a caller of whom nobody knows whether it was granted."""
        if line.declares or not self._lock.acquire(blocking=False):
            return None
        try:
            server = self._topology.where(line.key)
            return None if server is None else self._ask(server, line, request, unsure)
        finally:
            self._lock.release()

    def _ask(self, server: Endpoint, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        patience = REPLY_TIMEOUT if request.max_sleep is None else SILENCE
        if server not in self._talks and not self._open(server, patience):
            return None
        self._calls += 1
        caller, declared = f"{self._session}:{self._calls}:{request.text}", line.declared
        believed = monotonic() + declared.lease / 1_000_000 if declared.holds else None
        keys = line.keys(declared)
        header = (len(keys), *keys, declared.program, self._session, self._calls)
        words = (*header, self._calls, request.text, *declared.costs(request.units))
        try:
            reply = self._exchange_surely(server, words, patience)
            if str(reply).startswith("READONLY"):
                self._close(server)  # a name may lead to another one now
            return passed(reply, caller, believed, declared.lease)
        except BaseException as lost:
            self._close(server)
            unsure(caller)
            if not isinstance(lost, Exception):
                raise
            return None

    def _exchange_surely(self, server: Endpoint, words: tuple[Any, ...], patience: float) -> Any:
        """A call whose reply was lost is made once more, byte for byte: the script knows its number, and does nothing twice."""
        try:
            return self._exchange(server, words, patience)
        except TimeoutError:
            raise  # one silence is enough
        except (OSError, HiredisError):
            self._close(server)
            if not self._open(server, patience):
                raise
            return self._exchange(server, words, patience)

    def _exchange(self, server: Endpoint, words: tuple[Any, ...], patience: float) -> Any:
        quick = library().quick
        name = ("FCALL", quick.function) if self._topology.functions else ("EVALSHA", quick.digest)
        return self._talks[server].exchange(pack_command((*name, *words)), patience)

    def _open(self, server: Endpoint, patience: float) -> bool:
        connection = server.blocking(patience)
        try:
            connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        except Exception:
            return False  # the portal finds the words for that
        its, connection._sock = connection._sock, None  # as in wire.py: ours from here on
        assert its is not None, "it was made just now"
        self._talks[server] = Talk(its, patience)
        return True

    def _close(self, server: Endpoint) -> None:
        talk = self._talks.pop(server, None)
        if talk is not None:
            talk.close()


class Talk:
    """One command, one reply. When it is dropped its socket is closed, and has no time to complain: it is not dropped with it."""

    def __init__(self, its: socket.socket, patience: float) -> None:
        self._socket = its
        self._patience = patience
        self._reader = Reader()
        self.close: Callable[[], object] = weakref.finalize(self, its.close)

    def exchange(self, command: bytes, patience: float) -> Any:
        if patience != self._patience:
            self._socket.settimeout(patience)
            self._patience = patience
        self._socket.sendall(command)
        while (reply := self._reader.gets()) is False:
            data = self._socket.recv(4096)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._reader.feed(data)
        return reply


def passed(reply: Any, caller: str, believed: float | None, lease: int) -> Passed | None:
    """What the quick script said: "session number ok now -1 0 grant 1 0 fence |", or nothing, or a limit we do not know."""
    words = reply.decode().split(" ") if isinstance(reply, bytes) else []  # an error: the portal finds the words for it
    if len(words) < 10 or words[2] != "ok" or caller.split(":")[:2] != words[:2]:
        return None
    now = int(words[3])
    return Passed(Grant(now + int(words[8]), now + int(words[9])), caller, believed, lease)
