"""The Anthropic SDK, sync and async: `limit` counts the requests and the tokens of a client.

The work is done in token_metering.py. Here are Anthropic's words. The SDK uses httpx2 since version
2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from headgate.extras import extra

with extra("anthropic"):
    import anthropic
    import httpx2

    from headgate.http.httpx2 import limit_with
    from headgate.http.limiter_chain import Exempt
    from headgate.http.token_estimates import Estimates, Learned
    from headgate.http.token_metering import ByModel, TokenChain, limit_sdk
    from headgate.http.token_usage import Dialect, find_count

from headgate.limiter import Limiter

__all__ = ["Estimates", "Learned", "limit"]

Client = TypeVar("Client", anthropic.Anthropic, anthropic.AsyncAnthropic)


def limit(
    client: Client,
    *limiters: Limiter,
    estimates: Estimates | None = None,
    key: ByModel[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    feedback: bool = True,
    adopt: bool = False,
) -> Client:
    """Limit an `Anthropic` or an `AsyncAnthropic` in place, and return it.

        claude = Limiter("claude", "50/minute", "30k input_tokens/min", "8k output_tokens/min")
        client = limit(AsyncAnthropic(), claude)

    Each attempt on the wire is one request, the SDK's own retries included. Attempts at messages
    and completions also ask for their estimated `input_tokens`, `output_tokens` and `tokens`, as
    far as a limiter counts them. When the body was read or closed, streams included, the usage in
    the response is settled and learned from. Tokens read from a cache do not count. Without a usage
    the estimate stands; a refused attempt (4xx) took no tokens.
    `estimates`: the learned estimates, to look at or to share; unsaid, the client has its own.
    `key`: "model", "host", or a function of the request that returns a text: each has a state of
    its own.
    `exempt`, `feedback` and `adopt`: as in `headgate.http.httpx.limit`.

    Raises ValueError or TypeError for arguments that can never work. A call raises the errors of
    `Limiter.acquire`, before it is sent.
    """
    chain = TokenChain(limiters, ANTHROPIC, estimates, key, exempt, feedback, adopt)
    limit_sdk(client, (anthropic.Anthropic, anthropic.AsyncAnthropic), limit_with, chain)
    return client


def count_input(usage: Mapping[str, Any]) -> int | None:
    """Return the input tokens: those written into a cache count, those read from it do not."""
    tokens = find_count(usage, "input_tokens")
    if tokens is None:
        return None
    return tokens + (find_count(usage, "cache_creation_input_tokens") or 0)


def count_output(usage: Mapping[str, Any]) -> int | None:
    return find_count(usage, "output_tokens")


ANTHROPIC = Dialect(
    answering=("/messages", "/complete"),
    silent=(),
    most=("max_tokens", "max_tokens_to_sample"),
    input=count_input,
    output=count_output,
)
