"""PydanticAI: ten runs of an agent, three at once; its model is asked by two at once. The model is
made up.

Run it: `python examples/with_pydantic_ai.py`
"""

from __future__ import annotations

import asyncio

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

from headgate import Concurrency, Limiter
from headgate.frameworks.pydantic_ai import PydanticAILimiter

runs = Limiter("runs", Concurrency(3))
requests = Limiter("requests", Concurrency(2), "1000/second")
busy: list[int] = []


async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    busy.append(requests.status().limits[0].used)
    await asyncio.sleep(0.01)
    return ModelResponse(parts=[TextPart("hello")])


model = ConcurrencyLimitedModel(FunctionModel(answer), limiter=PydanticAILimiter(requests))
agent = Agent(model, max_concurrency=PydanticAILimiter(runs))


async def main() -> None:
    results = await asyncio.gather(*(agent.run("hi") for _ in range(10)))
    print(
        f"{[result.output for result in results].count('hello')} runs, the model asked by "
        f"{max(busy)} at once"
    )
    print(runs)


if __name__ == "__main__":
    asyncio.run(main())
