"""LangChain: ten runs of a chat model, started together: five at once, then ten a second. The model
is a made-up one of its own.

Run it: `python examples/with_langchain.py`
"""

from __future__ import annotations

import asyncio
import time

from langchain_core.language_models import FakeListChatModel

from headgate import Limiter
from headgate.frameworks.langchain import LangChainLimiter

limiter = Limiter("model", "10 per second burst 5")
model = FakeListChatModel(responses=["hello"], rate_limiter=LangChainLimiter(limiter))


async def main() -> None:
    began = time.monotonic()
    answers = await asyncio.gather(*(model.ainvoke("hi") for _ in range(10)))
    print(f"{len(answers)} answers in {time.monotonic() - began:.1f} s")
    print(limiter)


if __name__ == "__main__":
    asyncio.run(main())
