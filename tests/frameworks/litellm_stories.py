"""LiteLLM: its real coroutines, streams, cache and Router with our callback and a provider made up.

test_litellm.py runs these tests where LiteLLM can be imported.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import litellm
import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError
from headgate.frameworks import litellm as module
from headgate.frameworks.litellm import LiteLLMLimiter
from headgate.testing import ManualClock
from tests.frameworks.aside import ROOT
from tests.world import at_rest, held, long

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore::UserWarning", "ignore::DeprecationWarning"
    ),  # of LiteLLM; ours are of other kinds
    pytest.mark.asyncio(loop_scope="module"),  # LiteLLM uses the loop that it saw first
]
MESSAGES = [{"role": "user", "content": "hi"}]
TOKENS = 30  # of each answer: 10 in, 20 out


class Provider(litellm.CustomLLM):
    """Answers when the test says so, or fails."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__()
        self.clock = clock
        self.asked: list[float] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = 0
        self.used: int | None = None  # the tokens that an answer states

    async def acompletion(self, *said: Any, **options: Any) -> Any:
        self.asked.append(self.clock.elapsed())
        await self.may_answer.wait()
        if self.fails:
            self.fails -= 1
            raise litellm.exceptions.InternalServerError("failed", "made-up", "model")
        answer = litellm.completion("openai/gpt-4o", MESSAGES, mock_response="hello")
        if self.used is not None:
            answer.usage.total_tokens = self.used
        return answer


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    with ManualClock(skips=True) as clock:
        yield clock


