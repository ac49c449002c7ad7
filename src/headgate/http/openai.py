"""The OpenAI SDK, sync and async: `limit` puts limiters into a client that is there, which count its requests and its tokens.

What is done stands in token_metering.py; here are OpenAI's words, and the types of httpx2, on which the SDK stands since version 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from headgate.extras import extra

with extra("openai"):
    import httpx2
    import openai

    from headgate.http import httpx_transports, token_metering
    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Exempt
    from headgate.http.token_estimates import Estimates, Learned
    from headgate.http.token_metering import ByModel, Metering
    from headgate.http.token_usage import Dialect, whole

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["Estimates", "Learned", "limit"]

Client = TypeVar("Client", openai.OpenAI, openai.AsyncOpenAI)


class Body(token_metering.Body, httpx2.SyncByteStream):
    """As the client wants it."""


class AsyncBody(token_metering.AsyncBody, httpx2.AsyncByteStream):
    """As the client wants it."""


def limit(
    client: Client,
    *limiters: Limiter,
    estimates: Estimates | None = None,
    key: ByModel[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    heed: bool = True,
    adopt: bool = False,
) -> Client:
    """Limit an `OpenAI`, an `AsyncOpenAI` or one of Azure in place, and return it.

        client = limit(AsyncOpenAI(), Limiter("gpt", "500/minute", "200k tokens/min", Concurrency(20)))

    Each attempt on the wire, the SDK's own retries too, is one request; those of chat completions, completions, responses and
    embeddings are estimated in `tokens`, `input_tokens` and `output_tokens` and ask for those that a limiter counts. What they
    took by the usage in the answer is settled when its body was read or closed, streams included, and learned from. Where the
    answer says nothing of usage the estimate stands; what was refused (4xx) took no tokens.
    `estimates`: what is learned, to look at or to share; the client's own if unsaid.
    `key`: "model", "host", or a function of the request that returns a text: a state for each.
    `exempt`, `heed` and `adopt`: as with `headgate.http.httpx2.limit`.

    Raises ValueError or TypeError for what can never work; a call raises what `Limiter.acquire` does, before it is sent.
    """
    calls = Metering(limiters, key, exempt, OPENAI, estimates, heeding("limit", heed, adopt))
    inside: object = getattr(client, "_client", None)
    if isinstance(client, openai.AsyncOpenAI) and isinstance(inside, httpx2.AsyncClient):
        token_metering.put_around(
            inside, lambda inner: httpx_transports.AsyncTransport(calls, inner, AsyncBody)
        )
    elif isinstance(client, openai.OpenAI) and isinstance(inside, httpx2.Client):
        token_metering.put_around(
            inside, lambda inner: httpx_transports.Transport(calls, inner, Body)
        )
    else:
        raise TypeError(
            f"limit({show(client)}): a client is an openai.OpenAI or an openai.AsyncOpenAI, on httpx2."
        )
    return client


def into(usage: Mapping[str, Any]) -> int | None:
    """Cached tokens count as others do."""
    tokens = whole(usage, "prompt_tokens")
    return whole(usage, "input_tokens") if tokens is None else tokens


def out(usage: Mapping[str, Any]) -> int | None:
    tokens = whole(usage, "completion_tokens")
    return whole(usage, "output_tokens") if tokens is None else tokens


OPENAI = Dialect(
    answering=("/completions", "/responses", "/responses/compact"),
    silent=("/embeddings",),
    most=("max_completion_tokens", "max_output_tokens", "max_tokens"),
    input=into,
    output=out,
)
