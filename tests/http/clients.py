"""HTTP clients behind one interface, `get` and `stream`, so that one test runs for all of them.

Each is used as its documents say. A client without coroutines works in a thread. Here are the
differences between the clients, and no assertion.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp
import httpx
import httpx2
import requests

import headgate.http.aiohttp
import headgate.http.httpx
import headgate.http.httpx2
import headgate.http.requests

Finder = Callable[[Any], str]
# One for all clients: each of its own would read the certificates anew.
TLS = ssl.create_default_context()


class Stream:
    """A response whose first chunk has been read."""

    def __init__(
        self,
        response: Any,
        rest: Callable[[], Awaitable[Any]],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self.response = response
        self.rest = rest
        self.close = close


class AsyncHttpx:
    """httpx or httpx2, in coroutines."""

    def __init__(
        self,
        library: Any,
        limit: Callable[..., Any],
        limiters: Any,
        options: Any,
        timeout: float = 5,
    ) -> None:
        self.client = limit(
            library.AsyncClient(timeout=timeout, follow_redirects=True, verify=TLS),
            *limiters,
            **options,
        )

    async def get(self, url: str) -> int:
        return int((await self.client.get(url)).status_code)

    async def stream(self, url: str) -> Stream:
        response = await self.client.send(self.client.build_request("GET", url), stream=True)
        chunks = response.aiter_raw()
        await anext(chunks)

        async def rest() -> list[bytes]:
            return [chunk async for chunk in chunks]

        return Stream(response, rest, response.aclose)

    async def close(self) -> None:
        await self.client.aclose()


class SyncHttpx:
    """The same in threads."""

    def __init__(
        self,
        library: Any,
        limit: Callable[..., Any],
        limiters: Any,
        options: Any,
        timeout: float = 5,
    ) -> None:
        self.client = limit(
            library.Client(timeout=timeout, follow_redirects=True, verify=TLS),
            *limiters,
            **options,
        )

    async def get(self, url: str) -> int:
        return int((await asyncio.to_thread(self.client.get, url)).status_code)

    async def stream(self, url: str) -> Stream:
        response = await asyncio.to_thread(
            self.client.send, self.client.build_request("GET", url), stream=True
        )
        chunks = response.iter_raw()
        await asyncio.to_thread(next, chunks)
        return Stream(
            response,
            partial(asyncio.to_thread, list, chunks),
            partial(asyncio.to_thread, response.close),
        )

    async def close(self) -> None:
        self.client.close()


class Requests:
    """requests, in threads."""

    def __init__(self, limiters: Any, options: Any, timeout: float = 5) -> None:
        self.timeout = timeout
        self.client = headgate.http.requests.limit(requests.Session(), *limiters, **options)

    async def get(self, url: str) -> int:
        return (await asyncio.to_thread(self.client.get, url, timeout=self.timeout)).status_code

    async def stream(self, url: str) -> Stream:
        response = await asyncio.to_thread(self.client.get, url, stream=True)
        chunks = response.iter_content(10)
        await asyncio.to_thread(next, chunks)
        return Stream(
            response,
            partial(asyncio.to_thread, list, chunks),
            partial(asyncio.to_thread, response.close),
        )

    async def close(self) -> None:
        self.client.close()


class Aiohttp:
    """aiohttp, in coroutines."""

    def __init__(self, limiters: Any, options: Any, timeout: float = 5) -> None:
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout))
        self.client = headgate.http.aiohttp.limit(session, *limiters, **options)

    async def get(self, url: str) -> int:
        async with self.client.get(url) as response:
            await response.read()
            return response.status

    async def stream(self, url: str) -> Stream:
        response = await self.client.get(url)
        await response.content.readany()

        async def close() -> None:
            response.close()

        return Stream(response, response.content.read, close)

    async def close(self) -> None:
        await self.client.close()


CLIENTS: dict[str, Callable[..., Any]] = {
    "httpx": partial(AsyncHttpx, httpx, headgate.http.httpx.limit),
    "httpx2": partial(AsyncHttpx, httpx2, headgate.http.httpx2.limit),
    "httpx-sync": partial(SyncHttpx, httpx, headgate.http.httpx.limit),
    "httpx2-sync": partial(SyncHttpx, httpx2, headgate.http.httpx2.limit),
    "requests": Requests,
    "aiohttp": Aiohttp,
}
LIMITS: dict[str, Callable[..., Any]] = {
    "httpx": headgate.http.httpx.limit,
    "httpx2": headgate.http.httpx2.limit,
    "httpx-sync": headgate.http.httpx.limit,
    "httpx2-sync": headgate.http.httpx2.limit,
    "requests": headgate.http.requests.limit,
    "aiohttp": headgate.http.aiohttp.limit,
}
COROUTINES = ("httpx", "httpx2", "aiohttp")
ERRORS = (httpx.HTTPError, httpx2.HTTPError, requests.RequestException, aiohttp.ClientError)
