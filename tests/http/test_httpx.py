"""The peculiarities of httpx and httpx2: transports by hand, and all that `limit` keeps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import pytest

import headgate.http.httpx
import headgate.http.httpx2
from headgate import Concurrency, Limiter
from headgate.http import httpx_transports
from tests.http.service import Service
from tests.world import at_rest, used

LIBRARIES: dict[str, tuple[Any, Any]] = {
    "httpx": (httpx, headgate.http.httpx),
    "httpx2": (httpx2, headgate.http.httpx2),
}


@pytest.fixture(params=LIBRARIES)
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Return the library, and our module for it."""
    return LIBRARIES[request.param]


@pytest.fixture
def single(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), "100/hour")


def test_a_transport_by_hand_limits_one_client(
    both: tuple[Any, Any], service: Service, single: Limiter
) -> None:
    library, ours = both
    with library.Client(transport=ours.Transport(single)) as client:
        assert client.get(service.url).text == "GET ok"

    assert used(single.status()) == [0, 1]


async def test_a_transport_by_hand_limits_one_host(
    both: tuple[Any, Any], service: Service, single: Limiter
) -> None:
    """It is a mount of the client; other hosts use the client's own transport."""
    library, ours = both
    async with library.AsyncClient(
        mounts={"all://localhost": ours.AsyncTransport(single)}
    ) as client:
        await client.get(service.url)
        await client.get(service.url.replace("127.0.0.1", "localhost"))

    assert (service.calls, used(single.status())) == (2, [0, 1])


@pytest.mark.parametrize("name_of_client", ["Client", "AsyncClient"])
def test_limit_keeps_a_clients_transports(
    both: tuple[Any, Any], single: Limiter, name_of_client: str
) -> None:
    """With their pools and TLS; mounts in their order, also one that means "no proxy here"."""
    library, ours = both
    client = getattr(library, name_of_client)(
        mounts={"all://host": None}, proxy="http://127.0.0.1:1"
    )
    transport, mounts = client._transport, dict(client._mounts)

    assert ours.limit(client, single) is client

    assert client._transport._inner is transport
    assert list(client._mounts) == list(mounts)
    assert {pattern: inner and inner._inner for pattern, inner in client._mounts.items()} == mounts
    assert None in client._mounts.values()


async def test_limit_keeps_a_clients_proxy(
    both: tuple[Any, Any], service: Service, name: str
) -> None:
    """The host for `key` is that of the request."""
    library, ours = both
    limiter = Limiter(name, "1/hour", max_sleep=1.0)
    async with ours.limit(library.AsyncClient(proxy=service.url), limiter, key="host") as client:
        assert (await client.get("http://host/by-proxy")).status_code == 200

    assert service.paths == ["/by-proxy"]
    assert used(limiter["host"].status()) == [1]


def test_a_users_transport_is_opened_and_closed_with_the_client(
    both: tuple[Any, Any], single: Limiter
) -> None:
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


def test_a_rate_alone_does_not_wrap_the_body(
    both: tuple[Any, Any], service: Service, name: str
) -> None:
    """There is nothing to give back."""
    library, ours = both
    with (
        ours.limit(library.Client(), Limiter(name, "100/hour")) as client,
        client.stream("GET", service.url) as response,
    ):
        assert not isinstance(response.stream._stream, ours.Body)


# Refusals that are read ahead ------------------------------------------------------------------

JSON = {"content-type": "application/json", "retry-after": "60"}
SPENT = b'{"error": {"code": "insufficient_quota"}, "more": "'


