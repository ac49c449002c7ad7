"""Where the server is: from a URL or the user's own client to connections of our own.

Here lives all that is known of redis-py's clients. A client object is only read: its pool, its retries, its decoding and its event
loop stay the user's, so that no setting of theirs can run a script twice or starve a waiter of a connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
import redis.connection
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.retry import Retry as BlockingRetry

from headgate.checks import seconds

CONNECT_TIMEOUT = 5.0  # seconds; an URL's or a client's own socket_connect_timeout stands
REPLY_TIMEOUT = 5.0  # seconds for a reply
CARRIED = (
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


BLOCKING: dict[type[AbstractConnection], Any] = {
    SSLConnection: redis.connection.SSLConnection,
    UnixDomainSocketConnection: redis.connection.UnixDomainSocketConnection,
    Connection: redis.connection.Connection,
}


class Endpoint:
    """One server, and how to connect to it."""

    def __init__(self, kind: type[AbstractConnection], settings: Mapping[str, Any]) -> None:
        self._kind = kind
        self._settings = {
            "socket_connect_timeout": CONNECT_TIMEOUT,
            **{name: value for name, value in settings.items() if name in CARRIED or name.startswith("ssl_")},
        }
        if self._settings["socket_connect_timeout"] is None:
            self._settings["socket_connect_timeout"] = CONNECT_TIMEOUT
        self.functions = True  # until the server says that it has none for us
        self.patience = self._settings["socket_connect_timeout"]  # for connecting and logging in

    def connection(self) -> AbstractConnection:
        """A new connection, not connected yet: it never repeats a command by itself and never decodes."""
        return self._kind(**self._settings, socket_timeout=None, retry=Retry(NoBackoff(), 0), health_check_interval=0, protocol=2)

    def blocking(self) -> redis.connection.AbstractConnection:
        """The same for a thread without a loop."""
        kind = BLOCKING[next(kind for kind in BLOCKING if issubclass(self._kind, kind))]
        connection: redis.connection.AbstractConnection = kind(
            **self._settings,
            socket_timeout=REPLY_TIMEOUT,
            retry=BlockingRetry(NoBackoff(), 0),
            health_check_interval=0,
            protocol=2,
        )
        return connection

    def __str__(self) -> str:
        """Where, and never with which password."""
        settings = self._settings
        where = settings.get("path") or f"{settings.get('host', 'localhost')}:{settings.get('port', 6379)}"
        return f"{where}/{settings.get('db', 0) or 0}"


def endpoint_of(where: Any) -> Endpoint:
    if isinstance(where, str):
        found = of_url(where)
        if found is None:
            raise ValueError(
                f"store='{where.partition('://')[0]}://...' is not a URL that redis-py can read; write it as "
                "redis://user:password@host:6379/0, with what is special in a password percent-encoded (urllib.parse.quote)."
            )
        return found
    if isinstance(where, (redis.Redis, redis.asyncio.Redis)):
        return Endpoint(kind_of(where.connection_pool.connection_class), where.connection_pool.connection_kwargs)
    raise TypeError(
        f"store= got a {type(where).__module__}.{type(where).__qualname__}, which headgate cannot use as a store: give it a URL "
        "(memory://, redis://, rediss://, unix://), a redis.Redis or a redis.asyncio.Redis."
    )


def of_url(where: str) -> Endpoint | None:
    """None when it cannot be read, by redis-py or by us: what is wrong may be part of a password, so its error stays here."""
    try:
        scheme = where.partition("://")[0]
        path, port = urlsplit(where).path, urlsplit(where).port
        fits = bool(path) if scheme == "unix" else path.strip("/").isdecimal() or not path.strip("/")
        pool = redis.asyncio.ConnectionPool.from_url(where)
        timeout = pool.connection_kwargs.get("socket_connect_timeout")
        seconds("store", "socket_connect_timeout", CONNECT_TIMEOUT if timeout is None else timeout)
        endpoint = Endpoint(pool.connection_class, pool.connection_kwargs)
        endpoint.connection()  # nothing is sent: its settings are read
    except (ValueError, TypeError, redis.RedisError):
        return None
    return endpoint if fits and port != 0 else None


def kind_of(connection_class: type[Any]) -> type[AbstractConnection]:
    """The asyncio connection that goes where a client's own connections go."""
    name = connection_class.__name__
    if "Unix" in name:
        return UnixDomainSocketConnection
    if "SSL" in name:
        return SSLConnection
    if name.endswith("Connection") and "Sentinel" not in name:
        return Connection
    raise TypeError(f"store= got a client whose connections are {name}s, which headgate cannot follow: give it a URL instead.")
