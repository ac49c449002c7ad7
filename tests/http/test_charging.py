"""In every client a request that was never sent costs nothing, and one that may have been, does."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import aiohttp
import pytest
import requests
import trustme
from aiohttp import web
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

import headgate.http.requests
from headgate import Concurrency, Limiter
from headgate.http.aiohttp import RateLimiter
from tests.http.clients import COROUTINES, ERRORS, LIMITS, TLS
from tests.http.service import Service
from tests.http.test_httpx import LIBRARIES
from tests.world import at_rest, soon, until, used

Clients = Callable[..., Any]
NO_SERVER = "http://127.0.0.1:1"
BRIEF = 0.05  # seconds of a time-out that is meant to end


@pytest.fixture
def one(name: str) -> Limiter:
    """A limiter of one call at a time, in this process."""
    return Limiter(name, Concurrency(1), "1000/hour")


@pytest.fixture
def both(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    return LIBRARIES[request.param]


@contextmanager
def full() -> Iterator[str]:
    """The address of a server that accepts no connection: its queue of them is full."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.socket())
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        while True:
            filler = stack.enter_context(socket.socket())
            filler.settimeout(BRIEF)
            try:
                filler.connect(server.getsockname())
            except TimeoutError:
                break
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def stranger() -> Iterator[str]:
    """The address of a server whose certificate no client trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)

    def greet() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=greet)
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@contextmanager
def refusing() -> Iterator[str]:
    yield NO_SERVER


SERVERS = {"refuses": refusing, "is full": full, "is strange": stranger}


@pytest.mark.parametrize("server", SERVERS)
async def test_a_call_without_a_connection_costs_nothing(
    clients: Clients, one: Limiter, server: str
) -> None:
    """Its permit and its request go back."""
    with SERVERS[server]() as url:
        client = clients(one, timeout=0.3 if server == "is full" else 5)
        with pytest.raises((*ERRORS, TimeoutError)):
            await soon(client.get(url))

    assert used(await at_rest(one)) == [0, 0]


async def test_a_call_without_an_answer_costs_a_request(
    clients: Clients, service: Service, one: Limiter
) -> None:
    """The server may have worked for it."""
    with pytest.raises((*ERRORS, TimeoutError)):
        await soon(clients(one, timeout=0.5).get(f"{service.url}/slow?ms=10000"))

    assert used(await at_rest(one)) == [0, service.calls] == [0, 1]


@pytest.mark.parametrize("way", ["by its own time-out", "by the caller"])
@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_calls_that_wait_in_vain_for_a_connection_cost_nothing(
    kind: str, service: Service, name: str, store: Any, way: str
) -> None:
    """With a pool of one connection, one of ten calls is sent."""
    limiter = Limiter(name, Concurrency(100), "100/hour", store=store)
    pooled = BRIEF if "own" in way else None
    client: Any
    if kind == "aiohttp":
        client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=1), timeout=aiohttp.ClientTimeout(connect=pooled)
        )
    else:
        library, _ = LIBRARIES[kind]
        client = library.AsyncClient(
            limits=library.Limits(max_connections=1),
            timeout=library.Timeout(None, pool=pooled),
            verify=TLS,
        )
    async with LIMITS[kind](client, limiter):
        url = f"{service.url}/stream"
        stream = client.get(url) if kind == "aiohttp" else client.stream("GET", url)
        await stream.__aenter__()
        others = [asyncio.ensure_future(awaited(client.get(service.url))) for _ in range(9)]
        if "own" not in way:
            await until(lambda status: used(status) == [10, 10], limiter)
            for other in others:
                other.cancel()
        ended = await soon(asyncio.gather(*others, return_exceptions=True))
        assert all(isinstance(each, BaseException) for each in ended)
        assert (service.calls, used(await limiter.astatus())) == (1, [1, 1])
        service.finish()
        await stream.__aexit__(None, None, None)

    assert used(await at_rest(limiter)) == [0, 1]


async def awaited(call: Awaitable[Any]) -> Any:
    return await call


@pytest.mark.parametrize("both", LIBRARIES, indirect=True)
async def test_threads_that_wait_in_vain_for_a_connection_cost_nothing(
    both: tuple[Any, Any], service: Service, name: str
) -> None:
    library, ours = both
    limiter = Limiter(name, Concurrency(100), "100/hour")
    client = library.Client(
        limits=library.Limits(max_connections=1), timeout=library.Timeout(None, pool=BRIEF)
    )
    with ours.limit(client, limiter), client.stream("GET", f"{service.url}/stream"):
        with pytest.raises(library.PoolTimeout):
            await asyncio.to_thread(client.get, service.url)
        service.finish()

    assert (service.calls, used(limiter.status())) == (1, [0, 1])


@pytest.mark.parametrize("both", LIBRARIES, indirect=True)
def test_a_protocol_that_the_client_does_not_speak_costs_nothing(
    both: tuple[Any, Any], one: Limiter
) -> None:
    library, ours = both
    with ours.limit(library.Client(), one) as client, pytest.raises(library.UnsupportedProtocol):
        client.get("ftp://127.0.0.1/")

    assert used(one.status()) == [0, 0]


async def test_a_proxy_that_is_away_costs_nothing(kind: str, one: Limiter) -> None:
    if kind == "requests":
        session = LIMITS[kind](requests.Session(), one)
        with session, pytest.raises(requests.exceptions.ProxyError):
            session.get("http://host/", proxies={"http": NO_SERVER})
    elif kind == "aiohttp":
        async with LIMITS[kind](aiohttp.ClientSession(), one) as session:
            with pytest.raises(aiohttp.ClientProxyConnectionError):
                await session.get("http://host/", proxy=NO_SERVER)
    else:
        library, _ = LIBRARIES[kind.removesuffix("-sync")]
        client = (library.Client if "sync" in kind else library.AsyncClient)(proxy=NO_SERVER)
        LIMITS[kind](client, one)
        with pytest.raises(library.ConnectError):
            if "sync" in kind:
                client.get("http://host/")
            else:
                await client.get("http://host/")

    assert used(await at_rest(one)) == [0, 0]


@pytest.mark.parametrize("both", LIBRARIES, indirect=True)
async def test_a_tunnel_that_the_proxy_refuses_costs_nothing(
    both: tuple[Any, Any], service: Service, one: Limiter
) -> None:
    """The proxy gets a CONNECT, and the service behind it gets nothing."""
    library, ours = both
    async with ours.limit(library.AsyncClient(proxy=service.url), one) as client:
        with pytest.raises(library.ProxyError):
            await client.get("https://host/")

    assert used(await at_rest(one)) == [0, 0]


@pytest.mark.parametrize("both", LIBRARIES, indirect=True)
async def test_a_call_that_was_sent_before_its_last_try_is_charged(
    both: tuple[Any, Any], service: Service, name: str
) -> None:
    """A transport between two limiters sends again. The last try finds no server."""
    library, ours = both

    class Again(library.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            with suppress(library.HTTPError):
                return await inner.handle_async_request(request)
            request.url = request.url.copy_with(port=1)
            return await inner.handle_async_request(request)

    outer, inside = (Limiter(f"{name}-{its}", Concurrency(1), "9/hour") for its in ("o", "i"))
    inner = ours.AsyncTransport(inside)
    async with library.AsyncClient(transport=ours.AsyncTransport(outer, inner=Again())) as client:
        with pytest.raises(library.ConnectError):
            await client.get(f"{service.url}/rude")
    await inner.aclose()

    assert [used(each.status()) for each in (outer, inside)] == [[0, 1], [0, 1]]


@pytest.mark.parametrize("both", LIBRARIES, indirect=True)
async def test_the_users_own_trace_is_called_too(
    both: tuple[Any, Any], service: Service, one: Limiter
) -> None:
    """And the extensions of the request are as they were."""
    library, ours = both
    steps: list[str] = []

    async def note(step: str, details: Any) -> None:
        steps.append(step)

    async with ours.limit(library.AsyncClient(), one) as client:
        request = client.build_request("GET", service.url, extensions={"trace": note})
        before = dict(request.extensions)
        await client.send(request)
        plain = client.build_request("GET", service.url)
        await client.send(plain)
    with ours.limit(library.Client(), one) as threads:
        threads.get(service.url, extensions={"trace": lambda step, details: steps.append(step)})

    assert steps.count("http11.send_request_headers.started") == 2
    assert steps.count("http11.receive_response_body.complete") == 2
    assert request.extensions == before
    assert "trace" not in plain.extensions


# Retries and layers ----------------------------------------------------------------------------


def test_tries_of_urllib3_that_find_no_server_cost_nothing(one: Limiter) -> None:
    with requests.Session() as session:
        session.mount("http://", HTTPAdapter(max_retries=2))
        headgate.http.requests.limit(session, one)
        with pytest.raises(requests.ConnectionError):
            session.get(NO_SERVER)

    assert used(one.status()) == [0, 0]


def test_of_several_tries_those_that_were_sent_are_charged(name: str) -> None:
    """The server is away for the second try. Both limiters of a session agree."""
    total, each = (Limiter(f"{name}-{its}", Concurrency(1), "9/hour") for its in ("t", "e"))

    class Late(Retry):
        def sleep(self, response: Any = None) -> None:
            server.close()

    def refuse() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.0 503 Busy\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server, requests.Session() as session:
        thread = threading.Thread(target=refuse)
        thread.start()
        session.mount("http://", HTTPAdapter(max_retries=Late(1, status_forcelist=[503])))
        headgate.http.requests.limit(headgate.http.requests.limit(session, each), total)
        with pytest.raises(requests.ConnectionError):
            session.get(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread.join()

    assert used(total.status()) == used(each.status()) == [0, 1]


def test_a_wrong_address_costs_nothing(one: Limiter) -> None:
    """requests finds no host in the address of the proxy."""
    session = headgate.http.requests.limit(requests.Session(), one)
    with session, pytest.raises(requests.exceptions.InvalidProxyURL):
        session.get("http://host/", proxies={"http": "http://:80"})

    assert used(one.status()) == [0, 0]


async def test_the_classic_wrapper_returns_the_token_of_a_call_without_a_connection(
    service: Service,
) -> None:
    async with RateLimiter(aiohttp.ClientSession(), rate=0.001, max_tokens=3) as client:
        for _ in range(9):
            with pytest.raises(aiohttp.ClientConnectorError):
                await client.get(NO_SERVER)
        async with client.get(f"{service.url}/redirect?n=1"):
            pass

        assert used(client._limiter.status()) == [2]


# Requests that are sent again ------------------------------------------------------------------


class Guarded(Service):
    """A service that asks for digest authentication, and takes any."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if "Authorization" not in request.headers:
            challenge = 'Digest realm="r", nonce="n", qop="auth", algorithm=SHA-256'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge}, text="Who?")
        return await super()._answer(request)


