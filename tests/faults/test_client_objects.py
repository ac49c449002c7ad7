"""Client objects as stores: those that lead to the same server share connections, and a store that
is dropped closes its own.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal
from weakref import ref

import pytest
import redis
import redis.asyncio
from redis import Redis

from headgate import Concurrency, Limiter, StoreError
from headgate.internals import queue_of
from headgate.stores.redis.store import redis_store
from headgate.stores.registry import store_of
from tests.faults.scene import client_of_its_own, eventually
from tests.portals import end_portal
from tests.servers import Server, connections_of, dead_port

CREDENTIALS = redis.UsernamePasswordCredentialProvider("headgate", "canary")


def connections(admin: Redis) -> int:
    """How many connections headgate has to the server of this test."""
    return connections_of(admin, "normal") + connections_of(admin, "pubsub")


def connections_after_collection(admin: Redis) -> int:
    """The same, once the collector has run: a thread that ends may have kept a limiter until
    now.
    """
    gc.collect()
    return connections(admin)


async def use(name: str, clients: int, url: str) -> None:
    """A request handler that makes a client and a limiter for each request, all on one pool of the
    user.
    """
    pool = redis.asyncio.ConnectionPool.from_url(url)
    for number in range(clients):
        async with Limiter(name, Concurrency(1), store=redis.asyncio.Redis(connection_pool=pool)):
            pass
        if number % 100 == 0:
            await asyncio.to_thread(use_in_a_thread, name, url)


def use_in_a_thread(name: str, url: str) -> None:
    with Limiter(name, Concurrency(1), store=Redis.from_url(url)):
        pass


# A connection and a subscription for the test's loop, the same for the threads' loop, and one more
# for threads.
MOST = 5


async def test_three_hundred_client_objects_need_no_more_connections_than_one(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9, promise 7: a client for each request."""
    await use(name, 300, own_server.user_url)

    assert 0 < connections(own_admin) <= MOST


@pytest.mark.proof("stress")
async def test_ten_thousand_client_objects_need_no_more_connections_than_one(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9, promise 7."""
    await use(name, 10_000, own_server.user_url)

    assert 0 < connections(own_admin) <= MOST


async def test_the_connections_of_a_store_that_is_dropped_are_closed(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9: each client has settings of its own, so each has a store.

    The program keeps none of them, nor their limiters.
    """
    for _ in range(10):
        store = client_of_its_own(own_server.user_url)
        async with Limiter(name, Concurrency(1), store=store):
            assert connections(own_admin) > 0
        await asyncio.to_thread(Limiter(name, Concurrency(1), store=store).status)
        del store

    await eventually(lambda: connections_after_collection(own_admin) == 0)


@pytest.mark.parametrize("on_store_error", ["raise", "open"])
def test_a_store_that_is_dropped_without_its_server_is_forgotten(
    name: str, on_store_error: Literal["raise", "open"]
) -> None:
    """S9: only the portal keeps it, which offers the server what it has to know. The last failure
    keeps neither the store nor the caller.
    """
    client = client_of_its_own(f"redis://127.0.0.1:{dead_port()}")
    store = ref(store_of(client))
    limiter = Limiter(name, Concurrency(1), store=client, on_store_error=on_store_error)
    asyncio.run(try_to_enter(limiter))
    del client, limiter
    for _ in range(3):  # the end of a portal makes another one, for what it finds undelivered
        end_portal()
        gc.collect()
    assert store() is None


async def try_to_enter(limiter: Limiter) -> None:
    with suppress(StoreError):
        async with limiter:
            pass


async def test_a_permit_keeps_the_store_that_granted_it(name: str, redis_url: str) -> None:
    """S7: the limiter and the client are dropped, and the release arrives."""
    permit = await Limiter(name, Concurrency(1), store=client_of_its_own(redis_url)).acquire()
    gc.collect()

    assert await permit.arelease()


async def test_the_next_limiter_of_a_name_declares_nothing_again(name: str, redis_url: str) -> None:
    """S9: a limiter for each request declares its limits once."""
    client = client_of_its_own(redis_url)
    async with Limiter(name, Concurrency(1), store=client):
        pass
    gc.collect()

    assert queue_of(Limiter(name, Concurrency(1), store=client)).limits.declares == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("client", "other", "same"),
    [
        (lambda: Redis(), lambda: redis.asyncio.Redis(), True),
        (lambda: Redis(db=1), lambda: Redis(db=2), False),
        (lambda: Redis(port=1), lambda: Redis(port=2), False),
        (lambda: Redis(password="a"), lambda: Redis(password="b"), False),
        (lambda: Redis(ssl=True), lambda: Redis(), False),
        (
            lambda: Redis(ssl=True, ssl_ca_certs="a"),
            lambda: Redis(ssl=True, ssl_ca_certs="b"),
            False,
        ),
        (lambda: Redis(socket_connect_timeout=1), lambda: Redis(socket_connect_timeout=2), False),
        (
            lambda: Redis(credential_provider=CREDENTIALS),
            lambda: Redis(credential_provider=CREDENTIALS),
            True,
        ),
        (
            lambda: Redis(credential_provider=redis.UsernamePasswordCredentialProvider("a", "b")),
            lambda: Redis(credential_provider=redis.UsernamePasswordCredentialProvider("a", "b")),
            False,
        ),
        (
            lambda: Redis(socket_keepalive_options={1: 2}),
            lambda: Redis(socket_keepalive_options={1: 2}),
            True,
        ),
    ],
    ids=[
        "kind",
        "db",
        "port",
        "password",
        "tls",
        "authorities",
        "timeout",
        "provider",
        "providers",
        "options",
    ],
)
def test_a_store_is_shared_when_its_connections_would_be_made_alike(
    client: Callable[[], Any], other: Callable[[], Any], same: bool
) -> None:
    """S9: two clients have one store only if no setting that makes a connection differs."""
    first, second = client(), other()

    assert (redis_store(first) is redis_store(second)) == same
