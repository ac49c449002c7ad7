"""One server, and how to connect to it.

Here lives all that is known of redis-py's connections. They are our own: whoever gives us a client keeps its pool, its retries, its
decoding and its event loop, so that no setting of theirs can run a script twice or starve a waiter of a connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable, Mapping
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

from headgate.stores.redis.transport.connection import close_sockets, detached, hang_up
from headgate.stores.redis.transport.failures import NotThereError

CONNECT_TIMEOUT = 5.0  # seconds; an URL's or a client's own socket_connect_timeout stands
REPLY_TIMEOUT = 5.0  # seconds for a reply
SILENCE = 0.5  # the same where a caller's `max_sleep` is less: a reply that is slow is no wait
LOST = (
    RedisError,
    OSError,
    TimeoutError,
    asyncio.IncompleteReadError,
)  # what a server that is away looks like
A_SENTINEL = (
    "it is a Sentinel, which keeps no limits itself: begin its URL with redis+sentinel:// and name the "
    "service, as in redis+sentinel://host:26379/service/0"
)
USED = (
    "host",
    "port",
    "db",
    "username",
    "password",
    "credential_provider",
    "client_name",
    "path",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
)


PLAIN = (str, bytes, int, float)  # settings that are compared by value

BLOCKING: dict[type[AbstractConnection], Any] = {
    SSLConnection: redis.connection.SSLConnection,
    UnixDomainSocketConnection: redis.connection.UnixDomainSocketConnection,
    Connection: redis.connection.Connection,
}


def is_unknown(command: str, refusal: str) -> bool:
    """Whether a server has said that it does not know `command`. redis-py drops the first word, ERR."""
    said = refusal.lower().removeprefix("err ").replace("`", "'")  # Redis before 7
    return said.startswith(f"unknown command '{command.lower()}'")


def said_by_sentinel(role: Any) -> bool:
    """Whether the reply to ROLE is a Sentinel's."""
    return isinstance(role, list) and role[:1] == [b"sentinel"]


async def stay_open(*_: object, **__: object) -> None:
    """In place of redis-py's `disconnect`."""


def close(connection: AbstractConnection, loop: asyncio.AbstractEventLoop) -> None:
    """Close the stream of `connection`, if it is open."""
    if connection._writer is not None:
        hang_up(detached(connection), loop)


def comparable(value: object) -> Hashable:
    if isinstance(value, dict):
        return frozenset((name, comparable(each)) for name, each in value.items())
    return value if isinstance(value, PLAIN) else ("object", id(value))


class Endpoint:
    """One server, and how to connect to it."""

    def __init__(self, kind: type[AbstractConnection], settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self._settings = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            **{
                name: value
                for name, value in settings.items()
                if name in USED or name.startswith("ssl_")
            },
        }
        if self._settings["socket_connect_timeout"] is None:
            self._settings["socket_connect_timeout"] = CONNECT_TIMEOUT
        if self._settings.get("db"):
            self._settings["db"] = str(
                self._settings["db"]
            )  # hiredis would make a text of it, and can crash: see connection.py

    @property
    def identity(self) -> Hashable:
        """All that decides how a connection is made: equal for endpoints whose connections could be each other's.

        What cannot be compared by value, such as a credential_provider, counts as the object that it is.
        """
        return self._kind, frozenset(
            (name, comparable(value)) for name, value in self._settings.items() if value is not None
        )

    def at(self, host: str, port: int) -> Endpoint:
        """Another server that is to be spoken to as this one is."""
        return Endpoint(self._kind, {**self._settings, "host": host, "port": port})

    @property
    def host(self) -> str:
        return str(self._settings.get("host", "localhost"))

    def connection(self) -> AbstractConnection:
        """A new connection, not connected yet: it never repeats a command, decodes a reply or closes by itself."""
        its = self._kind(
            **self._settings,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
        )
        its.disconnect = stay_open  # type: ignore[method-assign]  # it would lose its stream where no loop runs
        return its

    async def connected(self) -> AbstractConnection:
        """The same, connected and logged in; redis-py itself would wait for a server that accepts and says nothing."""
        connection, loop = self.connection(), asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._settings["socket_connect_timeout"]):
                await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        except BaseException as error:
            close(connection, loop)
            if not loop.is_running():
                close_sockets(loop)
                raise GeneratorExit from error  # the collector closes this coroutine, and redis-py may hide that
            if isinstance(error, RedisError) and await self._is_sentinel(error):
                raise NotThereError(A_SENTINEL) from error
            raise
        return connection

    async def _is_sentinel(self, refusal: RedisError) -> bool:
        """Whether a server that knows no databases, or not this user, is a Sentinel."""
        if is_unknown("SELECT", str(refusal)):
            without = ["db"]
        elif isinstance(refusal, AuthenticationError):
            without = ["db", "username", "password", "credential_provider"]
        else:
            return False
        settings = {name: value for name, value in self._settings.items() if name not in without}
        try:
            return said_by_sentinel(await Endpoint(self._kind, settings).asked("ROLE"))
        except LOST:
            return False

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[AbstractConnection]:
        """A connection for as long as the block lasts; it is left without waiting for anybody."""
        connection, loop = await self.connected(), asyncio.get_running_loop()
        try:
            yield connection
        finally:
            close(connection, loop)

    async def asked(self, *words: str) -> Any:
        """The reply to one command, on a connection for this alone."""
        async with (
            asyncio.timeout(REPLY_TIMEOUT + self._settings["socket_connect_timeout"]),
            self.talk() as connection,
        ):
            await connection.send_command(*words)
            return await connection.read_response()

    def blocking(self, patience: float) -> redis.connection.AbstractConnection:
        """A new connection for a thread without a loop, which waits so many seconds for each answer."""
        kind = BLOCKING[next(kind for kind in BLOCKING if issubclass(self._kind, kind))]
        connection: redis.connection.AbstractConnection = kind(
            **{
                **self._settings,
                "socket_connect_timeout": min(patience, self._settings["socket_connect_timeout"]),
            },
            socket_timeout=patience,
            retry=BlockingRetry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
        )
        return connection

    @property
    def place(self) -> str:
        """Where it is."""
        return str(self._settings.get("path") or f"{self.host}:{self._settings.get('port', 6379)}")

    def __str__(self) -> str:
        """Where, and never with which password."""
        return f"{self.place}/{self._settings.get('db', 0) or 0}"
