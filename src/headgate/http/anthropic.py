"""The Anthropic SDK, sync and async: `limit` puts limiters into a client that is there, which count its requests and its tokens.

What is done stands in token_metering.py; here are Anthropic's words, and the types of httpx2, on which the SDK stands since version 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from headgate.extras import extra

with extra("anthropic"):
    import anthropic
    import httpx2

    from headgate.http import httpx_transports, token_metering
    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Exempt
    from headgate.http.token_estimates import Estimates, Learned
    from headgate.http.token_metering import ByModel, Metering
    from headgate.http.token_usage import Dialect, whole

from headgate.limiter import Limiter
from headgate.validation import show

__all__ = ["Estimates", "Learned", "limit"]

Client = TypeVar("Client", anthropic.Anthropic, anthropic.AsyncAnthropic)


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
    """Limit an `Anthropic` or an `AsyncAnthropic` in place, and return it.

        client = limit(AsyncAnthropic(), Limiter("claude", "50/minute", "30k input_tokens/min", "8k output_tokens/min"))

    Each attempt on the wire, the SDK's own retries too, is one request; those of messages and completions are estimated in
    `input_tokens`, `output_tokens` and `tokens` and ask for those that a limiter counts. What they took by the usage in the answer
    is settled when its body was read or closed, streams included, and learned from; tokens that were read from a cache do not
    count. Where the answer says nothing of usage the estimate stands; what was refused (4xx) took no tokens.
    `estimates`: what is learned, to look at or to share; the client's own if unsaid.
    `key`: "model", "host", or a function of the request that returns a text: a state for each.
    `exempt`, `heed` and `adopt`: as with `headgate.http.httpx2.limit`.

    Raises ValueError or TypeError for what can never work; a call raises what `Limiter.acquire` does, before it is sent.
    """
    calls = Metering(limiters, key, exempt, ANTHROPIC, estimates, heeding("limit", heed, adopt))
    inside: object = getattr(client, "_client", None)
    if isinstance(client, anthropic.AsyncAnthropic) and isinstance(inside, httpx2.AsyncClient):
        token_metering.put_around(
            inside, lambda inner: httpx_transports.AsyncTransport(calls, inner, AsyncBody)
        )
    elif isinstance(client, anthropic.Anthropic) and isinstance(inside, httpx2.Client):
        token_metering.put_around(
            inside, lambda inner: httpx_transports.Transport(calls, inner, Body)
        )
    else:
        raise TypeError(
            f"limit({show(client)}): a client is an anthropic.Anthropic or an anthropic.AsyncAnthropic."
        )
    return client


def into(usage: Mapping[str, Any]) -> int | None:
    """What was written into a cache counts, what was read from it does not."""
    tokens = whole(usage, "input_tokens")
    return None if tokens is None else tokens + (whole(usage, "cache_creation_input_tokens") or 0)


def out(usage: Mapping[str, Any]) -> int | None:
    return whole(usage, "output_tokens")


ANTHROPIC = Dialect(
    answering=("/messages", "/complete"),
    silent=(),
    most=("max_tokens", "max_tokens_to_sample"),
    input=into,
    output=out,
)
