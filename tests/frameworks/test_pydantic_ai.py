"""PydanticAI: real agents and models with our limiter as their concurrency limiter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic_ai import Agent, models
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.concurrency import ConcurrencyLimitedModel
from pydantic_ai.models.function import AgentInfo, FunctionModel

from headgate import Concurrency, Limiter, MaxSleepExceededError
from headgate.frameworks.pydantic_ai import PydanticAILimiter
from headgate.testing import ManualClock, Recorder, assert_never_over

TAKES = 10.0  # seconds for an answer


@pytest.fixture(autouse=True)
def _nobody_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ALLOW_MODEL_REQUESTS", False)


def function_model(recorder: Recorder) -> FunctionModel:
    """Return a model that answers after a while, and records it."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        with recorder.call():
            await asyncio.sleep(TAKES)
        return ModelResponse(parts=[TextPart("hello")])

    async def stream(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str]:
        with recorder.call():
            for word in ("hel", "lo"):
                await asyncio.sleep(TAKES / 2)
                yield word

    return FunctionModel(answer, stream_function=stream)


def limited_model(recorder: Recorder, limiter: Limiter) -> ConcurrencyLimitedModel:
    return ConcurrencyLimitedModel(function_model(recorder), limiter=PydanticAILimiter(limiter))


def test_a_model_is_called_as_often_as_its_limiter_allows(name: str, clock: ManualClock) -> None:
    """Two at once and three a minute: of seven runs together all are answered, and both limits
    hold.
    """
    limits = Concurrency(2), "3 in any 60 seconds"
    recorder = Recorder(clock)
    agent = Agent(limited_model(recorder, Limiter(name, *limits)))

    async def story() -> list[Any]:
        return await asyncio.gather(*(agent.run("hi") for _ in range(7)))

    assert [run.output for run in clock.run(story())] == ["hello"] * 7
    assert_never_over(recorder.calls, *limits)
    assert (recorder.most, clock.elapsed()) == (2, 2 * 60 + TAKES)


def test_an_agent_runs_as_often_at_once_as_its_limiter_allows(
    name: str, clock: ManualClock
) -> None:
    """The agent and its model have a limiter each, and both hold."""
    recorder = Recorder(clock)
    runs = PydanticAILimiter(Limiter(name, Concurrency(1)))
    agent = Agent(
        limited_model(recorder, Limiter(f"{name}-model", Concurrency(5))), max_concurrency=runs
    )

    async def story() -> None:
        await asyncio.gather(*(agent.run("hi") for _ in range(3)))

    clock.run(story())
    assert (recorder.most, clock.elapsed()) == (1, 3 * TAKES)


def test_a_stream_holds_its_permit_to_its_end(name: str, clock: ManualClock) -> None:
    limiter = Limiter(name, Concurrency(1))
    agent = Agent(limited_model(Recorder(clock), limiter))

    async def story() -> None:
        async with agent.run_stream("hi") as stream:
            async for _ in stream.stream_text(delta=True, debounce_by=None):
                assert limiter.status().limits[0].used == 1
        assert limiter.status().limits[0].used == 0

    clock.run(story())


def test_a_cancelled_run_gives_its_permit_back(name: str, clock: ManualClock) -> None:
    """One run holds and one waits; when both are cancelled, the next starts at once."""
    agent = Agent(limited_model(Recorder(clock), Limiter(name, Concurrency(1))))

    async def story() -> None:
        runs = [asyncio.create_task(agent.run("hi")) for _ in range(2)]
        await asyncio.sleep(TAKES / 2)
        for run in runs:
            run.cancel()
        await asyncio.wait(runs)
        await agent.run("hi")

    clock.run(story())
    assert clock.elapsed() == 1.5 * TAKES


def test_a_refused_run_raises_with_its_retry_after(name: str, clock: ManualClock) -> None:
    agent = Agent(limited_model(Recorder(clock), Limiter(name, "1/minute", max_sleep=5)))

    async def story() -> None:
        await agent.run("hi")
        with pytest.raises(MaxSleepExceededError) as refused:
            await agent.run("hi")
        assert refused.value.retry_after == 60 - TAKES

    clock.run(story())


def test_other_values_than_limiters_are_refused() -> None:
    with pytest.raises(TypeError, match="give it a Limiter"):
        PydanticAILimiter(5)  # type: ignore[arg-type]
