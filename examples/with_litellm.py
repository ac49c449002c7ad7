"""LiteLLM: twenty calls, limited by requests, tokens and calls at once together, to a service that
speaks as OpenAI's does.

It bears three calls at once, and 2,000 tokens an hour; each call may take 500, and twenty pass all
the same. Run it: `python examples/with_litellm.py`
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import litellm
from services.budgets import Rules
from services.models import Models

from headgate import Concurrency, Limiter
from headgate.frameworks.litellm import LiteLLMLimiter

RULES = Rules(requests=1000, tokens=2000, at_once=3, per=3600, call_time=0.001)
llm = Limiter("llm", "1000/hour", "2k tokens/hour", Concurrency(3))


def estimate(call: Mapping[str, Any]) -> dict[str, int]:
    """Five characters to a token, and the usual size of answers."""
    return {"tokens": sum(len(message["content"]) for message in call["messages"]) // 5 + 60}


async def ask(url: str, words: int) -> str:
    messages = [{"role": "user", "content": f"Say {words} words."}]
    answer = await litellm.acompletion(
        model="openai/small",
        messages=messages,
        max_tokens=500,
        api_base=f"{url}/v1",
        api_key="none",
    )
    return str(answer.choices[0].message.content)


async def main() -> None:
    litellm.callbacks = [LiteLLMLimiter(llm, estimate=estimate)]
    with Models(RULES) as service:
        texts = await asyncio.gather(*(ask(service.url, 30 + number) for number in range(20)))
        print(f"{service}; {sum(len(text.split()) for text in texts)} words")
    tokens = next(limit.used for limit in llm.status().limits if limit.unit == "tokens")
    print(f"{tokens} tokens counted here, {service.into + service.out} there")


if __name__ == "__main__":
    asyncio.run(main())
