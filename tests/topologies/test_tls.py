"""TLS: certificates are checked unless the user has said otherwise. One that is not in order is
refused, and no error shows the password (F30).
"""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.sentinel
import valkey
import valkey.asyncio

from headgate import Concurrency, Limiter, StoreError
from headgate.internals import queue_of, store_of
from headgate.stores.redis.transport import lifecycle
from tests.bad_input.values import CANARY, assert_sentence
from tests.certificates import WRONG, Certificate, Certificates
from tests.faults.scene import enter, eventually
from tests.portals import end_portal
from tests.servers import Server, connections_of
from tests.topologies.clients import client_of
from tests.world import at_rest, soon

Make = Callable[[int, Certificate], Any]

URLS: dict[str, Make] = {
    "rediss": lambda port, its: f"rediss://:{CANARY}@127.0.0.1:{port}?ssl_ca_certs={its.authority}",
    "rediss+sentinel": lambda port, its: (
        f"rediss+sentinel://:{CANARY}@127.0.0.1:{port}/main?ssl_ca_certs={its.authority}&sentinel_password={CANARY}"
    ),
    "rediss+cluster": lambda port, its: (
        f"rediss+cluster://:{CANARY}@127.0.0.1:{port}?ssl_ca_certs={its.authority}"
    ),
}


def settings(its: Certificate) -> dict[str, Any]:
    return {"password": CANARY, "ssl": True, "ssl_ca_certs": str(its.authority)}


def sentinel(port: int, its: Certificate) -> Any:
    words = settings(its)
    made: Any = redis.sentinel.Sentinel
    return made([("127.0.0.1", port)], sentinel_kwargs=words, **words).master_for("main")


CLIENTS: dict[str, Make] = {
    "redis-py": lambda port, its: redis.Redis(port=port, **settings(its)),
    "redis-py asyncio": lambda port, its: redis.asyncio.Redis(port=port, **settings(its)),
    "redis-py Sentinel": sentinel,
    "redis-py asyncio cluster": lambda port, its: redis.asyncio.RedisCluster(
        "127.0.0.1", port, **settings(its)
    ),
    "valkey-py": lambda port, its: valkey.Valkey(port=port, **settings(its)),
    "valkey-py asyncio": lambda port, its: valkey.asyncio.Valkey(port=port, **settings(its)),
}


@pytest.fixture(scope="module", params=WRONG)
def wrong(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[Server]:
    """A server that no client should trust."""
    server = Server(certificate=WRONG[request.param](certificates)).start()
    yield server
    server.stop()


@pytest.fixture
def _own_portal(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that was refused sends its backlog again, soon at first. Each attempt reads all
    certificates of this machine.
    """
    monkeypatch.setattr(lifecycle, "DRAIN_TIMEOUT", 0.0)
    yield
    end_portal()


@pytest.mark.usefixtures("_own_portal")
@pytest.mark.parametrize(
    "make", [pytest.param(make, id=how) for how, make in {**URLS, **CLIENTS}.items()]
)
@pytest.mark.parametrize("way", ["task", pytest.param("thread", marks=pytest.mark.proof)])
async def test_a_certificate_that_is_not_in_order_is_refused(
    name: str, wrong: Server, make: Make, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    """F30: given a certificate that has expired, or is of another host or authority, then there is
    a StoreError, and nothing shows the password.
    """
    caplog.set_level("DEBUG")
    assert wrong.certificate is not None
    limiter = Limiter(name, Concurrency(1), store=make(wrong.port, wrong.certificate))

    with pytest.raises(StoreError) as refused:
        await soon(limiter.acquire() if way == "task" else asyncio.to_thread(limiter.acquire_sync))

    assert_sentence(refused.value, f":{wrong.port}", "Check that it runs")
    assert CANARY not in "".join(
        [
            caplog.text,
            repr(limiter),
            str(limiter),
            repr(store_of(limiter)),
            repr(store_of(queue_of(limiter))),
        ]
    )
    assert CANARY not in shown(refused.value)


def shown(error: BaseException | None) -> str:
    """The texts that a program could print of an error, and of those that it came from."""
    return (
        ""
        if error is None
        else f"{error!r} {error} {shown(error.__cause__)} {shown(error.__context__)}"
    )


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
async def test_no_password_is_sent_without_tls_to_a_server_that_wants_tls(
    name: str, secure_server: Server, scheme: str
) -> None:
    """Given a URL without the s, then the process sends nothing to the server that it could
    read.
    """
    limiter = Limiter(
        name, Concurrency(1), store=f"{scheme}://:{CANARY}@127.0.0.1:{secure_server.port}"
    )

    with pytest.raises(StoreError) as refused:
        await soon(limiter.acquire())

    assert CANARY not in shown(refused.value)


def test_a_loop_that_ends_leaves_no_connection_open(name: str, certificates: Certificates) -> None:
    """F7: by TLS two ends talk before they part. Given a silent server, when the loop ends, then no
    connection is left.
    """
    server = Server(certificate=certificates.good()).start()

    async def main() -> None:
        limiter = Limiter(
            name, Concurrency(1), store=client_of(server, "redis-py")
        )  # nothing outlives it, unlike with a URL
        async with limiter:
            waiter = asyncio.create_task(enter(limiter))
            await eventually(lambda: connections_of(server.admin, "pubsub"))
            waiter.cancel()
        await at_rest(limiter)
        server.pause()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # loops that other tests have closed in silence
    with warnings.catch_warnings(record=True) as logged:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    server.stop()

    assert [str(warning.message) for warning in logged] == []
