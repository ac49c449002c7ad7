"""The connection of a thread that asks the server itself, when its store is dropped."""

from __future__ import annotations

import gc
import socket
import warnings
from typing import Any

from headgate.stores.redis.fast_path import BlockingConnection, FastPath
from headgate.stores.redis.transport.url import topology_of


def test_a_connection_that_is_dropped_with_its_store_is_closed_without_a_complaint() -> None:
    """F7: given a store without a reference, when the collector comes to the socket before it comes
    to the store. It does so if the store has outlived a collection. Then the socket is closed, and
    no ResourceWarning says that it was left open.
    """
    gc.collect()
    store: Any = FastPath(topology_of("redis://localhost"))
    store.itself = store  # it is the collector's
    gc.collect(0)
    ours, servers = socket.socketpair()
    store._connections["server"] = BlockingConnection(ours, 1.0)
    del ours, store

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        gc.collect()

    assert [str(warning.message) for warning in said] == []
    assert servers.recv(1) == b""  # it was closed
    servers.close()
