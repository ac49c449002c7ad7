"""The OpenAI SDK, sync and async: `limit` counts the requests and the tokens of a client.

token_metering.py does the work. Here are OpenAI's words. The SDK uses httpx2 since version 3.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from headgate.missing_extra import extra

with extra("openai"):
    import httpx2
    import openai

    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.httpx2 import TRANSPORTS
    from headgate.http.limiter_chain import Exempt
    from headgate.http.token_estimates import Estimates, Learned
    from headgate.http.token_metering import ByModel, TokenChain, limit_sdk
    from headgate.http.token_usage import Dialect

from headgate.limiter import Limiter

__all__ = ["Estimates", "Learned", "limit"]

Client = TypeVar("Client", bound=openai.OpenAI | openai.AsyncOpenAI)

KINDS = openai.OpenAI, openai.AsyncOpenAI  # the clients of Azure and Bedrock are subclasses


def limit(
    client: Client,
    *limiters: Limiter,
    estimates: Estimates | None = None,
    key: ByModel[httpx2.Request] = None,
    exempt: Exempt[httpx2.Request] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
    models: Mapping[str, Limiter] | None = None,
) -> Client:
    """Limit an `OpenAI`, an `AsyncOpenAI` or one of Azure or Bedrock in place, and return it.

        gpt = Limiter("gpt", "500/minute", "200k tokens/min", Concurrency(20))
        client = limit(AsyncOpenAI(), gpt)

    Each attempt on the wire is one request, the SDK's own retries included. Attempts at chat
    completions, completions, responses and embeddings also ask for their estimated `tokens`,
    `input_tokens` and `output_tokens`, as far as a limiter counts them. When the body was read or
    closed, streams included, headgate settles the usage in the response, and learns from it.
    Without a usage the estimate stands; a refused attempt (4xx) took no tokens. The usage of a
    response in the background is settled when this client retrieves that response.
    `estimates`: the learned estimates, to look at or to share; unsaid, the client has its own.
    `key`: "model", "host", or a function of the request that returns a text: each has a state of
    its own.
    `models`: limits for single models, such as {"gpt-5": Limiter("gpt-5", "500/minute")}. A call of
    one of them passes its limiter in place of `limiters`; no `key` applies to that one.
    The other arguments and all errors: as in `headgate.http.httpx.limit`.
    """
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = TokenChain(limiters, OPENAI, estimates, key, exempt, options, models)
    limit_sdk(client, KINDS, TRANSPORTS, chain)
    return client


OPENAI = Dialect(
    with_output=("/completions", "/responses", "/responses/compact"),
    input_only=("/embeddings",),
    most=("max_completion_tokens", "max_output_tokens", "max_tokens"),
    input=("prompt_tokens", "input_tokens"),  # cached ones count as others do
    output=("completion_tokens", "output_tokens"),
    retrieval=re.compile(r"/responses/([^/]+?)(?:/cancel)?$"),
)