@pytest.fixture
def provider(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Provider:
    provider = Provider(clock)
    monkeypatch.setattr(
        litellm, "custom_provider_map", [{"provider": "made-up", "custom_handler": provider}]
    )
    monkeypatch.setattr(litellm, "callbacks", [])
    monkeypatch.setattr(litellm, "suppress_debug_info", True)
    return provider


def limited(limiter: Limiter, **options: Any) -> LiteLLMLimiter:
    callback = LiteLLMLimiter(limiter, **options)
    litellm.callbacks = [callback]
    return callback


async def ask(**options: Any) -> Any:
    return await litellm.acompletion(**{"model": "made-up/model", "messages": MESSAGES, **options})


async def until(met: Callable[[], bool]) -> None:
    """Wait for LiteLLM's work after the answer, partly in threads."""
    async with asyncio.timeout(long()):
        while not met():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


def left(limiter: Limiter, unit: str) -> int:
    return next(limit.left for limit in limiter.status().limits if limit.unit == unit)


async def test_calls_wait_for_their_turn(name: str, provider: Provider) -> None:
    limited(Limiter(name, "1/second", Concurrency(2)))
    provider.clock.skips = False
    answers = asyncio.gather(*(ask() for _ in range(3)))
    for second in range(3):
        await until(lambda: len(provider.asked) > second)  # noqa: B023 - it is over when it returns
        assert provider.asked == [*range(second + 1)]
        await provider.clock.aadvance(1)
    assert [answer.choices[0].message.content for answer in await answers] == ["hello"] * 3


async def test_a_permit_is_held_until_the_answer_is_there(name: str, provider: Provider) -> None:
    limiter = Limiter(name, Concurrency(2))
    limited(limiter)
    provider.may_answer.clear()
    calls = [asyncio.create_task(ask()) for _ in range(5)]
    await until(lambda: len(provider.asked) == 2 and limiter.status().waiting == 3)
    assert held(limiter.status()) == 2
    provider.may_answer.set()
    await asyncio.gather(*calls)
    assert held(limiter.status()) == 0, "and not until LiteLLM has logged it"


async def test_tokens_are_estimated_and_settled(name: str, provider: Provider) -> None:
    """An estimate above the capacity is reduced; one that is too high is returned, one that is too
    low charged.
    """
    limits = "1000 tokens/hour", "500 input_tokens/hour", "500 output_tokens/hour"
    limiter = Limiter(name, "10/hour", *limits)
    limited(
        limiter,
        estimate=lambda call: {
            "tokens": 5000,
            "input_tokens": len(call["messages"]),
            "output_tokens": 0,
        },
    )
    provider.may_answer.clear()
    call = asyncio.create_task(ask())
    await until(lambda: bool(provider.asked))
    taken = [left(limiter, unit) for unit in ("tokens", "input_tokens", "output_tokens")]
    assert taken == [0, 499, 500]
    provider.may_answer.set()
    await call
    assert [left(limiter, unit) for unit in ("tokens", "input_tokens", "output_tokens")] == [
        1000 - TOKENS,
        490,
        480,
    ]


async def test_an_absurd_usage_is_a_debt_of_an_hour(name: str, provider: Provider) -> None:
    limiter = Limiter(name, "1000 tokens/minute")
    limited(limiter)
    provider.used = 10**12
    await ask()
    assert left(limiter, "tokens") == -60_000


async def test_an_estimate_is_reduced_when_the_limit_is_cut(name: str, provider: Provider) -> None:
    """The call waits when the limit is cut below its estimate; it is not refused for that."""
    limiter = Limiter(name, "1000 tokens/hour", Concurrency(1))
    limited(limiter, estimate=lambda call: {"tokens": 900})
    async with limiter:
        call = asyncio.create_task(ask())
        await until(lambda: limiter.status().waiting == 1)
        limiter.update("100 tokens/hour", Concurrency(1))
    await call
    assert left(limiter, "tokens") == 100 - TOKENS


async def test_without_an_estimate_tokens_are_charged_when_they_are_known(
    name: str, provider: Provider
) -> None:
    limiter = Limiter(name, "10/hour", "20 tokens/hour")
    limited(limiter)
    await ask()
    assert left(limiter, "tokens") == 20 - TOKENS


async def test_a_stream_holds_its_permit_to_its_end(name: str, provider: Provider) -> None:
    limiter = Limiter(name, Concurrency(1), "1000 tokens/hour")
    limited(limiter, estimate=lambda call: {"tokens": 100})
    stream = await ask(model="openai/gpt-4o", mock_response="hello", stream=True)
    async for _ in stream:
        assert held(limiter.status()) == 1
    await at_rest(limiter)
    assert 900 < left(limiter, "tokens") < 1000


async def test_a_stream_that_is_dropped_gives_its_permit_back(
    name: str, provider: Provider
) -> None:
    limiter = Limiter(name, Concurrency(1))
    callback = limited(limiter)
    async for _ in await ask(model="openai/gpt-4o", mock_response="hello " * 50, stream=True):
        break
    gc.collect()
    await at_rest(limiter)
    assert callback._calls == {}


async def test_a_call_that_is_cancelled_gives_its_permit_back(
    name: str, provider: Provider
) -> None:
    """Also by a timeout, for which LiteLLM calls no callback."""
    limiter = Limiter(name, Concurrency(1))
    callback = limited(limiter)
    provider.may_answer.clear()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as patience:
            call = asyncio.ensure_future(ask())
            await until(lambda: bool(provider.asked))
            patience.reschedule(0)
            await call
    del call
    gc.collect()
    await at_rest(limiter)
    assert callback._calls == {}


async def test_each_attempt_of_a_router_is_a_call(name: str, provider: Provider) -> None:
    """The provider fails twice: three calls are charged, in turn, and nothing is held."""
    limiter = Limiter(name, "1/second", Concurrency(1))
    limited(limiter)
    provider.fails = 2
    models = [{"model_name": "any", "litellm_params": {"model": "made-up/model"}}]
    router = litellm.Router(models, num_retries=2, retry_after=0, disable_cooldowns=True)
    answer = await router.acompletion("any", MESSAGES)
    assert answer.choices[0].message.content == "hello"
    assert len(provider.asked) == 3
    assert provider.clock.elapsed() >= 2
    await at_rest(limiter)


async def test_an_error_gives_the_permit_back_and_the_estimate_stands(
    name: str, provider: Provider
) -> None:
    limiter = Limiter(name, Concurrency(1), "1000 tokens/hour")
    limited(limiter, estimate=lambda call: {"tokens": 100})
    provider.fails = 1
    with pytest.raises(litellm.exceptions.InternalServerError):
        await ask()
    assert held(limiter.status()) == 0
    assert left(limiter, "tokens") == 900


async def test_a_cached_response_takes_nothing(name: str, provider: Provider) -> None:
    """As LiteLLM reports it: this version needs packages of its proxy to use its cache."""
    limiter = Limiter(name, "5/hour", "1000 tokens/hour", Concurrency(1))
    callback = LiteLLMLimiter(limiter, estimate=lambda call: {"tokens": 100})
    call = {"litellm_call_id": "one", "litellm_logging_obj": provider, "model": "model"}
    await callback.async_pre_call_deployment_hook(call, None)
    assert [limit.used for limit in limiter.status().limits] == [1, 100, 1]
    await callback.async_log_success_event({**call, "cache_hit": True}, await ask(), None, None)
    assert [limit.used for limit in limiter.status().limits] == [0, 0, 0]


async def test_a_call_passes_all_limiters_and_releases_the_permits_of_each(
    name: str, provider: Provider
) -> None:
    """LiteLLM would take two callbacks for one. With a stream, both get their permits back."""
    limiters = [Limiter(f"{name}-{number}", Concurrency(1)) for number in range(2)]
    litellm.callbacks = [LiteLLMLimiter(limiter) for limiter in limiters]
    async for _ in await ask(model="openai/gpt-4o", mock_response="hello", stream=True):
        assert [held(limiter.status()) for limiter in limiters] == [1, 1]
    for limiter in limiters:
        await at_rest(limiter)


async def test_a_refusal_reaches_the_caller(name: str, provider: Provider) -> None:
    limited(Limiter(name, "1/minute", max_sleep=5))
    await ask()
    with pytest.raises(MaxSleepExceededError) as refused:
        await ask()
    assert refused.value.retry_after == 60
    assert len(provider.asked) == 1


async def test_each_model_has_a_state_of_its_own(name: str, provider: Provider) -> None:
    limiter = Limiter(name, "1/hour")
    limited(limiter, key="model")
    await asyncio.gather(ask(), ask(model="made-up/other"))
    assert provider.clock.elapsed() == 0
    limited(limiter, key=lambda call: call["messages"][0]["role"])
    await asyncio.gather(ask(), ask(model="made-up/other"))
    assert provider.clock.elapsed() >= 3600, "both are of one user: one of them waits an hour"


async def test_a_model_that_is_a_member_of_an_enumeration_has_the_state_of_its_text(
    name: str, provider: Provider
) -> None:
    limited(Limiter(name, "1/hour"), key="model")
    model: Any = Enum("Model", {"mini": "made-up/mini"}, type=str)
    await asyncio.gather(ask(model=model["mini"]), ask(model="made-up/mini"))
    assert provider.clock.elapsed() >= 3600, "both are one model: one of them waits an hour"


def test_bad_arguments_are_refused(name: str) -> None:
    limiter: Any = Limiter(name, "1/hour")
    for bad in (
        lambda: LiteLLMLimiter("1/hour"),
        lambda: LiteLLMLimiter(limiter, key="host"),
        lambda: LiteLLMLimiter(limiter, estimate=5),
    ):
        with pytest.raises(TypeError, match=r"^LiteLLMLimiter\("):
            bad()


def test_the_modules_names_stand_in_its_document() -> None:
    """test_architecture.py checks the others; this one can be imported only here."""
    document = (ROOT / "docs/frameworks.md").read_text()
    assert sorted(module.__all__) == module.__all__
    for offered in (getattr(module, name) for name in module.__all__):
        assert re.search(rf"\b{offered.__name__}\b", document)
        methods = [
            value
            for name, value in vars(offered).items()
            if inspect.isfunction(value) and not name.startswith("_")
        ]
        assert [method.__name__ for method in (offered, *methods) if not method.__doc__] == []
