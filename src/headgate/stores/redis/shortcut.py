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

from hiredis import pack_command
from redis.exceptions import NoScriptError, ResponseError

from headgate.gate.gate import Grant
from headgate.stores.redis.script import quick

if TYPE_CHECKING:
    from redis.connection import AbstractConnection

    from headgate.request import Request
    from headgate.stores.redis.endpoint import Endpoint
    from headgate.stores.redis.line import RedisLine


class Passed(NamedTuple):
    """A grant, who holds it, and when it was asked for."""

    grant: Grant
    caller: str
    sent: float


class Shortcut:
    """One blocking connection to a server."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.process = os.getpid()
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._connection: AbstractConnection | None = None
        self._session = ""
        self._calls: dict[str, int] = {}

    def acquire(self, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        """A grant for this instant; None: ask properly. `unsure` hears of a caller of whom nobody knows whether it was granted."""
        if line.declares or not self._lock.acquire(blocking=False):
            return None
        try:
            return self._ask(line, request, unsure)
        finally:
            self._lock.release()

    def _ask(self, line: RedisLine, request: Request, unsure: Callable[[str], None]) -> Passed | None:
        connection = self._connection or self._open()
        if connection is None:
            return None
        number = self._calls[line.key] = self._calls.get(line.key, 0) + 1
        caller, sent = f"{self._session}:{number}:{request.text}", monotonic()
        header = (len(line.keys), *line.keys, line.declared.program, 0, self._session, number, 0, 0)
        try:
            reply = exchange(connection, (*header, number, request.text, *line.declared.costs(request.units)))
        except ResponseError:
            return None  # the portal finds the words for what the server refuses
        except BaseException as lost:
            self._close()
            unsure(caller)
            if not isinstance(lost, Exception):
                raise
            return None
        return passed(reply, caller, sent)

    def _open(self) -> AbstractConnection | None:
        connection = self._endpoint.blocking()
        try:
            connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves these unannotated
        except Exception:
            return None  # the portal finds the words for that too
        self._session, self._calls = f"{secrets.token_hex(16)}.0", {}
        self._connection = connection
        return connection

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()  # type: ignore[no-untyped-call]


def exchange(connection: AbstractConnection, words: tuple[Any, ...]) -> Any:
    script = quick()
    send(connection, "EVALSHA", script.digest, *words)
    try:
        return connection.read_response()
    except NoScriptError:
        send(connection, "EVAL", script.text, *words)
        return connection.read_response()


def send(connection: AbstractConnection, *command: Any) -> None:
    connection.send_packed_command([pack_command(command)], check_health=False)  # type: ignore[no-untyped-call]


def passed(reply: Any, caller: str, sent: float) -> Passed | None:
    """What the quick script said: "session number ok now -1 0 grant 1 moment fence |", or nothing, or a limit we do not know."""
    words = reply.decode().split(" ") if reply is not None else []
    if len(words) < 10 or words[2] != "ok" or caller.split(":")[:2] != words[:2]:
        return None
    return Passed(Grant(int(words[8]), int(words[9])), caller, sent)
