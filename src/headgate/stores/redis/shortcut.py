"""The shortcut for threads: a blocking acquire that can pass this instant asks the server itself, without the portal's loop.

Here lives one blocking connection for each process and server, used by turns: a thread that finds it taken goes by the portal, and
so does every acquire that has to wait. Only the quick script travels here, so nothing is ever left behind in the queue.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from hiredis import HiredisError, Reader, pack_command

from headgate.gate.gate import Grant
from headgate.stores.redis.script import library

if TYPE_CHECKING:
    import socket

    from headgate.request import Request
    from headgate.stores.redis.endpoint import Endpoint
    from headgate.stores.redis.line import RedisLine


class Passed(NamedTuple):
    """A grant, who has it, and until when it is held for certain (None: it holds nothing)."""

    grant: Grant
    caller: str
    believed: float | None


class Shortcut:
    """One blocking connection to a server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.process = os.getpid()
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._reader = Reader()
        self._session = f"{secrets.token_hex(16)}.0"
        self._calls = 0

    def acquire(self, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        """A grant for this instant; None: ask properly. `unsure` hears of a caller of whom nobody knows whether it was granted."""
        if line.declares or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask(line, request, unsure)
        finally:
            self._lock.release()

    def _ask(self, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        if self._socket is None and not self._open():
            return None
        self._calls += 1
        caller, declared = f"{self._session}:{self._calls}:{request.text}", line.declared
        believed = monotonic() + declared.lease / 1_000_000 if declared.holds else None
        keys = line.keys(declared)
        header = (len(keys), *keys, declared.program, self._session, self._calls)
        words = (*header, self._calls, request.text, *declared.costs(request.units))
        try:
            return passed(self._exchange_surely(words), caller, believed)
        except BaseException as lost:
            self._close()
            unsure(caller)
            if not isinstance(lost, Exception):
                raise
            return None

    def _exchange_surely(self, words: tuple[Any, ...]) -> Any:
        """A call whose reply was lost is made once more, byte for byte: the script knows its number, and does nothing twice."""
        try:
            return self._exchange(words)
        except (OSError, HiredisError):
            self._close()
            if not self._open():
                raise
            return self._exchange(words)

    def _open(self) -> bool:
        connection = self._endpoint.blocking()
        try:
            connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        except Exception:
            return False  # the portal finds the words for that
        self._reader = Reader()
        self._socket, connection._sock = connection._sock, None  # as in wire.py: ours from here on
        return True

    def _exchange(self, words: tuple[Any, ...]) -> Any:
        socket, reader, quick = self._socket, self._reader, library().quick
        assert socket is not None, "it was opened for this call"
        name = ("FCALL", quick.function) if self._endpoint.functions else ("EVALSHA", quick.digest)
        socket.sendall(pack_command((*name, *words)))
        while (reply := reader.gets()) is False:
            data = socket.recv(4096)
            if not data:
                raise ConnectionError("the server closed the connection")
            reader.feed(data)
        return reply

    def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()

    def __del__(self) -> None:
        self._close()


def passed(reply: Any, caller: str, believed: float | None) -> Passed | None:
    """What the quick script said: "session number ok now -1 0 grant 1 moment fence |", or nothing, or a limit we do not know."""
    words = reply.decode().split(" ") if isinstance(reply, bytes) else []  # an error: the portal finds the words for it
    if len(words) < 10 or words[2] != "ok" or caller.split(":")[:2] != words[:2]:
        return None
    return Passed(Grant(int(words[8]), int(words[9])), caller, believed)
