"""Answers of caches are neither charged nor applied, wherever the cache stands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp_client_cache
import cachecontrol
import hishel
import hishel.httpx
import hishel.httpx2
import hishel.requests
import httpx
import httpx2
import pytest
import requests
import requests_cache
from aiohttp import web

import headgate.http.aiohttp
import headgate.http.httpx
import headgate.http.httpx2
import headgate.http.requests
from headgate import Concurrency, Limiter
from tests.http.service import Service
from tests.world import soon, used

Get = Callable[[str], Awaitable[int]]
HTTPX: dict[str, tuple[Any, Any, Any]] = {
    "httpx": (httpx, hishel.httpx, headgate.http.httpx),
    "httpx2": (httpx2, hishel.httpx2, headgate.http.httpx2),
}


class Cacheable(Service):
    """Its answers may be kept: /fresh for an hour, /stale if the service is asked each time."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        headers = {
            "Cache-Control": "max-age=3600" if request.path == "/fresh" else "no-cache",
            "ETag": '"tag"',
            "X-RateLimit-Limit": "10",
            "X-RateLimit-Remaining": "3",
        }
        if request.headers.get("If-None-Match") == '"tag"':
            return web.Response(status=304, headers=headers)
        return web.Response(text="cached", headers=headers)


@pytest.fixture
def cacheable() -> Iterator[Cacheable]:
    with Cacheable() as service:
        yield service


@pytest.fixture
def ten(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), "10/hour")


def in_session(session: Any) -> Get:
    async def get(url: str) -> int:
        return int(session.get(url).status_code)

    return get


def cache_of_cachecontrol(limiter: Limiter, folder: Path, stack: ExitStack) -> Get:
    session = cachecontrol.CacheControl(requests.Session())
    return in_session(stack.enter_context(headgate.http.requests.limit(session, limiter)))


def cache_of_hishel_for_requests(limiter: Limiter, folder: Path, stack: ExitStack) -> Get:
    storage = hishel.SqliteStorage(database_path=folder / "cache.db")
    session = requests.Session()
    session.mount("http://", hishel.requests.CacheAdapter(storage=storage, rfc=True))
    return in_session(stack.enter_context(headgate.http.requests.limit(session, limiter)))


def cache_of_requests_cache(limiter: Limiter, folder: Path, stack: ExitStack) -> Get:
    session = requests_cache.CachedSession(backend="memory", cache_control=True)
    return in_session(stack.enter_context(headgate.http.requests.limit(session, limiter)))


def cache_of_hishel(library: str, inside: bool) -> Callable[..., Get]:
    """hishel's client with limits around its cache, or a cache around our transport."""
    client_library, caches, ours = HTTPX[library]

    def make(limiter: Limiter, folder: Path, stack: ExitStack) -> Get:
        storage = hishel.SqliteStorage(database_path=folder / "cache.db")
        if inside:
            limited = ours.Transport(limiter)
            transport = caches.CacheTransport(limited, storage=storage, rfc=True)
            client = client_library.Client(transport=transport)
        else:
            client = ours.limit(caches.CacheClient(storage=storage, rfc=True), limiter)
        return in_session(stack.enter_context(client))

    return make


CACHES: dict[str, Callable[..., Get]] = {
    "CacheControl": cache_of_cachecontrol,
    "hishel, requests": cache_of_hishel_for_requests,
    "requests-cache": cache_of_requests_cache,
    **{
        f"hishel, {library}, {'outside' if inside else 'inside'}": cache_of_hishel(library, inside)
        for library in HTTPX
        for inside in (True, False)
    },
}


@pytest.mark.parametrize("cache", CACHES)
async def test_a_cached_answer_is_neither_charged_nor_applied(
    cacheable: Cacheable, ten: Limiter, tmp_path: Path, cache: str
) -> None:
    """Its old headers say that three requests are left. One that was asked for again is a call."""
    with ExitStack() as stack:
        get = CACHES[cache](ten, tmp_path, stack)
        assert await get(f"{cacheable.url}/fresh") == 200
        assert used(ten.status()) == [0, 7]
        ten.reset()

        assert await get(f"{cacheable.url}/fresh") == 200
        assert (cacheable.calls, used(ten.status())) == (1, [0, 0])

        assert await get(f"{cacheable.url}/stale") == 200
        ten.reset()
        assert await get(f"{cacheable.url}/stale") == 200
        assert cacheable.calls == 3
        assert used(ten.status())[1] >= 1


@pytest.mark.parametrize("library", HTTPX)
@pytest.mark.parametrize("inside", [True, False])
async def test_coroutines_get_cached_answers_for_nothing(
    cacheable: Cacheable, ten: Limiter, tmp_path: Path, library: str, inside: bool
) -> None:
    client_library, caches, ours = HTTPX[library]
    storage = hishel.AsyncSqliteStorage(database_path=tmp_path / "cache.db")
    if inside:
        limited = ours.AsyncTransport(ten)
        transport = caches.AsyncCacheTransport(limited, storage=storage, rfc=True)
        client = client_library.AsyncClient(transport=transport)
    else:
        client = ours.limit(caches.AsyncCacheClient(storage=storage, rfc=True), ten)
    async with client:
        for _ in range(3):
            assert (await soon(client.get(f"{cacheable.url}/fresh"))).text == "cached"
        assert (cacheable.calls, used(ten.status())) == (1, [0, 7])


async def test_a_cached_session_of_aiohttp_passes_the_limiter_for_what_it_sends(
    cacheable: Cacheable, ten: Limiter
) -> None:
    async with aiohttp_client_cache.CachedSession(
        cache=aiohttp_client_cache.CacheBackend()
    ) as session:
        headgate.http.aiohttp.limit(session, ten)
        for _ in range(3):
            async with session.get(f"{cacheable.url}/fresh") as response:
                assert await response.text() == "cached"

    assert (cacheable.calls, used(ten.status())) == (1, [0, 7])


def test_a_cached_answer_of_another_adapter_costs_nothing(ten: Limiter) -> None:
    """An adapter of the user, without urllib3, that says so by `from_cache`."""

    class Kept(requests.adapters.BaseAdapter):
        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            response: Any = requests.Response()
            response.status_code, response.from_cache = 200, True
            return response

        def close(self) -> None:
            pass

    with requests.Session() as session:
        session.mount("http://", Kept())
        headgate.http.requests.limit(session, ten)
        assert session.get("http://host/").status_code == 200

    assert used(ten.status()) == [0, 0]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_server_cannot_say_that_its_answer_came_from_a_cache(name: str, layers: int) -> None:
    """The header is that of hishel's adapter, and the adapter one of the user."""

    class Own(requests.adapters.BaseAdapter):
        def send(self, *arguments: Any, **options: Any) -> requests.Response:
            return requests.adapters.HTTPAdapter().send(*arguments, **options)

        def close(self) -> None:
            pass

    limiters = [Limiter(f"{name}{number}", "10/hour") for number in range(layers)]
    with Service() as service, requests.Session() as session:
        session.mount("http://", Own())
        for limiter in limiters:
            headgate.http.requests.limit(session, limiter)
        service.answers = [(200, {"X-Hishel-From-Cache": "true"})]
        assert session.get(f"{service.url}/says").status_code == 200

    assert [used(limiter.status()) for limiter in limiters] == [[1]] * layers
