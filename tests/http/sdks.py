"""The SDKs behind one interface, `say` and `stream`, so that one test runs for all of them.

Each is used as its documents say. A client without coroutines works in a thread. Here are the
differences between the SDKs, and no assertion.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import openai

import headgate.http.anthropic
import headgate.http.openai
from examples.services.models import Models

KEY = "no secret"
ERRORS = (openai.OpenAIError, anthropic.AnthropicError)
LIMITS: dict[str, Callable[..., Any]] = {
    "openai": headgate.http.openai.limit,
    "anthropic": headgate.http.anthropic.limit,
}


def question(words: int) -> str:
    return f"Say {words} words, if you please."


def client_of(sdk: str, threads: bool, service: Models, **options: Any) -> Any:
    """Return a client as users make it."""
    if sdk == "openai":
        kind: Any = openai.OpenAI if threads else openai.AsyncOpenAI
        return kind(api_key=KEY, base_url=f"{service.url}/v1", **options)
    kind = anthropic.Anthropic if threads else anthropic.AsyncAnthropic
    return kind(api_key=KEY, base_url=service.url, **options)


class Speaker:
    """One client of one SDK, limited."""

    def __init__(
        self, how: str, threads: bool, service: Models, limiters: Any, options: Any
    ) -> None:
        self.how, self.threads = how, threads
        self.sdk = "anthropic" if how == "messages" else "openai"
        self.client = LIMITS[self.sdk](client_of(self.sdk, threads, service), *limiters, **options)

    async def say(self, words: int = 20, **options: Any) -> Any:
        """Return a response of so many words."""
        return await self._called(words, stream=False, **options)

    async def stream(self, words: int = 20, **options: Any) -> Stream:
        """Return a stream whose first event has been read."""
        if self.how == "chat":
            options.setdefault("stream_options", {"include_usage": True})
        stream = Stream(await self._called(words, stream=True, **options), self.threads)
        await stream.one()
        return stream

    async def _called(self, words: int, **options: Any) -> Any:
        call = {"chat": self._chat, "responses": self._responses, "messages": self._messages}[
            self.how
        ]
        function, arguments = call(words, {"model": "m", **options})
        return (
            await asyncio.to_thread(function, **arguments)
            if self.threads
            else await function(**arguments)
        )

    def _chat(self, words: int, options: Any) -> tuple[Any, Any]:
        messages = [{"role": "user", "content": question(words)}]
        return self.client.chat.completions.create, {"messages": messages, **options}

    def _responses(self, words: int, options: Any) -> tuple[Any, Any]:
        if "max_tokens" in options:
            options["max_output_tokens"] = options.pop("max_tokens")
        return self.client.responses.create, {
            "input": [{"role": "user", "content": question(words)}],
            **options,
        }

    def _messages(self, words: int, options: Any) -> tuple[Any, Any]:
        messages = [{"role": "user", "content": question(words)}]
        return self.client.messages.create, {"messages": messages, "max_tokens": 8_000, **options}

    async def close(self) -> None:
        if self.threads:
            self.client.close()
        else:
            await self.client.close()


class Stream:
    """A response that comes event by event."""

    def __init__(self, inner: Any, threads: bool) -> None:
        self.inner, self.threads = inner, threads
        self._events = iter(inner) if threads else aiter(inner)

    async def one(self) -> Any:
        return (
            await asyncio.to_thread(next, self._events)
            if self.threads
            else await anext(self._events)
        )

    async def rest(self) -> int:
        """Return how many events were left."""
        if self.threads:
            return len(await asyncio.to_thread(list, self._events))
        return len([event async for event in self._events])

    async def close(self) -> None:
        if self.threads:
            self.inner.close()
        else:
            await self.inner.close()


KINDS: dict[str, tuple[str, bool]] = {
    f"{how}, {'threads' if threads else 'coroutines'}": (how, threads)
    for how in ("chat", "responses", "messages")
    for threads in (False, True)
}
COROUTINES = [kind for kind, (_, threads) in KINDS.items() if not threads]
