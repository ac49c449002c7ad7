"""The Anthropic SDK, sync and async: `limit` counts the requests and the tokens of a client.

token_metering.py does the work. Here are Anthropic's words. The SDK uses httpx2 since version 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

from headgate.missing_extra import extra

with extra("anthropic"):
    import anthropic
    import httpx2

    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.httpx2 import TRANSPORTS
    from headgate.http.limiter_chain import Exempt
    from headgate.http.token_estimates import Estimates, Learned
    from headgate.http.token_metering import ByModel, TokenChain, limit_sdk
    from headgate.http.token_usage import Dialect

from headgate.limiter import Limiter

__all__ = ["Estimates", "Learned", "limit"]

Client = TypeVar(
    "Client",
    bound=anthropic.Anthropic
    | anthropic.AsyncAnthropic
    | anthropic.AnthropicBedrock
    | anthropic.AsyncAnthropicBedrock
    | anthropic.AnthropicBedrockMantle
    | anthropic.AsyncAnthropicBedrockMantle
    | anthropic.AnthropicVertex
    | anthropic.AsyncAnthropicVertex,
)

KINDS = (
    anthropic.Anthropic,
    anthropic.AsyncAnthropic,
    anthropic.AnthropicBedrock,
    anthropic.AsyncAnthropicBedrock,
    anthropic.AnthropicBedrockMantle,
    anthropic.AsyncAnthropicBedrockMantle,
    anthropic.AnthropicVertex,
    anthropic.AsyncAnthropicVertex,
)


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
    """Limit a client of Anthropic, Bedrock or Vertex in place, sync or async, and return it.

        claude = Limiter("claude", "50/minute", "30k input_tokens/min", "8k output_tokens/min")
        client = limit(AsyncAnthropic(), claude)

    Attempts at messages and completions ask for their estimated tokens. Tokens read from a cache do
    not count. All else, the arguments included, is as in `headgate.http.openai.limit`.
    """
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = TokenChain(limiters, ANTHROPIC, estimates, key, exempt, options, models)
    limit_sdk(client, KINDS, TRANSPORTS, chain)
    return client


ANTHROPIC = Dialect(
    with_output=("/messages", "/complete"),
    input_only=(),
    most=("max_tokens", "max_tokens_to_sample"),
    input=("input_tokens",),  # without those that were read from a cache
    output=("output_tokens",),
    more_input=("cache_creation_input_tokens",),  # those written into a cache
    # Those of Bedrock and Vertex.
    by_path=re.compile(
        r"/models?/(?!count-tokens:)([^/]+?)"
        r"(?:/invoke(?:-with-response-stream)?|:(?:r|streamR)awPredict)$"
    ),
)
