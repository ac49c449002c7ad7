"""The clients of Azure, Bedrock, Vertex and Groq, with the real SDKs and a local service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

import headgate.http.anthropic
import headgate.http.openai
from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Limiter
from headgate.http import token_metering
from headgate.http.openai import Estimates
from tests.http.sdks import KEY, LIMITS, client_of, question
from tests.http.test_sdks import FIRST, GUESS, INTO, bill, everything, spent
from tests.world import at_rest

Keep = Callable[[Any], Any]
SIGNED = {"aws_secret_key": KEY, "aws_access_key": KEY, "aws_region": "eu-central-1"}
VERTEX = {"region": "europe-west1", "project_id": "mine", "access_token": KEY}
# By the name of the kind: the SDK, its classes, their arguments, the path of a message.
CLOUDS: dict[str, tuple[str, Any, Any, dict[str, Any], str]] = {
    "azure": (
        *("openai", openai.AzureOpenAI, openai.AsyncAzureOpenAI),
        {"api_key": KEY, "api_version": "v"},
        "/openai/deployments/m/chat/completions",
    ),
    "groq": (
        *("openai", openai.OpenAI, openai.AsyncOpenAI),
        {"api_key": KEY},
        "/openai/v1/chat/completions",
    ),
    "bedrock": (
        *("anthropic", anthropic.AnthropicBedrock, anthropic.AsyncAnthropicBedrock),
        SIGNED,
        "/model/m/invoke",
    ),
    "mantle": (
        *("anthropic", anthropic.AnthropicBedrockMantle, anthropic.AsyncAnthropicBedrockMantle),
        {"api_key": KEY, "aws_region": "eu-central-1"},
        "/v1/messages",
    ),
    "vertex": (
        *("anthropic", anthropic.AnthropicVertex, anthropic.AsyncAnthropicVertex),
        VERTEX,
        "/v1/projects/mine/locations/europe-west1/publishers/anthropic/models/m:rawPredict",
    ),
}


@pytest.fixture
def service() -> Iterator[Models]:
    with Models(Rules(call_time=0.001)) as service:
        yield service


@pytest.fixture
def one(name: str) -> Limiter:
    return everything(name)


@pytest.fixture
async def kept() -> AsyncIterator[Callable[[Any], Any]]:
    """`kept(client)`: the client, closed at the end."""
    clients: list[Any] = []

    def keep(client: Any) -> Any:
        clients.append(client)
        return client

    yield keep
    for client in clients:
        closed = client.close()
        if closed is not None:
            await closed


def make(cloud: str, threads: bool, service: Models, limiter: Limiter) -> Any:
    sdk, sync, coroutines, arguments, _ = CLOUDS[cloud]
    url = {
        "azure": {"azure_endpoint": service.url},
        "groq": {"base_url": f"{service.url}/openai/v1"},
        "vertex": {"base_url": f"{service.url}/v1"},
    }.get(cloud, {"base_url": service.url})
    if cloud in ("bedrock", "mantle"):  # they sign, or read streams, with these
        pytest.importorskip("boto3")
    return LIMITS[sdk]((sync if threads else coroutines)(**arguments, **url), limiter)


async def say(client: Any, words: int, **options: Any) -> Any:
    """Return a response, or all events of a stream."""
    messages = [{"role": "user", "content": question(words)}]
    create: Callable[..., Any] = (
        client.chat.completions.create if hasattr(client, "chat") else client.messages.create
    )
    arguments = {"model": "m", "messages": messages, "max_tokens": 8000, **options}
    if hasattr(client, "__aenter__"):
        answer = await create(**arguments)
        return [event async for event in answer] if options.get("stream") else answer
    return await asyncio.to_thread(
        lambda: list(create(**arguments)) if options.get("stream") else create(**arguments)
    )


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("cloud", CLOUDS)
async def test_the_usage_of_a_response_is_settled(
    cloud: str, threads: bool, service: Models, one: Limiter, kept: Keep
) -> None:
    client = kept(make(cloud, threads, service, one))

    await say(client, 30)

    assert service.paths == [CLOUDS[cloud][-1]]
    assert spent(await at_rest(one)) == bill(1, INTO, 30)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("cloud", CLOUDS)
async def test_the_usage_of_a_stream_is_settled(
    cloud: str, threads: bool, service: Models, one: Limiter, kept: Keep
) -> None:
    """Groq's last event has it without being asked; Bedrock's events come in frames."""
    client = kept(make(cloud, threads, service, one))
    options = {"stream_options": {"include_usage": True}} if cloud == "azure" else {}

    assert len(await say(client, 30, stream=True, **options)) >= 30

    assert spent(await at_rest(one)) == bill(1, INTO, 30)


async def test_calls_of_bedrock_and_vertex_name_their_model_in_the_path(
    service: Models, name: str, kept: Keep
) -> None:
    limiter, estimates = everything(name), Estimates()
    client = kept(anthropic.AsyncAnthropicVertex(**VERTEX, base_url=f"{service.url}/v1"))
    headgate.http.anthropic.limit(client, limiter, estimates=estimates, key="model")

    await say(client, 30)

    assert spent(limiter["m"].status()) == bill(1, INTO, 30)
    assert [each.model for each in estimates.status()] == ["m"]


@pytest.mark.parametrize("threads", [False, True])
async def test_a_response_in_the_background_is_settled_when_it_is_retrieved(
    threads: bool, service: Models, one: Limiter, kept: Keep
) -> None:
    """Until then the estimate stands. A retrieval before its end settles nothing."""
    estimates = Estimates()
    client: Any = kept(client_of("openai", threads, service))
    headgate.http.openai.limit(client, one, estimates=estimates)
    service.go.clear()

    async def called(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if threads:
            return await asyncio.to_thread(function, *arguments, **options)
        return await function(*arguments, **options)

    begun = await called(client.responses.create, model="m", input=question(30), background=True)
    early = await called(client.responses.retrieve, begun.id)
    assert (begun.status, early.status) == ("queued", "queued")
    assert spent(await at_rest(one)) == bill(2, GUESS - 1, FIRST)

    service.go.set()
    done = await called(client.responses.retrieve, begun.id)
    await called(client.responses.retrieve, begun.id)

    assert done.status == "completed"
    assert spent(await at_rest(one)) == bill(4, INTO, 30)
    assert [(each.calls, each.output) for each in estimates.status()] == [(1, 30)]


def test_the_latest_responses_in_the_background_are_remembered(
    one: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three, the usage of the last two is settled. A usage of null is none."""
    monkeypatch.setattr(token_metering, "MOST_IN_BACKGROUND", 2)
    ids = iter("abc")

    def answered(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            return httpx2.Response(200, json={"id": next(ids), "status": "queued", "usage": None})
        usage = {"input_tokens": 1, "output_tokens": 1}
        found = {"id": request.url.path[-1], "status": "completed", "usage": usage}
        return httpx2.Response(200, json=found)

    mocked = openai.OpenAI(
        api_key=KEY, http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )
    with headgate.http.openai.limit(mocked, one) as client:
        for _ in range(3):
            client.responses.create(model="m", input="1234", background=True)
        for each in "abc":
            client.responses.retrieve(each)

    assert spent(one.status()) == bill(6, 3, FIRST + 2)


async def test_each_model_of_a_client_has_limits_of_its_own(
    service: Models, name: str, kept: Keep
) -> None:
    large, others = everything(f"{name}-large"), everything(f"{name}-others")
    client: Any = kept(client_of("openai", False, service))
    headgate.http.openai.limit(client, others, models={"large": large})

    await say(client, 30, model="large")
    await say(client, 40, model="small")
    await client.models.list()

    assert spent(await at_rest(large)) == bill(1, INTO, 30)
    assert spent(await at_rest(others)) == bill(2, INTO, 40)


async def test_one_budget_covers_two_sdks(service: Models, one: Limiter, kept: Keep) -> None:
    """A limiter of one call at a time holds the clients of both."""
    clients = [LIMITS[sdk](kept(client_of(sdk, False, service)), one) for sdk in LIMITS]

    await asyncio.gather(*(say(client, 30) for client in clients * 5))

    assert (service.calls, service.most) == (10, 1)
    assert spent(await at_rest(one)) == bill(10, 10 * INTO, 10 * 30)
