"""Every client charges each attempt, and holds each permit to the body's end."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, Status
from tests.http.clients import COROUTINES, ERRORS, LIMITS
from tests.http.service import FIRST, Service
from tests.world import at_rest, held, soon, used, waiting

Clients = Callable[..., Any]
NO_SERVER = "http://127.0.0.1:1"


async def inside(service: Service, count: int) -> None:
    await asyncio.to_thread(service.wait_inside, count)


def requests_of(status: Status) -> int:
    return next(limit.used for limit in status.limits if limit.unit == "requests")


async def test_a_strict_service_sees_no_more_than_the_limit_at_once(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """S1: the service answers 429 to a fourth call at once; of 30 calls none is refused."""
    limiter = Limiter(name, Concurrency(3), "1000/hour", store=store)
    client, service.at_once = clients(limiter), 3

    answers = await asyncio.gather(*(client.get(f"{service.url}/slow") for _ in range(30)))

    assert answers == [200] * 30
    assert (service.calls, service.refused) == (30, 0)
    assert requests_of(await at_rest(limiter)) == 30


async def test_each_hop_of_a_redirect_is_a_call(
    clients: Clients, service: Service, one: Limiter
) -> None:
    """With room for one call at a time, a hop that kept its permit would block the next."""
    assert await soon(clients(one).get(f"{service.url}/redirect?n=2")) == 200

    assert service.paths == ["/redirect", "/redirect", "/"]
    assert requests_of(await at_rest(one)) == 3


@pytest.mark.parametrize("path", ["/", "/empty"])
async def test_a_body_that_is_read_gives_its_permit_back(
    clients: Clients, service: Service, one: Limiter, path: str
) -> None:
    client = clients(one)

    for _ in range(3):
        assert await soon(client.get(service.url + path)) in (200, 204)

    await at_rest(one)


async def test_a_stream_holds_its_permit_until_it_is_read(
    clients: Clients, service: Service, one: Limiter
) -> None:
    """Others wait while the headers and the first chunk are there and the last chunk is not."""
    client = clients(one)
    stream = await soon(client.stream(f"{service.url}/stream"))
    other = asyncio.create_task(client.get(service.url))
    await waiting(one, 1)
    assert service.calls == 1

    service.finish()
    await soon(stream.rest())

    assert await soon(other) == 200
    assert service.most == 1
    await at_rest(one)
    await stream.close()


async def test_a_strict_service_sees_no_more_streams_than_the_limit_at_once(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """S1: the service answers 429 to a fourth stream at once.

    Of 12 streams together none is refused, and three go on at a time.
    """
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(20)
    )  # a thread for each stream that waits
    limiter = Limiter(name, Concurrency(3), "1000/hour", store=store)
    client, service.at_once = clients(limiter), 3

    async def streamed() -> None:
        stream = await client.stream(f"{service.url}/stream")
        await stream.rest()
        await stream.close()

    streams = asyncio.gather(*(streamed() for _ in range(12)))
    await inside(service, 3)
    assert (await waiting(limiter, 9)).limits[0].used == service.calls == 3
    service.finish()
    await streams

    assert (service.calls, service.refused, service.most) == (12, 0, 3)
    await at_rest(limiter)


async def test_a_stream_that_is_closed_gives_its_permit_back(
    clients: Clients, service: Service, one: Limiter
) -> None:
    client = clients(one)
    stream = await soon(client.stream(f"{service.url}/stream"))

    await stream.close()

    await at_rest(one)
    await inside(service, 0)
    assert await soon(client.get(service.url)) == 200


async def test_a_call_that_fails_gives_its_permit_back_and_is_charged(
    clients: Clients, service: Service, one: Limiter
) -> None:
    """All attempts that the server saw count: aiohttp repeats a GET without an answer once."""
    with pytest.raises(ERRORS):
        await soon(clients(one).get(f"{service.url}/rude"))

    assert requests_of(await at_rest(one)) == service.calls


async def test_a_refused_connection_leaves_nothing_held(clients: Clients, one: Limiter) -> None:
    with pytest.raises(ERRORS):
        await soon(clients(one).get(NO_SERVER))

    await at_rest(one)


@pytest.mark.parametrize("way", ["read at once", "streamed, and not closed"])
async def test_a_body_that_breaks_gives_its_permit_back(
    clients: Clients, one: Limiter, way: str, kind: str
) -> None:
    """The server sends a part of a body and closes the connection.

    A call of aiohttp lasts until its response is closed or dropped.
    """
    go_on = asyncio.Event()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + FIRST)
        await go_on.wait()
        writer.close()

    async with await asyncio.start_server(half, "127.0.0.1", 0) as server:
        client, url = clients(one), f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        call = asyncio.create_task(client.get(url) if way == "read at once" else client.stream(url))
        stream = None if way == "read at once" else await soon(call)
        go_on.set()
        with pytest.raises(ERRORS):
            await soon(call if stream is None else stream.rest())
        if stream is not None and kind == "aiohttp":
            await stream.close()
        await at_rest(one)
        if stream is not None:
            await stream.close()


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # headgate or the client warns of the dropped stream
async def test_a_stream_that_is_dropped_gives_its_permit_back(
    clients: Clients, service: Service, one: Limiter, kind: str
) -> None:
    """The stream is garbage, and was not closed. aiohttp keeps its own: see test_aiohttp.py."""
    if kind == "aiohttp":
        return
    client = clients(one)

    await soon(client.stream(f"{service.url}/stream"))

    while held(await one.astatus()):
        gc.collect()  # a cycle with a generator needs a second collection
        await asyncio.sleep(0)
    service.finish()


@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_a_task_that_is_cancelled_while_it_reads_gives_its_permit_back(
    clients: Clients, service: Service, one: Limiter
) -> None:
    reading = asyncio.create_task(clients(one).get(f"{service.url}/stream"))
    await inside(service, 1)

    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
    await at_rest(one)
    await inside(service, 0)


@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_a_task_that_is_cancelled_while_it_waits_has_sent_and_used_nothing(
    clients: Clients, service: Service, one: Limiter
) -> None:
    client = clients(one)
    async with one:
        call = asyncio.create_task(client.get(service.url))
        await waiting(one, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert requests_of(await at_rest(one)) == 1
    assert service.calls == 0


async def test_a_refusal_of_the_limiter_reaches_the_caller(
    clients: Clients, service: Service, name: str
) -> None:
    """When the second of two limiters refuses, the first has its permit and its request back."""
    first, second = (
        Limiter(f"{name}-1", Concurrency(1), "100/hour"),
        Limiter(f"{name}-2", "1/hour", max_sleep=1.0),
    )
    client = clients(first, second)
    assert await client.get(service.url) == 200

    with pytest.raises(MaxSleepExceededError) as refused:
        await client.get(service.url)

    assert refused.value.retry_after == pytest.approx(3600, rel=0.01)
    assert used(first.status()) == [0, 1]
    assert service.calls == 1


async def test_each_host_has_a_limit_of_its_own(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    limiter = Limiter(name, "1/hour", store=store, max_sleep=1.0)
    client = clients(limiter, key="host")
    elsewhere = service.url.replace("127.0.0.1", "LOCALHOST")

    assert [await client.get(service.url), await client.get(elsewhere)] == [200, 200]

    with pytest.raises(MaxSleepExceededError):
        await client.get(elsewhere)
    assert (
        used(await limiter["localhost"].astatus())
        == used(await limiter["127.0.0.1"].astatus())
        == [1]
    )
    assert used(await limiter.astatus()) == [0]


async def test_a_function_of_the_request_names_the_limit(
    clients: Clients, service: Service, name: str
) -> None:
    limiter = Limiter(name, "1/hour", max_sleep=1.0)
    client = clients(limiter, key=lambda request: urlsplit(str(request.url)).path)

    assert [await client.get(f"{service.url}/a"), await client.get(f"{service.url}/b")] == [
        200,
        200,
    ]

    with pytest.raises(MaxSleepExceededError):
        await client.get(f"{service.url}/a")


async def test_exempt_requests_are_not_limited(
    clients: Clients, service: Service, name: str
) -> None:
    limiter = Limiter(name, "1/hour", max_sleep=1.0)
    client = clients(
        limiter,
        exempt=[
            "/health",
            "/caf\u00e9 1",
            lambda request: request.method == "GET" and str(request.url).endswith("?free"),
        ],
    )

    for path in ("/health", "/health/deep", "/caf%C3%A9%201/2", "/any?free", "/"):
        assert await client.get(service.url + path) == 200

    assert used(limiter.status()) == [1]
    with pytest.raises(MaxSleepExceededError):
        await client.get(f"{service.url}/healthy")


async def test_the_wait_is_no_part_of_the_clients_time_out(
    clients: Clients, service: Service, one: Limiter, kind: str
) -> None:
    """The time-out is shorter than the wait. aiohttp's total counts it: see test_aiohttp.py."""
    if kind == "aiohttp":
        return
    client = clients(one, timeout=0.5)
    async with one:
        call = asyncio.create_task(client.get(service.url))
        await waiting(one, 1)
        await asyncio.sleep(0.55)
        assert not call.done()

    assert await soon(call) == 200


