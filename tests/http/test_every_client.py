"""What is promised of every client: charged for each attempt, held to the end of the body, back whatever happens."""

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
NOBODY = "http://127.0.0.1:1"  # where no server is


async def inside(service: Service, count: int) -> None:
    await asyncio.to_thread(service.wait_inside, count)


def requests_of(status: Status) -> int:
    return next(limit.used for limit in status.limits if limit.unit == "requests")


async def test_a_strict_service_sees_no_more_than_the_limit_at_once(
    clients: Clients, service: Service, name: str, store: Any
) -> None:
    """S1: given a service that answers 429 to the fourth at once, when 30 call it together, then none is refused."""
    limiter = Limiter(name, Concurrency(3), "1000/hour", store=store)
    client, service.at_once = clients(limiter), 3

    answers = await asyncio.gather(*(client.get(f"{service.url}/slow") for _ in range(30)))

    assert answers == [200] * 30
    assert (service.calls, service.refused) == (30, 0)
    assert requests_of(await at_rest(limiter)) == 30


async def test_each_hop_of_a_redirect_is_a_call(
    clients: Clients, service: Service, one: Limiter
) -> None:
    """With room for one call at a time: a hop that kept its permit would stand in the way of the next."""
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
    """Given a stream whose headers and first chunk are there, then others wait until its last chunk is."""
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
    """S1: given a service that counts its streams and answers 429 to the fourth, when 12 are asked for together, then none is
    refused, and there are three while they last."""
    asyncio.get_running_loop().set_default_executor(
        ThreadPoolExecutor(20)
    )  # who waits in a thread takes nobody's
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
    """What the server saw counts: aiohttp sends a GET once more when a connection ends without an answer."""
    with pytest.raises(ERRORS):
        await soon(clients(one).get(f"{service.url}/rude"))

    assert requests_of(await at_rest(one)) == service.calls


async def test_where_nobody_listens_nothing_stays_held(clients: Clients, one: Limiter) -> None:
    with pytest.raises(ERRORS):
        await soon(clients(one).get(NOBODY))

    await at_rest(one)


@pytest.mark.parametrize("way", ["read at once", "streamed, and not closed"])
async def test_a_body_that_breaks_gives_its_permit_back(
    clients: Clients, one: Limiter, way: str, kind: str
) -> None:
    """Given a body of which the server sends a part and then closes the connection. aiohttp's call lasts until its response is
    closed or dropped."""
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
)  # whoever drops a stream is told so, by headgate or by the client
async def test_a_stream_that_is_dropped_gives_its_permit_back(
    clients: Clients, service: Service, one: Limiter, kind: str
) -> None:
    """Given a stream that nobody has closed nor knows any more. aiohttp keeps its own: see test_aiohttp.py."""
    if kind == "aiohttp":
        return
    client = clients(one)

    await soon(client.stream(f"{service.url}/stream"))

    while held(await one.astatus()):
        gc.collect()  # of a cycle with a generator in it, what is awaited at its end is collected by the next
        await asyncio.sleep(0)
    service.finish()


@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_who_is_cancelled_while_it_reads_gives_back(
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
async def test_who_is_cancelled_while_it_waits_has_sent_and_used_nothing(
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


async def test_who_may_not_wait_is_told_so_by_the_limiter(
    clients: Clients, service: Service, name: str
) -> None:
    """Given two limiters, when the second refuses, then the first has its permit and its request back."""
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


async def test_what_is_exempt_is_not_limited(clients: Clients, service: Service, name: str) -> None:
    limiter = Limiter(name, "1/hour", max_sleep=1.0)
    client = clients(
        limiter,
        exempt=[
            "/health",
            lambda request: request.method == "GET" and str(request.url).endswith("?free"),
        ],
    )

    for path in ("/health", "/health/deep", "/any?free", "/"):
        assert await client.get(service.url + path) == 200

    assert used(limiter.status()) == [1]
    with pytest.raises(MaxSleepExceededError):
        await client.get(f"{service.url}/healthy")


async def test_the_wait_is_no_part_of_the_clients_time_out(
    clients: Clients, service: Service, one: Limiter, kind: str
) -> None:
    """Given a time-out that is shorter than the wait. aiohttp's total counts it: see test_aiohttp.py."""
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
    """Given one limit for all and one for each host."""
    total, each = (
        Limiter(f"{name}-total", Concurrency(2), "100/hour"),
        Limiter(f"{name}-each", Concurrency(2), "100/hour"),
    )
    client = clients(total)
    LIMITS[kind](client.client, each, key="host")

    assert await client.get(f"{service.url}/redirect?n=1") == 200

    assert used(total.status()) == [0, 2]
    assert used(each["127.0.0.1"].status()) == [0, 2]


async def test_what_is_refused_further_in_was_never_sent(
    clients: Clients, service: Service, name: str, kind: str
) -> None:
    """T8: given a client that is limited twice, when the limiter that is passed last refuses, then the first has its token back."""
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


def test_what_can_never_work_is_refused_before_anything_is_changed(kind: str) -> None:
    """With the words of the call that was made."""
    limit, client = LIMITS[kind], object()
    api = Limiter("api", "1/hour")

    async def later(request: Any) -> bool:
        return False

    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "has no limiters"),
        (("100/minute",), {}, "as a limiter: write a Limiter"),
        ((api,), {"key": 3}, "a key is 'host', or a function"),
        ((api["a"],), {"key": "host"}, "is one key's already"),
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
