"""A StoreError names the cause of the failure: by its reason, in its text, and by the exception
that it came from.
"""

from __future__ import annotations

import asyncio
import copy
import pickle
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis.exceptions

from headgate import Limiter, StoreError
from headgate.stores.redis.transport.failures import cannot, reason_of
from tests.certificates import Certificates
from tests.faults.proxy import Proxy
from tests.servers import Server, as_user
from tests.world import soon

SHORT = "?socket_connect_timeout=0.2"


@pytest.fixture
def silence() -> Iterator[int]:
    """A port that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        yield silent.getsockname()[1]


async def asked(limiter: Limiter, way: str) -> StoreError:
    with pytest.raises(StoreError) as caught:
        if way == "thread":
            await soon(asyncio.to_thread(limiter.acquire_sync))
        else:
            await soon(limiter.acquire())
    return caught.value


ways = pytest.mark.parametrize("way", ["task", "thread"])


@ways
@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1", "redis://localhost:1", "unix:///nowhere/redis.sock"]
)
async def test_a_port_without_a_server_has_the_reason_refused(
    name: str, url: str, way: str
) -> None:
    error = await asked(Limiter(name, "5/second", store=url), way)

    assert error.reason == "refused"
    assert "nothing listens there" in str(error)
    assert isinstance(error.__cause__, redis.exceptions.ConnectionError)
    assert isinstance(error.__cause__.__cause__ or error.__cause__.__context__, OSError)


@ways
async def test_an_unknown_host_name_has_the_reason_unresolvable(name: str, way: str) -> None:
    error = await asked(Limiter(name, "5/second", store="redis://no-such-host.invalid"), way)

    assert error.reason == "unresolvable"
    assert "cannot be resolved" in str(error)
    assert error.__cause__ is not None


@ways
async def test_a_server_that_says_nothing_times_out(name: str, silence: int, way: str) -> None:
    """Of a user, so that connecting waits for an answer."""
    error = await asked(
        Limiter(name, "5/second", store=f"redis://user:word@127.0.0.1:{silence}{SHORT}"), way
    )

    assert error.reason == "timeout"
    assert "did not answer in time" in str(error)
    assert isinstance(error.__cause__, TimeoutError)


@pytest.mark.parametrize("database", [0, 1])
@pytest.mark.parametrize("way", ["task", "thread"])
async def test_a_server_that_is_given_no_password_says_that_it_wants_one(
    name: str, own_server: Server, way: str, database: int
) -> None:
    own_server.admin.config_set("requirepass", "a-password")

    error = await asked(
        Limiter(name, "5/second", store=f"redis://127.0.0.1:{own_server.port}/{database}"), way
    )

    assert error.reason == "password"
    assert (
        "it wants a password, and headgate has none: write user and password into the URL"
        in str(error)
    )
    assert error.__cause__ is not None


@ways
async def test_a_wrong_password_is_not_accepted(name: str, own_server: Server, way: str) -> None:
    error = await asked(Limiter(name, "5/second", store=as_user(own_server.url, "someone")), way)

    assert error.reason == "password"
    assert "does not accept this user and password" in str(error)
    assert isinstance(error.__cause__, redis.exceptions.AuthenticationError)


@ways
async def test_a_wrong_password_opens_few_connections(
    name: str, own_server: Server, way: str
) -> None:
    """headgate asks a server that refuses the login whether it is a Sentinel. Without a login, the
    server refuses the name of that connection. Valkey and Redis from 7.2 on do so without a name,
    too: they refuse the name of the library, which redis-py always sends.
    """
    own_server.admin.config_set("requirepass", "a-password")
    before = own_server.admin.info("stats")["total_connections_received"]
    url = f"{as_user(own_server.url, 'someone')}?client_name=me"

    error = await asked(Limiter(name, "5/second", store=url), way)

    assert "does not accept this user and password" in str(error)
    assert isinstance(error.__cause__, redis.exceptions.AuthenticationError)
    assert own_server.admin.info("stats")["total_connections_received"] - before < 10


@ways
async def test_a_certificate_that_is_not_trusted_is_a_failure_of_tls(name: str, way: str) -> None:
    certificates = Certificates()
    server = Server(certificate=certificates.of_another_authority()).start()
    try:
        error = await asked(Limiter(name, "5/second", store=server.url), way)
    finally:
        server.stop()
        certificates.remove()

    assert error.reason == "tls"
    assert "TLS failed: unable to get local issuer certificate" in str(error)


async def test_an_error_of_the_server_has_the_reason_reply(name: str, own_server: Server) -> None:
    limiter = Limiter(name, "5/second", store=own_server.url)
    await limiter.acquire()
    own_server.admin.config_set("maxmemory", "1")
    error = await asked(limiter, "task")

    assert error.reason == "reply"
    assert "OOM" in str(error)
    assert isinstance(error.__cause__, redis.exceptions.ResponseError)


async def test_a_connection_that_ends_has_the_reason_lost(name: str, proxy: Proxy) -> None:
    """A server that was never reached fails at the first attempt."""
    proxy.replies.alter = lambda piece: b"HTTP/1.1 400 Bad Request\r\n"
    assert (await asked(Limiter(name, "5/second", store=proxy.url), "task")).reason in (
        "lost",
        "reply",
    )


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno "
                "111] Connect call failed"
            ),
            "refused",
        ),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed, [Errno 113] No route to host"
            ),
            "lost",
        ),
        (ConnectionResetError(104, "Connection reset by peer"), "lost"),
        (ssl.SSLError(1, "wrong version number"), "tls"),
        (redis.exceptions.TimeoutError("Timeout connecting to server"), "timeout"),
        (redis.exceptions.ConnectionError("Connection closed by server."), "lost"),
    ],
    ids=str,
)
def test_each_failure_has_its_reason(lost: Exception, expected: str) -> None:
    assert reason_of(lost) == expected


REMADE: list[Callable[[Any], Any]] = [
    copy.copy,
    copy.deepcopy,
    lambda error: pickle.loads(pickle.dumps(error)),
]


@pytest.mark.parametrize("again", REMADE)
def test_an_error_in_another_process_has_its_reason(again: Callable[[Any], Any]) -> None:
    error = again(cannot("127.0.0.1:1/0", ConnectionRefusedError(111, "refused")))

    assert (type(error), error.reason) == (StoreError, "refused")
    assert str(error).startswith("The Redis server at 127.0.0.1:1/0 cannot be asked")
    assert StoreError("a text alone").reason == "lost"
