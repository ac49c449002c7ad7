"""The clients, limited by one line each, as their users write them: each opens, and makes one call
after another.

This module has the differences between them, and nothing that measures. Each is imported where it
is used: a process has one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from typing import Any

from headgate import Limiter

Call = Callable[[], Any]
Key = Callable[[Any], str]
KEY = "none"
DATA = "A" * 10_000  # of a picture or a file in base64
TEXT = "Say 20 words about nothing in particular."
QUESTION: Any = [{"role": "user", "content": TEXT}]


def questions(*attached: Any) -> Iterator[Any]:
    """Every tenth question has one of the attachments."""
    for number in count():
        part = attached[number // 10 % len(attached)]
        kind = "input_text" if part["type"].startswith("input") else "text"
        text = {"type": kind, "text": TEXT}
        yield QUESTION if number % 10 else [{"role": "user", "content": [text, part]}]


# Coroutines ---------------------------------------------------------------------------------------


@asynccontextmanager
async def by_aiohttp(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import aiohttp

    from headgate.http.aiohttp import limit

    async with limit(aiohttp.ClientSession(), limiter, key=key) as session:

        async def call() -> int:
            async with session.get(url) as response:
                await response.read()
                return response.status

        yield call


@asynccontextmanager
async def by_httpx(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import httpx

    from headgate.http.httpx import limit

    async with limit(httpx.AsyncClient(), limiter, key=key) as client:

        async def call() -> int:
            return (await client.get(url)).status_code

        yield call


@asynccontextmanager
async def by_httpx2(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import httpx2

    from headgate.http.httpx2 import limit

    async with limit(httpx2.AsyncClient(), limiter, key=key) as client:

        async def call() -> int:
            return (await client.get(url)).status_code

        yield call


@asynccontextmanager
async def by_openai(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import openai

    from headgate.http.openai import limit

    async with limit(
        openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0), limiter, key=key
    ) as client:
        arguments: Any = {"model": "m", "input": QUESTION, "max_output_tokens": 4000}
        yield lambda: astatus_of(client.responses.create(**arguments), openai.APIStatusError)


@asynccontextmanager
async def by_anthropic(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import anthropic

    from headgate.http.anthropic import limit

    async with limit(
        anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0), limiter, key=key
    ) as client:
        arguments: Any = {"model": "m", "messages": QUESTION, "max_tokens": 4000}
        yield lambda: astatus_of(client.messages.create(**arguments), anthropic.APIStatusError)


@asynccontextmanager
async def by_openai_with_attachments(url: str, limiter: Limiter, key: Key) -> AsyncIterator[Call]:
    import openai

    from headgate.http.openai import limit

    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{DATA}"}
    file = {"type": "input_file", "filename": "a.pdf", "file_data": DATA}
    inputs = questions(picture, file)
    async with limit(
        openai.AsyncOpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0), limiter, key=key
    ) as client:
        create: Any = client.responses.create
        yield lambda: astatus_of(
            create(model="m", input=next(inputs), max_output_tokens=4000), openai.APIStatusError
        )


@asynccontextmanager
async def by_anthropic_with_attachments(
    url: str, limiter: Limiter, key: Key
) -> AsyncIterator[Call]:
    import anthropic

    from headgate.http.anthropic import limit

    png = {"type": "base64", "media_type": "image/png", "data": DATA}
    pdf = {"type": "base64", "media_type": "application/pdf", "data": DATA}
    inputs = questions({"type": "image", "source": png}, {"type": "document", "source": pdf})
    async with limit(
        anthropic.AsyncAnthropic(api_key=KEY, base_url=url, max_retries=0), limiter, key=key
    ) as client:
        create: Any = client.messages.create
        yield lambda: astatus_of(
            create(model="m", messages=next(inputs), max_tokens=4000), anthropic.APIStatusError
        )


async def astatus_of(call: Awaitable[Any], refusal: type[Any]) -> int:
    """The error of an SDK becomes a status again."""
    try:
        await call
    except refusal as error:
        return int(error.status_code)
    return 200


# Threads ------------------------------------------------------------------------------------------


@contextmanager
def by_httpx_in_threads(url: str, limiter: Limiter, key: Key) -> Iterator[Call]:
    import httpx

    from headgate.http.httpx import limit

    with limit(httpx.Client(), limiter, key=key) as client:
        yield lambda: client.get(url).status_code


@contextmanager
def by_httpx2_in_threads(url: str, limiter: Limiter, key: Key) -> Iterator[Call]:
    import httpx2

    from headgate.http.httpx2 import limit

    with limit(httpx2.Client(), limiter, key=key) as client:
        yield lambda: client.get(url).status_code


@contextmanager
def by_requests(url: str, limiter: Limiter, key: Key) -> Iterator[Call]:
    import requests

    from headgate.http.requests import limit

    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=100))
        limit(session, limiter, key=key)
        yield lambda: session.get(url).status_code


@contextmanager
def by_openai_in_threads(url: str, limiter: Limiter, key: Key) -> Iterator[Call]:
    import openai

    from headgate.http.openai import limit

    with limit(
        openai.OpenAI(api_key=KEY, base_url=f"{url}/v1", max_retries=0), limiter, key=key
    ) as client:
        arguments: Any = {"model": "m", "input": QUESTION, "max_output_tokens": 4000}
        yield lambda: status_of(lambda: client.responses.create(**arguments), openai.APIStatusError)


@contextmanager
def by_anthropic_in_threads(url: str, limiter: Limiter, key: Key) -> Iterator[Call]:
    import anthropic

    from headgate.http.anthropic import limit

    with limit(
        anthropic.Anthropic(api_key=KEY, base_url=url, max_retries=0), limiter, key=key
    ) as client:
        arguments: Any = {"model": "m", "messages": QUESTION, "max_tokens": 4000}
        yield lambda: status_of(
            lambda: client.messages.create(**arguments), anthropic.APIStatusError
        )


def status_of(call: Callable[[], Any], refusal: type[Any]) -> int:
    """The same of a blocking one."""
    try:
        call()
    except refusal as error:
        return int(error.status_code)
    return 200


COROUTINES: dict[str, Callable[[str, Limiter, Key], Any]] = {
    "aiohttp": by_aiohttp,
    "httpx": by_httpx,
    "httpx2": by_httpx2,
    "openai": by_openai,
    "anthropic": by_anthropic,
    "openai, attachments": by_openai_with_attachments,
    "anthropic, attachments": by_anthropic_with_attachments,
}
THREADS: dict[str, Callable[[str, Limiter, Key], Any]] = {
    "httpx, threads": by_httpx_in_threads,
    "httpx2, threads": by_httpx2_in_threads,
    "requests, threads": by_requests,
    "openai, threads": by_openai_in_threads,
    "anthropic, threads": by_anthropic_in_threads,
}
CLIENTS = sorted([*COROUTINES, *THREADS])