async def test_a_client_can_be_limited_twice(
    clients: Clients, service: Service, name: str, kind: str
) -> None:
    """One limit for all hosts, and one for each host."""
    total, each = (
        Limiter(f"{name}-total", Concurrency(2), "100/hour"),
        Limiter(f"{name}-each", Concurrency(2), "100/hour"),
    )
    client = clients(total)
    LIMITS[kind](client.client, each, key="host")

    assert await client.get(f"{service.url}/redirect?n=1") == 200

    assert used(total.status()) == [0, 2]
    assert used(each["127.0.0.1"].status()) == [0, 2]


async def test_a_refusal_of_the_last_limiter_refunds_the_first(
    clients: Clients, service: Service, name: str, kind: str
) -> None:
    """T8: the client is limited twice, and the limiter that is passed last refuses."""
    total, each = (
        Limiter(f"{name}-total", "9/hour"),
        Limiter(f"{name}-each", "1/hour", max_sleep=0.5),
    )
    before, after = (total, each) if kind == "aiohttp" else (each, total)
    client = clients(before)
    LIMITS[kind](client.client, after)

    for _ in range(3):
        with suppress(MaxSleepExceededError):
            await client.get(f"{service.url}/")

    assert (service.calls, used(total.status()), used(each.status())) == (1, [1], [1])


def test_bad_arguments_are_refused_before_anything_is_changed(kind: str) -> None:
    """The error names the call that was made."""
    limit, client = LIMITS[kind], object()
    api = Limiter("api", "1/hour")

    async def later(request: Any) -> bool:
        return False

    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "has no limiters"),
        (("100/minute",), {}, "as a limiter: write a Limiter"),
        ((api,), {"key": 3}, "a key is 'host', or a function"),
        ((api["a"],), {"key": "host"}, "already has a key"),
        ((api,), {"exempt": "localhost"}, r"write \['localhost'\]"),
        ((api,), {"exempt": [3]}, "or a function of the request"),
        ((api,), {"exempt": [later]}, "or a function of the request that returns True or False"),
        ((api,), {"key": later}, "or a function of the request that returns a text"),
        ((api,), {"exempt": ["http://host"]}, "without its port"),
        ((api,), {"exempt": ["Host"]}, "in lower case"),
        ((api,), {"exempt": [""]}, "write a host"),
    ]
    for arguments, options, words in refused:
        with pytest.raises((TypeError, ValueError), match=rf"^limit\W.*{words}"):
            limit(client, *arguments, **options)
    with pytest.raises(TypeError, match="limit"):
        limit(client, api)
