"""LangChain: real chat models with our limiter as their rate limiter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from headgate import Concurrency, Limiter, MaxSleepExceededError, UnknownLimiterError
from headgate.frameworks.langchain import LangChainLimiter
from headgate.testing import ManualClock


class Model(BaseChatModel):
    """Answers at once, and records when it was called."""

    clock: Any
    asked: list[float] = []  # noqa: RUF012 - a field of pydantic, which copies it

    @property
    def _llm_type(self) -> str:
        return "noting"

    def _note(self) -> AIMessage:
        self.asked.append(self.clock.elapsed())
        return AIMessage("hello")

    def _generate(self, *said: Any, **options: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._note())])

    async def _agenerate(self, *said: Any, **options: Any) -> ChatResult:
        return self._generate()

    def _stream(self, *said: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
        self._note()
        yield ChatGenerationChunk(message=AIMessageChunk("hel"))
        yield ChatGenerationChunk(message=AIMessageChunk("lo"))

    async def _astream(self, *said: Any, **options: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in self._stream():
            yield chunk


def model(name: str, clock: ManualClock, *limits: Any, **options: Any) -> Model:
    return Model(clock=clock, rate_limiter=LangChainLimiter(Limiter(name, *limits, **options)))


def test_each_run_of_a_model_waits_for_its_turn(name: str, clock: ManualClock) -> None:
    """Invokes, streams and batches start together with a limit of one call a second."""
    chat = model(name, clock, "1/second")

    async def streamed() -> str:
        return "".join([str(chunk.content) async for chunk in chat.astream("hi")])

    async def story() -> list[Any]:
        return await asyncio.gather(chat.ainvoke("hi"), streamed(), chat.abatch(["hi", "hi"]))

    invoked, streamed_text, batch = clock.run(story())
    assert (invoked.content, streamed_text, [message.content for message in batch]) == (
        "hello",
        "hello",
        ["hello", "hello"],
    )
    assert chat.asked == [0, 1, 2, 3]


def test_a_thread_waits_too(name: str) -> None:
    with ManualClock(skips=True) as clock:
        chat = model(name, clock, "1/second")
        for _ in range(3):
            chat.invoke("hi")
        assert [chunk.content for chunk in chat.stream("hi")][:2] == ["hel", "lo"]
        assert chat.asked == [0, 1, 2, 3]


def test_a_cached_response_takes_nothing(name: str, clock: ManualClock) -> None:
    chat = model(name, clock, "1/hour")
    chat.cache = InMemoryCache()
    for _ in range(3):
        assert chat.invoke("hi").content == "hello"
    assert (chat.asked, clock.elapsed()) == ([0], 0)


def test_a_refused_call_raises_with_its_retry_after(name: str, clock: ManualClock) -> None:
    chat = model(name, clock, "1/minute", max_sleep=10)
    chat.invoke("hi")
    clock.advance(30)
    with pytest.raises(MaxSleepExceededError) as refused:
        chat.invoke("hi")
    assert refused.value.retry_after == 30
    assert chat.asked == [0]


async def test_an_acquire_that_may_not_block_returns_at_once(name: str, clock: ManualClock) -> None:
    limiter = LangChainLimiter(Limiter(name, "2/minute"))
    assert limiter.acquire(blocking=False)
    assert await limiter.aacquire(blocking=False)
    assert not limiter.acquire(blocking=False)
    assert not await limiter.aacquire(blocking=False)


async def test_a_concurrency_that_is_added_later_is_not_held_for_ever(
    name: str, clock: ManualClock
) -> None:
    """LangChain would not release it, so it is released at once."""
    limiter = Limiter(name, "5/minute")
    rates = LangChainLimiter(limiter)
    limiter.update("5/minute", Concurrency(1))
    assert rates.acquire()
    assert await rates.aacquire()
    assert limiter.status().limits[1].used == 0


def test_a_limiter_that_langchain_cannot_keep_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="LangChain never says when a call has ended"):
        LangChainLimiter(Limiter(name, "5/minute", Concurrency(2)))
    with pytest.raises(ValueError, match="none of its limits counts requests"):
        LangChainLimiter(Limiter(name, "10k tokens/min"))
    with pytest.raises(TypeError, match="give it a Limiter"):
        LangChainLimiter("5/minute")  # type: ignore[arg-type]


async def take(limiter: LangChainLimiter) -> bool:
    return await limiter.aacquire()


async def take_in_a_thread(limiter: LangChainLimiter) -> bool:
    return await asyncio.to_thread(limiter.acquire)


TAKES = pytest.mark.parametrize("taken", [take, take_in_a_thread], ids=["task", "thread"])


@TAKES
async def test_an_attached_limiter_takes_the_limits_of_the_fleet(
    name: str, store: object, taken: Any
) -> None:
    fleet = Limiter(name, "2/hour", store=store)
    assert await fleet.atry_acquire()
    limiter = LangChainLimiter(Limiter.attach(name, store=store))

    assert await taken(limiter)
    assert not await limiter.aacquire(blocking=False)


@TAKES
@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (Concurrency(5), "LangChain never says when a call has ended"),
        ("10 tokens/hour", "none of its limits counts requests"),
    ],
    ids=["concurrency", "tokens"],
)
async def test_an_attached_limiter_is_checked_before_its_first_acquire(
    name: str, store: object, taken: Any, limit: Any, why: str
) -> None:
    """T8: the error takes nothing."""
    fleet = Limiter(name, limit, store=store)
    await fleet.aupdate(limit)
    limiter = LangChainLimiter(Limiter.attach(name, store=store))

    for _ in range(2):
        with pytest.raises(ValueError, match=why):
            await taken(limiter)
    assert [limit.used for limit in (await fleet.astatus()).limits] == [0]


async def test_an_attached_limiter_of_an_unknown_name_is_an_error(name: str, store: object) -> None:
    with pytest.raises(UnknownLimiterError):
        await LangChainLimiter(Limiter.attach(name, store=store)).aacquire()
