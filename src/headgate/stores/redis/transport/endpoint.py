"""One server, and how to connect to it.

headgate makes its own connections of redis-py. It uses no pool, no retries and no decoding of the
user's client. So none of these can run a script twice, or leave a waiter without a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import redis.connection
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry as BlockingRetry

from headgate.stores.redis.transport.connection import (
    REPLY_TIMEOUT,
    close_sockets,
    detached,
    hang_up,
)
from headgate.stores.redis.transport.failures import NotThereError
from headgate.stores.redis.transport.tasks import is_cancelled

CONNECT_TIMEOUT = 5.0  # In seconds. A socket_connect_timeout of the user has precedence.
# An unavailable server causes these errors.
LOST = RedisError, OSError, TimeoutError, asyncio.IncompleteReadError
A_SENTINEL = (
    "it is a Sentinel, which keeps no limits itself: begin its URL with redis+sentinel:// and "
    "name the service, as in redis+sentinel://host:26379/service/0"
)
# The blocking class of each asyncio connection class.
BLOCKING: dict[type[AbstractConnection], Any] = {
    SSLConnection: redis.connection.SSLConnection,
    UnixDomainSocketConnection: redis.connection.UnixDomainSocketConnection,
    Connection: redis.connection.Connection,
}


def is_unknown(command: str, refusal: str) -> bool:
    """Whether the server does not know `command`. redis-py drops the first word, ERR."""
    said = refusal.lower().removeprefix("err ").replace("`", "'")  # Redis before 7 writes `.
    return said.startswith(f"unknown command '{command.lower()}'")


def is_denied(command: str, refusal: str) -> bool:
    """Whether this user may not use `command`."""
    return refusal.startswith("NOPERM") and f"'{command.lower()}'" in refusal.lower()


def said_by_sentinel(role: Any) -> bool:
    """Whether this reply to ROLE comes from a Sentinel."""
    return isinstance(role, list) and role[:1] == [b"sentinel"]


async def stay_open(*_: object, **__: object) -> None:
    """Do nothing, in place of redis-py's `disconnect`.

    Outside a running loop, that one may drop the stream without closing it.
    """


def close(connection: AbstractConnection, loop: asyncio.AbstractEventLoop) -> None:
    if connection._writer is not None:
        hang_up(detached(connection), loop)


def comparable(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset((name, comparable(each)) for name, each in value.items())
    return value if isinstance(value, (str, bytes, int, float)) else ("object", id(value))


class Endpoint:
    """The address and the settings of one server, for new connections to it."""

    def __init__(self, kind: type[AbstractConnection], settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self._settings = {**settings}
        if self._settings.get("socket_connect_timeout") is None:
            self._settings["socket_connect_timeout"] = CONNECT_TIMEOUT
        if self._settings.get("db"):
            # hiredis can crash when it converts a number itself: see `Command` in calls.py.
            self._settings["db"] = str(self._settings["db"])

    @property
    def identity(self) -> Hashable:
        """It is equal for two endpoints if a connection of one could serve the other.

        Settings that have no plain value, such as a credential_provider, are compared by identity.
        """
        return self._kind, frozenset(
            (name, comparable(value)) for name, value in self._settings.items() if value is not None
        )

    def at(self, host: str, port: int) -> Endpoint:
        return Endpoint(self._kind, {**self._settings, "host": host, "port": port})

    @property
    def host(self) -> str:
        return str(self._settings.get("host", "localhost"))

    def connection(self) -> AbstractConnection:
        """A new connection. It never repeats a command, decodes a reply or closes by itself."""
        connection = self._kind(
            **self._settings,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
        )
        connection.disconnect = stay_open  # type: ignore[method-assign]
        return connection

    async def connected(self) -> AbstractConnection:
        """A new connection, logged in.

        The timeout is headgate's own. redis-py would wait for a server that accepts the connection
        and then sends nothing.
        """
        connection, loop = self.connection(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings["socket_connect_timeout"]):
                # redis-py has no annotations here.
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException as error:
            close(connection, loop)
            if not loop.is_running():
                # The garbage collector closes this coroutine with GeneratorExit, which redis-py may
                # turn into another error.
                close_sockets(loop)
                raise GeneratorExit from error
            if isinstance(error, asyncio.CancelledError) and not is_cancelled():
                raise NotThereError("it was cancelled") from error  # by a credential_provider
            if isinstance(error, RedisError) and await self._is_sentinel(error):
                raise NotThereError(A_SENTINEL) from error
            raise
        return connection

    async def _is_sentinel(self, refusal: RedisError) -> bool:
        """Whether the server is a Sentinel, after it refused the database or the login."""
        if is_unknown("SELECT", str(refusal)):
            without = ["db"]
        elif isinstance(refusal, AuthenticationError):
            without = ["db", "username", "password", "credential_provider"]
        else:
            return False
        settings = {name: value for name, value in self._settings.items() if name not in without}
        if settings == self._settings:
            return False  # this is that question already: the server refuses it, too
        try:
            return said_by_sentinel(await Endpoint(self._kind, settings).asked("ROLE"))
        except LOST:
            return False

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[AbstractConnection]:
        """A connection for the duration of the block."""
        connection, loop = await self.connected(), asyncio.get_running_loop()
        try:
            yield connection
        finally:
            close(connection, loop)

    async def asked(self, *words: str) -> Any:
        """The reply to one command, on a connection of its own."""
        return (await self.asked_all([words]))[0]

    async def asked_all(self, commands: Sequence[Sequence[str]]) -> list[Any]:
        """The replies to several commands, in one round trip on a connection of their own.

        Raises the error of the first command that the server refuses.
        """
        async with (
            asyncio.timeout(REPLY_TIMEOUT + self._settings["socket_connect_timeout"]),
            self.talk() as connection,
        ):
            await connection.send_packed_command(connection.pack_commands(commands))
            return [await connection.read_response() for _ in commands]

    def blocking(self, timeout: float) -> redis.connection.AbstractConnection:
        """A new connection for a thread without a loop. Each reply may take `timeout` seconds."""
        connect_timeout = min(timeout, self._settings["socket_connect_timeout"])
        connection: redis.connection.AbstractConnection = BLOCKING[self._kind](
            **{**self._settings, "socket_connect_timeout": connect_timeout},
            socket_timeout=timeout,
            retry=BlockingRetry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
        )
        return connection

    @property
    def place(self) -> str:
        return str(self._settings.get("path") or f"{self.host}:{self._settings.get('port', 6379)}")

    def __str__(self) -> str:
        """The address and the database, never the password."""
        return f"{self.place}/{self._settings.get('db', 0) or 0}"