def refuse_all(
    library: Any, chunks: list[bytes], breaks: bool, threads: bool, headers: dict[str, str]
) -> Any:
    """Return a transport that refuses each request, with a body in chunks that may break off."""

    class Chunks(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            yield from chunks
            if breaks:
                raise library.ReadError("broken off")

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for chunk in self:
                yield chunk

    def answer(request: Any) -> Any:
        return library.Response(429, headers={**JSON, **headers}, stream=Chunks())

    async def aanswer(request: Any) -> Any:
        return answer(request)

    return library.MockTransport(answer if threads else aanswer)


async def body_of(library: Any, client: Any, threads: bool) -> tuple[bytes, bool]:
    """Return the bytes that were read of a stream, and whether it broke off."""
    body = b""
    try:
        if threads:
            with client.stream("GET", "http://host/") as response:
                for chunk in response.iter_raw():
                    body += chunk
        else:
            async with client.stream("GET", "http://host/") as response:
                async for chunk in response.aiter_raw():
                    body += chunk
    except library.ReadError:
        return body, True
    return body, False


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("breaks", [False, True])
@pytest.mark.parametrize("size", [0, 200_000])
@pytest.mark.parametrize("limit", ["1 concurrent", "100/hour"])
async def test_a_refusal_that_was_read_ahead_can_be_read_in_full(
    both: tuple[Any, Any], name: str, threads: bool, breaks: bool, size: int, limit: str
) -> None:
    """Short, or longer than the part that is read ahead: its reader gets all of it, and its
    failure.
    """
    library, ours = both
    chunks = [SPENT, *[b"x" * 50_000] * (size // 50_000), b'"}']
    limiter, transport = Limiter(name, limit), refuse_all(library, chunks, breaks, threads, {})
    client = ours.limit(
        (library.Client if threads else library.AsyncClient)(transport=transport), limiter
    )

    assert await body_of(library, client, threads) == (b"".join(chunks), breaks)

    status = await at_rest(limiter)
    assert status.retry_after == (
        0 if size == 0 else pytest.approx(60, abs=1)
    )  # half a body is not read


@pytest.mark.parametrize("threads", [False, True])
async def test_an_interrupted_reading_ahead_closes_the_body(
    both: tuple[Any, Any], single: Limiter, threads: bool
) -> None:
    """The caller does not have the response yet, so it could not close the body."""
    library, ours = both
    story: list[str] = []
    asked = asyncio.Event()

    class Never(library.SyncByteStream, library.AsyncByteStream):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[bytes]:
            yield b"{"
            raise KeyboardInterrupt

        async def __aiter__(self) -> AsyncIterator[bytes]:
            asked.set()
            yield await asyncio.get_running_loop().create_future()

        def close(self) -> None:
            story.append("closed")

        async def aclose(self) -> None:
            story.append("closed")

    def answer(request: Any) -> Any:
        return library.Response(429, headers=JSON, stream=Never())

    async def aanswer(request: Any) -> Any:
        return answer(request)

    transport = library.MockTransport(answer if threads else aanswer)
    client = ours.limit(
        (library.Client if threads else library.AsyncClient)(transport=transport), single
    )
    if threads:
        with pytest.raises(KeyboardInterrupt):
            client.get("http://host/")
    else:
        call = asyncio.create_task(client.get("http://host/"))
        await asked.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert story == ["closed"]
    assert used(await at_rest(single)) == [0, 1]


@pytest.mark.parametrize("threads", [False, True])
async def test_a_refusal_that_comes_slowly_is_applied_by_its_headers(
    both: tuple[Any, Any], single: Limiter, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The body takes longer than is waited for it; its reader gets all of it."""
    library, ours = both
    monkeypatch.setattr(httpx_transports, "LONGEST_READ", 0.0)
    transport = refuse_all(library, [SPENT, b'"}'], False, threads, {})
    client = ours.limit(
        (library.Client if threads else library.AsyncClient)(transport=transport), single
    )

    assert await body_of(library, client, threads) == (SPENT + b'"}', False)

    assert (await at_rest(single)).retry_after == pytest.approx(60, abs=1)


@pytest.mark.parametrize(("coding", "wait"), [("gzip", 60), ("br", 60), ("identity", 0)])
def test_a_body_in_a_wrong_coding_is_ignored(
    both: tuple[Any, Any], single: Limiter, coding: str, wait: int
) -> None:
    """The headers decide alone."""
    library, ours = both
    transport = refuse_all(library, [SPENT + b'"}'], False, True, {"content-encoding": coding})
    with (
        ours.limit(library.Client(transport=transport), single) as client,
        client.stream("GET", "http://host/") as response,
    ):
        assert b"".join(response.iter_raw()) == SPENT + b'"}'

    assert single.status().retry_after == pytest.approx(wait, abs=1)


def test_a_complete_refusal_is_read_as_it_is(both: tuple[Any, Any], single: Limiter) -> None:
    """As that of a mock. One that was closed unread says nothing."""
    library, ours = both
    unread = library.Response(429, headers=JSON, stream=library.ByteStream(SPENT))
    unread.close()
    answers = [library.Response(429, headers=JSON, content=SPENT + b'"}'), unread]
    with ours.limit(
        library.Client(transport=library.MockTransport(lambda request: answers.pop(0))), single
    ) as client:
        assert client.get("http://host/").status_code == 429
        assert single.status().retry_after == 0
        assert client._transport.handle_request(library.Request("GET", "http://host/")) is unread

    assert single.status().retry_after == pytest.approx(60, abs=1)
