"""The HTTP clients of headgate as visits: a real client, limited, makes its calls to a real
service.

This module has the visits, and no tests. An interruption may hit the client's own work, such as
connecting: in every case the permits come back. A visit closes its client. Its maker closes the
client once more, because a close may be interrupted, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
from aiohttp import web

import headgate.http.aiohttp
import headgate.http.httpx
import headgate.http.httpx2
import headgate.http.openai
from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Limiter
from tests.http.sdks import client_of, question
from tests.http.service import Service, json_response
from tests.step_cancel.visits import BOTH, MEMORY


@dataclass(frozen=True)
class Calling:
    """`ask` a client that was `made`, at a `service`."""

    ask: Callable[[Any, str], Coroutine[Any, Any, None]]
    made: Callable[[Limiter, Any], Any]  # an async context manager of the client
    service: Callable[[], AbstractContextManager[Any]] = Service
    stores: tuple[str, ...] = MEMORY


# aiohttp ------------------------------------------------------------------------------------------


@asynccontextmanager
async def session(limiter: Limiter, service: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with headgate.http.aiohttp.limit(aiohttp.ClientSession(), limiter) as session:
        yield session


@asynccontextmanager
async def classic(limiter: Limiter, service: Any) -> AsyncIterator[Any]:
    """Its own limiter is beside the one that the test looks at afterwards."""
    async with aiohttp.ClientSession() as session:
        headgate.http.aiohttp.limit(session, limiter)
        yield headgate.http.aiohttp.RateLimiter(session, rate=1000, max_tokens=1)


async def gets(session: aiohttp.ClientSession, url: str) -> None:
    """With a redirect: two calls, one after the other."""
    async with session.get(f"{url}/redirect?n=1") as response:
        await response.read()


async def gets_by_turns(client: Any, url: str) -> None:
    """Both ways of calling the classic wrapper: its second call waits for a token."""
    async with client:
        response = await client.get(url)
        await response.read()
        await gets(client, url)


# httpx, httpx2 and clients that use them ----------------------------------------------------------


def transporting(library: Any, limit: Callable[..., Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def made(limiter: Limiter, service: Any) -> AsyncIterator[Any]:
        client = limit(library.AsyncClient(follow_redirects=True, verify=False), limiter)
        try:
            yield client
        finally:
            await client._transport.aclose()  # the client itself is closed once, and no more

    return made


async def streams(client: Any, url: str) -> None:
    async with client, client.stream("GET", f"{url}/redirect?n=1") as response:
        async for _ in response.aiter_raw():
            pass


async def is_refused(client: Any, url: str) -> None:
    """A refusal for good, which only the body shows: the check comes when the caller reads the
    body.
    """
    async with client, client.stream("GET", f"{url}/says") as response:
        async for _ in response.aiter_raw():
            pass


class Spent(Service):
    """Every caller has no credit left."""

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return json_response(429, {}, '{"error": {"code": "insufficient_quota"}}')


async def leaves_a_stream(client: Any, url: str) -> None:
    """In its middle: the stream is closed, and not read to its end."""
    async with client.stream("GET", f"{url}/slow?ms=1") as response:
        await anext(response.aiter_raw(1))
    await client.aclose()


@asynccontextmanager
async def sdk(limiter: Limiter, service: Models) -> AsyncIterator[Any]:
    client = headgate.http.openai.limit(client_of("openai", False, service, max_retries=0), limiter)
    try:
        yield client
    finally:
        await client._client._transport.aclose()


async def reads_events(client: openai.AsyncOpenAI, url: str) -> None:
    """An answer that comes event by event, and is metered."""
    asked: Any = [{"role": "user", "content": question(10)}]
    async with await client.chat.completions.create(
        model="m", messages=asked, stream=True
    ) as events:
        async for _ in events:
            pass


CALLINGS = {
    "aiohttp": Calling(gets, session, stores=BOTH),
    "aiohttp's RateLimiter": Calling(gets_by_turns, classic),
    "httpx": Calling(streams, transporting(httpx, headgate.http.httpx.limit)),
    "httpx2": Calling(streams, transporting(httpx2, headgate.http.httpx2.limit), stores=BOTH),
    "httpx2, a stream that is left": Calling(
        leaves_a_stream, transporting(httpx2, headgate.http.httpx2.limit)
    ),
    "httpx2, a refusal": Calling(
        is_refused, transporting(httpx2, headgate.http.httpx2.limit), Spent
    ),
    "openai": Calling(reads_events, sdk, lambda: Models(Rules(call_time=0.001))),
}
