"""What is of httpx and httpx2: transports by hand, and what `limit` leaves where it was."""

from __future__ import annotations

from typing import Any

import httpx
import httpx2
import pytest

import headgate.http.httpx
import headgate.http.httpx2
from headgate import Concurrency, Limiter
from tests.http.service import Service
from tests.world import used

LIBRARIES: dict[str, tuple[Any, Any]] = {"httpx": (httpx, headgate.http.httpx), "httpx2": (httpx2, headgate.http.httpx2)}


@pytest.fixture(params=LIBRARIES)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """The library, and our module for it."""
    return LIBRARIES[request.param]


@pytest.fixture
def single(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), "100/hour")


def test_a_transport_by_hand_limits_one_client(both: tuple[Any, Any], service: Service, single: Limiter) -> None:
    library, ours = both
    with library.Client(transport=ours.Transport(single)) as client:
        assert client.get(service.url).text == "GET ok"

    assert used(single.status()) == [0, 1]


async def test_a_transport_by_hand_limits_one_host(both: tuple[Any, Any], service: Service, single: Limiter) -> None:
    """As a mount of the client's; other hosts go by its own transport."""
    library, ours = both
    async with library.AsyncClient(mounts={"all://localhost": ours.AsyncTransport(single)}) as client:
        await client.get(service.url)
        await client.get(service.url.replace("127.0.0.1", "localhost"))

    assert (service.calls, used(single.status())) == (2, [0, 1])


@pytest.mark.parametrize("name_of_client", ["Client", "AsyncClient"])
def test_a_clients_transports_stay_inside(both: tuple[Any, Any], single: Limiter, name_of_client: str) -> None:
    """With their pools and their TLS; mounts in their order, and one that says "no proxy here" too."""
    library, ours = both
    client = getattr(library, name_of_client)(mounts={"all://host": None}, proxy="http://127.0.0.1:1")
    transport, mounts = client._transport, dict(client._mounts)

    assert ours.limit(client, single) is client

    assert client._transport._inner is transport
    assert list(client._mounts) == list(mounts)
    assert {pattern: inner and inner._inner for pattern, inner in client._mounts.items()} == mounts
    assert None in client._mounts.values()


async def test_a_proxy_is_still_asked(both: tuple[Any, Any], service: Service, name: str) -> None:
    """And the host is that of the request."""
    library, ours = both
    limiter = Limiter(name, "1/hour", max_sleep=1.0)
    async with ours.limit(library.AsyncClient(proxy=service.url), limiter, key="host") as client:
        assert (await client.get("http://host/by-proxy")).status_code == 200

    assert service.paths == ["/by-proxy"]
    assert used(limiter["host"].status()) == [1]


def test_a_transport_of_the_users_own_is_opened_and_closed_with_the_client(both: tuple[Any, Any], single: Limiter) -> None:
    library, ours = both
    story: list[str] = []

    class Own(library.BaseTransport):  # type: ignore[misc, name-defined]
        def __enter__(self) -> Any:
            story.append("entered")
            return self

        def handle_request(self, request: Any) -> Any:
            story.append(request.url.path)
            return library.Response(200, text="own")

        def __exit__(self, *outcome: object) -> None:
            story.append("left")

        def close(self) -> None:
            story.append("closed")

    with ours.limit(library.Client(transport=Own(), trust_env=False), single) as client:
        assert client.get("http://host/a").text == "own"
    ours.Transport(single, inner=Own()).close()

    assert story == ["entered", "/a", "left", "closed"]
    assert used(single.status()) == [0, 1]


def test_a_rate_alone_leaves_the_body_as_it_is(both: tuple[Any, Any], service: Service, name: str) -> None:
    """There is nothing to give back."""
    library, ours = both
    with ours.limit(library.Client(), Limiter(name, "100/hour")) as client, client.stream("GET", service.url) as response:
        assert not isinstance(response.stream._stream, ours.Body)
