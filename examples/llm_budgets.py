"""Two budgets at once: requests and tokens, taken together; `settle` gives back the unused part of
a call.

The model is a local one: it answers a question with the longest words of it. As with any model, the
used tokens are known only afterwards, so each call asks for the most it may take. Run it: `python
examples/llm_budgets.py`
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headgate import Limiter

MOST = 400  # tokens that one call may take
llm = Limiter("llm", "50/second", "1k tokens/min")


class Reply(NamedTuple):
    text: str
    tokens: int


async def model(question: str) -> Reply:
    words = question.split()
    text = " ".join(sorted(words, key=len)[-3:])
    return Reply(text, len(words) + 3)


async def ask(question: str) -> Reply:
    async with llm.acquire(tokens=MOST) as permit:
        reply = await model(question)
        permit.settle(tokens=reply.tokens)
        return reply


def tokens_left() -> int:
    return next(limit.left for limit in llm.status().limits if limit.unit == "tokens")


async def main() -> None:
    questions = [
        f"What does call number {number} cost when nobody knows it before?" for number in range(10)
    ]
    replies = await asyncio.gather(*map(ask, questions))
    took = sum(reply.tokens for reply in replies)
    print(
        f"{len(replies)} calls asked for {len(replies) * MOST} tokens and took {took}; "
        f"{tokens_left()} of 1000 are left"
    )


if __name__ == "__main__":
    asyncio.run(main())