async def get_digested(kind: str, url: str, *limiters: Limiter) -> int:
    """GET with the client's own digest authentication, and a layer for each limiter."""
    if kind == "requests":
        session = requests.Session()
        for limiter in limiters:
            LIMITS[kind](session, limiter)
        with session:
            return session.get(url, auth=requests.auth.HTTPDigestAuth("u", "p")).status_code
    if kind == "aiohttp":
        digest = aiohttp.DigestAuthMiddleware("u", "p")
        async with aiohttp.ClientSession(middlewares=(digest,)) as client:
            for limiter in limiters:
                LIMITS[kind](client, limiter)
            async with client.get(url) as response:
                return response.status
    library, _ = LIBRARIES[kind.removesuffix("-sync")]
    client = (library.Client if "sync" in kind else library.AsyncClient)(verify=TLS)
    for limiter in limiters:
        LIMITS[kind](client, limiter)
    answer = client.get(url, auth=library.DigestAuth("u", "p"))
    status = (answer if "sync" in kind else await answer).status_code
    await (asyncio.to_thread(client.close) if "sync" in kind else client.aclose())
    return int(status)


async def test_each_request_of_digest_authentication_is_charged_once(kind: str, name: str) -> None:
    """By each layer, with room for one call at a time: the first request gives its permit back."""
    first, second = (Limiter(f"{name}-{its}", Concurrency(1), "9/hour") for its in (1, 2))
    with Guarded() as service:
        assert await soon(get_digested(kind, service.url, first, second)) == 200

        assert service.calls == 2
    assert used(await at_rest(first)) == used(await at_rest(second)) == [0, 2]


async def test_a_layer_around_a_refused_layer_costs_nothing(
    clients: Clients, name: str, kind: str
) -> None:
    """The client is limited twice, and there is no server."""
    first, second = (Limiter(f"{name}-{its}", Concurrency(1), "9/hour") for its in (1, 2))
    client = clients(first)
    LIMITS[kind](client.client, second)

    with pytest.raises(ERRORS):
        await soon(client.get(NO_SERVER))

    assert used(await at_rest(first)) == used(await at_rest(second)) == [0, 0]
