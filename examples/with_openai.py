"""The OpenAI SDK, in coroutines: requests, tokens and calls at once limited together, answers and
streams alike.

The service bears three calls at once, and 10,000 tokens an hour; each call may take 2,000, and a
hundred pass all the same. Run it: `python examples/with_openai.py`
"""

from __future__ import annotations

import asyncio

from openai import AsyncOpenAI
from services.budgets import Rules
from services.models import Models

from headgate import Concurrency, Limiter
from headgate.http.openai import Estimates, limit

RULES = Rules(requests=1000, tokens=10_000, at_once=3, per=3600, call_time=0.001)
gpt = Limiter("gpt", "1000/hour", "10k tokens/hour", Concurrency(3))


async def answer(client: AsyncOpenAI, words: int) -> str:
    response = await client.responses.create(
        model="small", input=f"Say {words} words.", max_output_tokens=2000
    )
    return response.output_text


async def stream(client: AsyncOpenAI, words: int) -> str:
    """Chat completions say their usage in a stream when they are asked to."""
    chunks = await client.chat.completions.create(
        model="small",
        messages=[{"role": "user", "content": f"Say {words} words."}],
        max_completion_tokens=2000,
        stream=True,
        stream_options={"include_usage": True},
    )
    return "".join(
        [chunk.choices[0].delta.content or "" async for chunk in chunks if chunk.choices]
    )


async def main() -> None:
    estimates = Estimates()
    with Models(RULES) as service:
        async with limit(
            AsyncOpenAI(api_key="none", base_url=f"{service.url}/v1"), gpt, estimates=estimates
        ) as client:
            texts = []
            for _ in range(5):
                calls = [
                    (answer if number % 2 else stream)(client, 30 + 7 * number % 40)
                    for number in range(20)
                ]
                texts += await asyncio.gather(*calls)
        print(f"{service}; {sum(len(text.split()) for text in texts)} words")
    tokens = next(limit.used for limit in gpt.status().limits if limit.unit == "tokens")
    print(f"{tokens} tokens counted here, {service.into + service.out} there")
    print(estimates)


if __name__ == "__main__":
    asyncio.run(main())
