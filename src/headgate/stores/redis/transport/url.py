"""Makes the topology from the user's `store`: a URL, or a client object of redis-py or valkey-py.

The client may be made for one server, Sentinel or a Cluster, and for asyncio or threads. This
module only reads its attributes, and sends nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    SSLConnection,
    UnixDomainSocketConnection,
)

from headgate.stores.redis.transport.endpoint import CONNECT_TIMEOUT, Endpoint
from headgate.stores.redis.transport.topology import Cluster, Sentinel, Standalone, Topology
from headgate.validation import seconds, show

SENTINEL_PORT = 26379
SERVER_PORT = 6379
# The form of a URL, by the part of its scheme behind the plus sign.
FORMS = {
    "": "redis://user:password@host:6379/0",
    "sentinel": "redis+sentinel://user:password@host:26379,host:26379/service/0",
    "cluster": "redis+cluster://user:password@host:6379,host:6379",
}
# headgate uses these parameters of a URL.
PARAMETERS = (
    "client_name",
    "db",
    "password",
    "socket_connect_timeout",
    "socket_keepalive",
    "username",
)
TLS = ", ssl_ca_certs, ssl_certfile, ssl_keyfile and the other ssl_ parameters of redis-py"
# redis-py's pools have these parameters. headgate accepts them, and uses no pool.
POOLED = {"max_connections", "timeout"}
# headgate uses these settings of a connection, and those that begin with ssl_.
USED = {
    *PARAMETERS,
    "credential_provider",
    "host",
    "path",
    "port",
    "socket_keepalive_options",
}


def topology_of(where: Any) -> Topology:
    return of_url(where) if isinstance(where, str) else of_client(where)


# URLs ---------------------------------------------------------------------------------------------


def of_url(where: str) -> Topology:
    scheme = where.partition("://")[0]
    form = scheme.partition("+")[2]
    query = query_of(where)
    if query is not None:
        check_parameters(query, scheme)
        # The wrong part may belong to a password, so the error of the parser is not shown.
        with suppress(ValueError, TypeError, redis.RedisError):
            return READERS[form](where)
    raise ValueError(
        f"store='{scheme}://...' is not a URL that headgate can read; write it as {FORMS[form]}, "
        "with what is special in a password percent-encoded (urllib.parse.quote)."
    )


def query_of(where: str) -> str | None:
    """None: the URL cannot be parsed."""
    try:
        query = urlsplit(where).query
    except ValueError:
        return None
    # A password that was not percent-encoded: its rest was taken for another part of the URL.
    return None if "#" in where or "@" in query else query


def check_parameters(query: str, scheme: str) -> None:
    """Raise ValueError for a parameter that neither redis-py nor headgate reads."""
    secure, sentinel = scheme.startswith("rediss"), scheme.endswith("+sentinel")
    names = settings_of(
        SSLConnection if secure else UnixDomainSocketConnection if scheme == "unix" else Connection
    )
    known = names | POOLED
    of_sentinels = {f"sentinel_{name}" for name in known} if sentinel else set()
    more = TLS if secure else ""
    if sentinel:
        more += ", and each with sentinel_ before it for the Sentinels"
    for name, _ in parse_qsl(query, keep_blank_values=True):
        if name not in known | of_sentinels:
            near = get_close_matches(name, [*PARAMETERS, *(names | of_sentinels)], 1)
            raise ValueError(
                f"store='{scheme}://...' has the parameter {show(name)}, which headgate does not "
                f"know; {advice(name, near, secure)}it knows {', '.join(PARAMETERS)}{more}."
            )


def advice(name: str, near: list[str], secure: bool) -> str:
    hint = f"did you mean {near[0]!r}? " if near else ""
    plain = name.startswith("ssl_") and not secure
    return hint + ("begin the URL with rediss for TLS; " if plain else "")


def of_server(where: str) -> Standalone:
    parts = urlsplit(where)
    fits = bool(parts.path) if parts.scheme == "unix" else is_number(parts.path.strip("/"))
    if not fits or (parts.scheme != "unix" and parts.port == 0):
        raise ValueError("no such server")
    return Standalone(endpoint_of(where))


def of_sentinel(where: str) -> Sentinel:
    """The credentials are for the servers, and sentinel_... parameters for the Sentinels."""
    parts = urlsplit(where)
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not is_number(database):
        raise ValueError("no service")
    options, sentinel_options = dict[str, str](), dict[str, str]()
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name.startswith("sentinel_"):
            sentinel_options[name.removeprefix("sentinel_")] = value
        else:
            options[name] = value
    scheme, login = parts.scheme.partition("+")[0], login_of(parts.netloc)
    template = endpoint_of(f"{scheme}://{login}localhost/{database}?{urlencode(options)}")
    shared = {
        name: value for name, value in options.items() if name.startswith(("ssl_", "socket_"))
    }
    sentinel = endpoint_of(f"{scheme}://localhost/?{urlencode({**shared, **sentinel_options})}")
    sentinels = [sentinel.at(*address) for address in addresses(parts.netloc, SENTINEL_PORT)]
    return Sentinel(template, sentinels, unquote(service))


def of_cluster(where: str) -> Cluster:
    parts = urlsplit(where)
    if parts.path.strip("/") not in ("", "0") or dict(parse_qsl(parts.query)).get("db", "0") != "0":
        raise ValueError("a Cluster has no databases")
    template = endpoint_of(
        f"{parts.scheme.partition('+')[0]}://{login_of(parts.netloc)}localhost/?{parts.query}"
    )
    return Cluster([template.at(*address) for address in addresses(parts.netloc, SERVER_PORT)])


READERS: dict[str, Callable[[str], Topology]] = {
    "": of_server,
    "sentinel": of_sentinel,
    "cluster": of_cluster,
}


def endpoint_of(url: str) -> Endpoint:
    pool = redis.asyncio.ConnectionPool.from_url(url)
    timeout = pool.connection_kwargs.get("socket_connect_timeout")
    seconds("store", "socket_connect_timeout", CONNECT_TIMEOUT if timeout is None else timeout)
    endpoint = Endpoint(pool.connection_class, used_of(pool.connection_kwargs))
    endpoint.connection()  # This checks the settings, and sends nothing.
    return endpoint


def login_of(netloc: str) -> str:
    return netloc[: netloc.rfind("@") + 1]


def addresses(netloc: str, port: int) -> list[tuple[str, int]]:
    """The addresses in host:port,host:port, with the default `port`."""
    parts = [urlsplit(f"//{part}") for part in netloc.rpartition("@")[2].split(",")]
    if not all(part.hostname and part.port != 0 and " " not in part.netloc for part in parts):
        raise ValueError("no host")
    return [(part.hostname or "", part.port or port) for part in parts]


def is_number(text: str) -> bool:
    return not text or text.isdecimal()


# Clients ------------------------------------------------------------------------------------------


def of_client(where: Any) -> Topology:
    packages = packages_of(type(where))
    known = packages & {"redis", "valkey"}
    nodes = getattr(where, "nodes_manager", None) if known else None
    pool: Any = getattr(where, "connection_pool", None) if known else None
    if "fakeredis" in packages | packages_of(getattr(pool, "connection_class", object)):
        raise TypeError(
            "store= got a client of fakeredis, which no other process shares and which does not "
            "run headgate's script; in tests leave store out, with headgate.testing.ManualClock "
            "for the time, or give it the URL of a redis-server."
        )
    if nodes is not None:
        return of_cluster_client(nodes)
    if hasattr(pool, "sentinel_manager"):
        return of_sentinel_pool(pool)
    if hasattr(pool, "connection_class"):
        return Standalone(endpoint_like(pool.connection_class, pool.connection_kwargs))
    raise TypeError(
        f"store= got a {type(where).__module__}.{type(where).__qualname__}, which headgate cannot "
        "use as a store: give it a URL (memory://, redis://, rediss://, unix://, "
        "redis+sentinel://, redis+cluster://), or a client: redis.asyncio.Redis and its like, of "
        "redis-py or of valkey-py."
    )


def packages_of(kind: type[Any]) -> set[str]:
    return {base.__module__.partition(".")[0] for base in kind.__mro__}


def of_cluster_client(nodes: Any) -> Cluster:
    settings = nodes.connection_kwargs
    refuse_other_addresses("address_remap", getattr(nodes, "address_remap", None))
    kind = settings.get("connection_class") or (
        SSLConnection if settings.get("ssl") else Connection
    )
    template = endpoint_like(kind, settings)
    return Cluster([template.at(node.host, node.port) for node in nodes.startup_nodes.values()])


def of_sentinel_pool(pool: Any) -> Sentinel:
    if not pool.is_master:
        raise TypeError(
            "store= got a client of a service's replicas, which must not be written: give it "
            "Sentinel.master_for(...)."
        )
    refuse_other_addresses(
        "force_master_ip", getattr(pool.sentinel_manager, "_force_master_ip", None)
    )
    pools = [client.connection_pool for client in pool.sentinel_manager.sentinels]
    sentinels = [endpoint_like(each.connection_class, each.connection_kwargs) for each in pools]
    return Sentinel(
        endpoint_like(pool.connection_class, pool.connection_kwargs), sentinels, pool.service_name
    )


def endpoint_like(connection_class: type[Any], settings: Mapping[str, Any]) -> Endpoint:
    kind = kind_of(connection_class)
    known = settings_of(kind)
    if kind is SSLConnection:
        refuse_lost_checks([name for name, value in settings.items() if value], known)
    kept = {name: value for name, value in used_of(settings).items() if name in known}
    if connection_class.__module__.startswith("valkey") and not kept.get("ssl_check_hostname"):
        # False is the default of valkey-py, not the user's choice: headgate checks host names.
        kept.pop("ssl_check_hostname", None)
    return Endpoint(kind, kept)


def refuse_lost_checks(used: list[str], known: Container[str]) -> None:
    """Raise TypeError for certificate checks of the client that headgate would drop silently."""
    lost = sorted(name for name in used if name.startswith("ssl_") and name not in known)
    if lost:
        raise TypeError(
            f"store= got a client with {', '.join(lost)}, which redis-py's asyncio connections do "
            "not have: give headgate a rediss:// URL, or a client without."
        )


def kind_of(connection_class: type[Any]) -> type[AbstractConnection]:
    """The asyncio connection class that connects as the client's own class does."""
    name = connection_class.__name__
    if "Unix" in name:
        return UnixDomainSocketConnection
    if "SSL" in name:
        return SSLConnection
    if name.endswith("Connection"):
        return Connection
    raise TypeError(
        f"store= got a client whose connections are {name}s, which headgate cannot follow: give it "
        "a URL instead."
    )


def refuse_other_addresses(name: str, value: object) -> None:
    if value is not None:
        raise TypeError(
            f"store= got a client with {name}, and headgate goes by the addresses that its servers "
            "tell: let them announce those that can be reached from here (cluster-announce-ip, "
            "sentinel announce-ip)."
        )


def used_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that headgate uses: one URL or client object serves other programs, too."""
    return {
        name: value for name, value in settings.items() if name in USED or name.startswith("ssl_")
    }


def settings_of(kind: type[AbstractConnection]) -> set[str]:
    """The names of the settings that a class accepts."""
    makers = [vars(base)["__init__"] for base in kind.__mro__[:-1] if "__init__" in vars(base)]
    return {name for maker in makers for name in inspect.signature(maker).parameters}
