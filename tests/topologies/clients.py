"""Client objects of every kind, as a user makes them: redis-py's and valkey-py's, for threads and
for asyncio, by topology.

This module makes them, and headgate only reads them. Only clusters of threads ask a server here,
when they are made, and need a right of their own for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio
import valkey.asyncio.sentinel
import valkey.sentinel

from tests.clusters import Cluster
from tests.rights import PASSWORD, USER
from tests.sentinels import GUEST, GUESTS_PASSWORD, SERVICE, Sentinels
from tests.servers import Server

USERS = {"username": USER, "password": PASSWORD}
GUESTS = {"username": GUEST, "password": GUESTS_PASSWORD}
SERVERS = {
    "redis-py": redis.Redis,
    "redis-py asyncio": redis.asyncio.Redis,
    "valkey-py": valkey.Valkey,
    "valkey-py asyncio": valkey.asyncio.Valkey,
}
SENTINELS: dict[str, Any] = {
    "redis-py": redis.sentinel.Sentinel,
    "redis-py asyncio": redis.asyncio.sentinel.Sentinel,
    "valkey-py": valkey.sentinel.Sentinel,
    "valkey-py asyncio": valkey.asyncio.sentinel.Sentinel,
}
CLUSTERS: dict[str, Any] = {
    "redis-py": redis.RedisCluster,
    "redis-py asyncio": redis.asyncio.RedisCluster,
    "valkey-py": valkey.ValkeyCluster,
    "valkey-py asyncio": valkey.asyncio.ValkeyCluster,
}
LIBRARIES = list(SERVERS)


def secured(place: Server | Sentinels | Cluster) -> dict[str, Any]:
    """The options of a client for TLS."""
    certificate = place.certificate
    return {} if certificate is None else {"ssl": True, "ssl_ca_certs": str(certificate.authority)}


def of_server(server: Server, library: str) -> Any:
    return SERVERS[library](port=server.port, **USERS, **secured(server))


def of_sentinels(sentinels: Sentinels, library: str) -> Any:
    places = [("127.0.0.1", watcher.port) for watcher in sentinels.watchers]
    words = secured(sentinels)
    return SENTINELS[library](
        places, sentinel_kwargs={**GUESTS, **words}, **USERS, **words
    ).master_for(SERVICE)


def of_cluster(cluster: Cluster, library: str) -> Any:
    return CLUSTERS[library](
        host="127.0.0.1", port=cluster.nodes[0].port, **USERS, **secured(cluster)
    )


MAKERS: dict[type, Callable[[Any, str], Any]] = {
    Server: of_server,
    Sentinels: of_sentinels,
    Cluster: of_cluster,
}


def client_of(place: Server | Sentinels | Cluster, library: str) -> Any:
    """A client of `place`, made with `library`."""
    return next(make for kind, make in MAKERS.items() if isinstance(place, kind))(place, library)


async def closed(client: Any) -> None:
    """Close a client of any kind at the end, as its user does."""
    close = getattr(client, "aclose", None)
    if close is not None:
        await close()
    else:
        client.close()
