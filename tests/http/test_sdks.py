"""The promises of the SDKs, with real clients and a service that counts and limits."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from typing import Any

import anthropic
import httpcore2
import httpx2
import openai
import pytest

import headgate.http.anthropic
import headgate.http.openai
from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Concurrency, Limiter, MaxSleepExceededError, Status, Window
from headgate.http import feedback
from headgate.http.openai import Estimates, limit
from tests.http.sdks import COROUTINES, ERRORS, KINDS, LIMITS, Speaker, client_of, question
from tests.world import at_rest, held, long, soon, waiting

Speakers = Callable[..., Speaker]
HOUR = 3600.0
INTO, GUESS = (
    6,
    8,
)  # tokens of a question for 10 to 99 words: by the service, by the rule of thumb
FIRST = 512  # the estimate for the first response


def everything(name: str, store: Any = None, at_once: int = 1) -> Limiter:
    """A limiter of all units; of an hour's windows nothing comes back during a test."""
    units = [
        Window(1_000_000, HOUR, unit=unit) for unit in ("tokens", "input_tokens", "output_tokens")
    ]
    return Limiter(name, Window(1000, HOUR), *units, Concurrency(at_once), store=store)


def spent(status: Status) -> dict[str, int]:
    return {limit.unit: limit.used for limit in status.limits if limit.kind != "Concurrency"}


def bill(requests: int, into: int, out: int) -> dict[str, int]:
    return {"requests": requests, "tokens": into + out, "input_tokens": into, "output_tokens": out}


@pytest.fixture
def service() -> Iterator[Models]:
    with Models(Rules(call_time=0.001)) as service:
        yield service


@pytest.fixture
def one(name: str) -> Limiter:
    return everything(name)


# The responses of OpenAI go the way of its chat completions.
QUICK = {"chat, coroutines", "chat, threads", "messages, coroutines"}


@pytest.fixture(
    params=[pytest.param(kind, marks=[pytest.mark.proof] * (kind not in QUICK)) for kind in KINDS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def speakers(kind: str) -> AsyncIterator[Speakers]:
    """`speakers(service, limiter, ...)`: a limited client of that kind, closed at the end."""
    made: list[Speaker] = []
    # A stream needs a thread for its next event while other calls wait in theirs.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(40))

    def make(service: Models, *limiters: Limiter, **options: Any) -> Speaker:
        made.append(Speaker(*KINDS[kind], service, limiters, options))
        return made[-1]

    yield make
    for speaker in made:
        await speaker.close()


async def test_a_strict_service_refuses_no_call(speakers: Speakers, name: str, store: Any) -> None:
    """S1: the service allows three calls at once, and so many requests and tokens.

    Of 30 calls together, half of them streams, none is refused, and both sides count the same.
    """
    limiter = everything(name, store, at_once=3)
    rules = Rules(
        requests=30,
        tokens=30 * (INTO + 20),
        input_tokens=30 * INTO,
        output_tokens=30 * 20,
        at_once=3,
        per=HOUR,
        call_time=0.001,
    )
    with Models(rules) as strict:
        speaker = speakers(strict, limiter)

        async def streamed() -> None:
            await (await speaker.stream()).rest()

        await asyncio.gather(*(speaker.say() if number % 2 else streamed() for number in range(30)))

        assert (strict.calls, strict.refused.total(), strict.most <= 3) == (30, 0, True)
        assert (
            spent(await at_rest(limiter))
            == bill(30, strict.into, strict.out)
            == bill(30, 30 * INTO, 30 * 20)
        )


async def test_the_estimate_is_charged_until_the_usage_is_known(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    """While a stream goes on its permit is held; at its end the usage is settled."""
    service.go.clear()
    stream = await soon(speakers(service, one).stream(30))
    during = await one.astatus()
    assert held(during) == 1
    assert spent(during) == bill(1, GUESS, FIRST)

    service.go.set()
    await soon(stream.rest())

    assert spent(await at_rest(one)) == bill(1, INTO, 30)
    await stream.close()


async def test_the_next_call_waits_for_the_end_of_a_stream(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    speaker = speakers(service, one)
    service.go.clear()
    stream = await soon(speaker.stream())
    other = asyncio.create_task(speaker.say())
    await waiting(one, 1)
    assert service.calls == 1

    service.go.set()
    await soon(stream.rest())
    await soon(other)

    assert service.most == 1
    await at_rest(one)
    await stream.close()


async def test_a_stream_that_is_left_gives_its_permit_back(
    speakers: Speakers, service: Models, one: Limiter, kind: str
) -> None:
    """The usage that it has stated is settled: Anthropic states the input first.

    For the rest the estimate stands.
    """
    stream = await soon(speakers(service, one).stream(50))

    await soon(stream.close())

    into = INTO if kind.startswith("messages") else GUESS
    assert spent(await at_rest(one)) == bill(1, into, FIRST)
    await asyncio.to_thread(service.wait_inside, 0)


@pytest.mark.filterwarnings(
    "ignore::ResourceWarning"
)  # headgate or the client warns of the dropped stream
async def test_a_stream_that_is_dropped_gives_its_permit_back(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    """The stream is garbage, and was not closed."""
    await soon(speakers(service, one).stream(50))

    async with asyncio.timeout(long()):
        while held(await one.astatus()):
            gc.collect()
            await asyncio.sleep(0)


@pytest.mark.parametrize("mood", [429, 500, 503, 529])
async def test_each_attempt_of_an_sdk_takes_a_request(
    speakers: Speakers, service: Models, one: Limiter, mood: int
) -> None:
    """Two attempts fail before a third, with room for one at a time: three requests.

    An attempt that was refused, or that broke the service, took no tokens.
    """
    service.moods = [mood, mood]

    await soon(speakers(service, one).say(30))

    assert service.calls == 3
    assert spent(await at_rest(one)) == bill(3, INTO, 30)


@pytest.mark.parametrize(("mood", "held_for"), [("quota", []), (429, [0.01, 0.01, 0.01])])
async def test_a_spent_account_pauses_nothing(
    speakers: Speakers,
    service: Models,
    one: Limiter,
    monkeypatch: pytest.MonkeyPatch,
    mood: Any,
    held_for: list[float],
) -> None:
    """Its body alone tells it from a limit, and the SDKs retry without reading it.

    The caller gets the error as it came.
    """
    pauses: list[float] = []
    monkeypatch.setattr(
        feedback,
        "note_action",
        lambda *acted: acted[3] == "pause" and pauses.append(acted[2].retry_after),
    )
    service.moods = [mood] * 3

    with pytest.raises((openai.RateLimitError, anthropic.RateLimitError)) as refused:
        await soon(speakers(service, one).say(30))

    assert (service.calls, pauses) == (3, held_for)
    assert (
        "insufficient_quota" in str(refused.value.body)
        or "enforced_spend" in str(refused.value.body)
    ) == (mood == "quota")
    assert spent(await at_rest(one)) == bill(3, 0, 0)


async def test_calls_in_an_outage_cost_nothing(speakers: Speakers, one: Limiter) -> None:
    """They take no request and no tokens."""
    with Models() as gone:
        speaker = speakers(gone, one)
    speaker.client = speaker.client.with_options(max_retries=0)

    for _ in range(40):
        with pytest.raises(ERRORS):
            await soon(speaker.say())

    assert spent(await at_rest(one)) == bill(0, 0, 0)


@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_a_task_that_is_cancelled_while_it_waits_has_used_nothing(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    speaker = speakers(service, one)
    async with one:
        call = asyncio.create_task(speaker.say())
        await waiting(one, 1)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert spent(await at_rest(one)) == bill(1, 0, 0)
    assert service.calls == 0


@pytest.mark.parametrize("kind", COROUTINES, indirect=True)
async def test_a_task_that_is_cancelled_during_the_response_gives_its_permit_back(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    """Its estimate stands: the service may have worked for it."""
    service.go.clear()
    stream = await soon(speakers(service, one).stream(30))
    reading = asyncio.create_task(stream.rest())
    await asyncio.sleep(0)

    reading.cancel()

    with pytest.raises(asyncio.CancelledError):
        await reading
    await stream.close()
    assert spent(await at_rest(one))["output_tokens"] == FIRST


@pytest.mark.parametrize("streamed", [False, True])
async def test_without_a_usage_the_estimate_stands(
    speakers: Speakers, service: Models, one: Limiter, streamed: bool
) -> None:
    """And nothing is learned."""
    service.secretive, estimates = True, Estimates()
    speaker = speakers(service, one, estimates=estimates)

    if streamed:
        await (await soon(speaker.stream(30))).rest()
    else:
        await soon(speaker.say(30))

    assert spent(await at_rest(one)) == bill(1, GUESS, FIRST)
    assert estimates.status() == ()


async def test_the_length_of_responses_is_learned(
    speakers: Speakers, service: Models, name: str
) -> None:
    """Calls may have 8,000 tokens each and take 30: with a limit of 1,000 ten of them pass."""
    estimates, limiter = (
        Estimates(),
        Limiter(name, Window(1000, HOUR, unit="output_tokens"), max_sleep=0.01),
    )
    speaker = speakers(service, limiter, estimates=estimates)

    for _ in range(10):
        await soon(speaker.say(30, max_tokens=8_000))

    assert spent(limiter.status()) == {"output_tokens": 300}
    (learned,) = estimates.status()
    assert (learned.model, learned.calls, learned.output) == ("m", 10, 30)
    assert repr(estimates).startswith("<Estimates of m: 10 calls, input 0.2")


async def test_an_estimate_above_the_capacity_is_reduced_to_it(
    speakers: Speakers, service: Models, name: str
) -> None:
    """With room for 100 tokens, the first call is not refused for its estimate of 512.

    The tokens beyond the room are a debt.
    """
    limiter = Limiter(name, Window(100, HOUR, unit="tokens"), max_sleep=0.01)

    await soon(speakers(service, limiter).say(150))

    assert spent(limiter.status()) == {"tokens": INTO + 150}


async def test_an_estimate_is_reduced_when_the_limit_is_cut(
    speakers: Speakers, service: Models, name: str
) -> None:
    """The call waits when the limit is cut below its estimate; it is not refused for that."""
    limiter = Limiter(name, Window(1000, HOUR, unit="tokens"))
    others = await limiter.acquire(tokens=1000)
    call = asyncio.create_task(speakers(service, limiter).say(30))
    await waiting(limiter, 1)

    limiter.update(Window(100, HOUR, unit="tokens"))
    others.settle(tokens=0)

    await soon(call)
    assert spent(limiter.status()) == {"tokens": INTO + 30}


async def test_a_refusal_of_the_limiter_reaches_the_caller(
    speakers: Speakers, service: Models, one: Limiter, name: str
) -> None:
    """When the second of two limiters refuses, the first has its request, its tokens and its permit
    back. Anthropic's SDK reports it as a failed connection.
    """
    speaker = speakers(service, one, Limiter(f"{name}-2", "1/hour", max_sleep=1.0))
    speaker.client = speaker.client.with_options(max_retries=0)
    await soon(speaker.say(30))

    with pytest.raises((MaxSleepExceededError, anthropic.APIConnectionError)) as refused:
        await soon(speaker.say(30))

    error = refused.value if speaker.sdk == "openai" else refused.value.__cause__
    assert isinstance(error, MaxSleepExceededError)
    assert spent(await at_rest(one)) == bill(1, INTO, 30)
    assert service.calls == 1


async def test_each_model_has_a_limit_of_its_own(
    speakers: Speakers, service: Models, name: str
) -> None:
    limiter = everything(name)
    speaker = speakers(service, limiter, key="model")

    await soon(speaker.say(30, model="small"))
    await soon(speaker.say(40, model="large"))

    assert spent(limiter["small"].status()) == bill(1, INTO, 30)
    assert spent(limiter["large"].status()) == bill(1, INTO, 40)
    assert spent(limiter.status()) == bill(0, 0, 0)


async def test_exempt_requests_are_not_limited(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    await soon(speakers(service, one, exempt=["/v1"]).say(30))

    assert spent(one.status()) == bill(0, 0, 0)


async def test_a_client_with_other_options_is_limited_too(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    speaker = speakers(service, one)
    speaker.client = speaker.client.with_options(timeout=5)

    await soon(speaker.say(30))

    assert spent(await at_rest(one)) == bill(1, INTO, 30)


async def test_only_codings_that_can_be_read_are_accepted(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    """The client would accept any; its response can be read here nevertheless."""
    await soon(speakers(service, one).say(30, extra_headers={"Accept-Encoding": "br, zstd"}))

    assert service.codings == {"gzip, deflate"}
    assert spent(await at_rest(one)) == bill(1, INTO, 30)


async def test_calls_without_tokens_take_a_request(service: Models, one: Limiter) -> None:
    """Models are listed, and embeddings have an input only."""
    estimates = Estimates()
    async with limit(client_of("openai", False, service), one, estimates=estimates) as client:
        await client.models.list()
        assert spent(await at_rest(one)) == bill(1, 0, 0)
        await client.embeddings.create(model="e", input=question(30))

    assert spent(await at_rest(one)) == bill(2, INTO, 0)
    assert [(each.model, each.exceeded) for each in estimates.status()] == [("e", None)]
    with limit(client_of("openai", True, service), one) as threads:
        threads.models.list()
    assert spent(await at_rest(one))["requests"] == 3


async def test_the_helpers_of_anthropic_are_limited_too(service: Models, one: Limiter) -> None:
    """`messages.stream()`, left in the middle and read to its end."""
    async with LIMITS["anthropic"](client_of("anthropic", False, service), one) as client:
        messages: Any = [{"role": "user", "content": question(30)}]
        async with client.messages.stream(model="m", max_tokens=100, messages=messages) as stream:
            await anext(stream.text_stream)
        assert spent(await at_rest(one)) == bill(1, INTO, 100)
        async with client.messages.stream(model="m", max_tokens=100, messages=messages) as stream:
            assert len((await stream.get_final_text()).split()) == 30

    assert spent(await at_rest(one)) == bill(2, 2 * INTO, 130)


@pytest.mark.parametrize("helper", ["chat", "responses"])
async def test_the_helpers_of_openai_are_limited_too(
    service: Models, one: Limiter, helper: str
) -> None:
    """`chat.completions.stream()` and `responses.stream()`, left early and read to the end."""
    asked: Any = [{"role": "user", "content": question(30)}]
    async with LIMITS["openai"](client_of("openai", False, service), one) as client:

        def streamed() -> Any:
            if helper == "responses":
                return client.responses.stream(model="m", input=asked)
            return client.chat.completions.stream(
                model="m", messages=asked, stream_options={"include_usage": True}
            )

        async with streamed() as stream:
            await anext(aiter(stream))
        assert spent(await at_rest(one)) == bill(1, GUESS, FIRST)
        async with streamed() as stream:
            assert len([event async for event in stream]) > 30

    assert spent(await at_rest(one)) == bill(2, GUESS + INTO, FIRST + 30)


@pytest.mark.parametrize(
    "kind", ["chat, coroutines", "responses, coroutines", "messages, coroutines"], indirect=True
)
async def test_a_response_that_is_read_late_holds_its_permit(
    speakers: Speakers, service: Models, one: Limiter
) -> None:
    """`with_streaming_response`, not read at all and read at the end."""
    speaker = speakers(service, one)
    place, name = {
        "chat": ("chat.completions", "messages"),
        "responses": ("responses", "input"),
        "messages": ("messages", "messages"),
    }[speaker.how]
    create = attrgetter(f"{place}.with_streaming_response.create")(speaker.client)
    options = {
        "model": "m",
        name: [{"role": "user", "content": question(30)}],
        **({"max_tokens": FIRST} if speaker.how == "messages" else {}),
    }

    async with create(**options):
        assert held(await one.astatus()) == 1
    assert spent(await at_rest(one)) == bill(1, GUESS, FIRST)
    async with create(**options) as answer:
        await answer.read()

    assert spent(await at_rest(one)) == bill(2, GUESS + INTO, FIRST + 30)


def test_the_response_of_a_mock_is_read(one: Limiter) -> None:
    """Its body is complete at once."""

    def answered(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200,
            json={"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        )

    mocked = openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )
    with limit(mocked, one) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hello"}])

    assert spent(one.status()) == bill(1, 3, 4)


@pytest.mark.parametrize("number", [2**49, 2**53 - 1])
def test_an_absurd_usage_does_not_break_the_call(one: Limiter, number: int) -> None:
    """Tokens of each kind could be counted, and their sum could not."""

    def answered(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(
            200,
            json={"choices": [], "usage": {"prompt_tokens": number, "completion_tokens": number}},
        )

    mocked = openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )

    with limit(mocked, one) as client:
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": question(20)}]
        )

    assert held(one.status()) == 0


def test_headers_are_not_changed_after_a_client_has_signed_them(one: Limiter) -> None:
    """The client signs all headers before it sends, as that of Bedrock does."""
    signed: list[Any] = []
    sent: list[Any] = []

    def answered(request: httpx2.Request) -> httpx2.Response:
        sent.append(dict(request.headers))
        return httpx2.Response(200, json={"choices": []})

    signing = httpx2.Client(
        transport=httpx2.MockTransport(answered),
        headers={"accept-encoding": "gzip, deflate, br, zstd"},
        event_hooks={"request": [lambda request: signed.append(dict(request.headers))]},
    )
    with limit(openai.OpenAI(api_key="k", http_client=signing), one) as client:
        client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": question(20)}]
        )

    assert sent == signed != []


def test_a_response_that_was_closed_unread_has_no_usage(one: Limiter) -> None:
    """It comes from a transport of the user."""

    def answered(request: httpx2.Request) -> httpx2.Response:
        response = httpx2.Response(200, stream=httpx2.ByteStream(b"{}"))
        response.close()
        return response

    mocked = openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )
    with limit(mocked, one) as client:
        request = httpx2.Request(
            "POST", "http://host/v1/responses", json={"model": "m", "input": "12345678"}
        )
        assert client._client._transport.handle_request(request).is_closed

    assert spent(one.status()) == bill(1, 2, FIRST)


@pytest.mark.parametrize("asks", [False, True])
def test_an_old_usage_from_a_cache_is_neither_settled_nor_learned(one: Limiter, asks: bool) -> None:
    """`asks`: the cache asks the service whether its response still holds, which is a call."""
    usage = {"input_tokens": 3, "output_tokens": 4}

    def answered(request: httpx2.Request) -> httpx2.Response:
        if asks:
            details = {"request": httpcore2.Request("POST", "http://host")}
            request.extensions["trace"]("http11.send_request_headers.started", details)
        return httpx2.Response(200, json={"usage": usage}, extensions={"from_cache": True})

    cached = openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )
    estimates = Estimates()
    with limit(cached, one, estimates=estimates) as client:
        client.responses.create(model="m", input="12345678")

    assert spent(one.status()) == (bill(1, 2, FIRST) if asks else bill(0, 0, 0))
    assert estimates.status() == ()


def test_an_upload_takes_one_request(one: Limiter) -> None:
    """It is sent piece by piece, and not read here."""

    def answered(request: httpx2.Request) -> httpx2.Response:
        request.read()
        return httpx2.Response(200, json={"id": "x"})

    pieces = (piece for piece in [b"{", b"}"])
    mocked = openai.OpenAI(
        api_key="k", http_client=httpx2.Client(transport=httpx2.MockTransport(answered))
    )
    with limit(mocked, one) as client:
        client._client.post("http://host/v1/responses", content=pieces)

    assert spent(one.status()) == bill(1, 0, 0)


@pytest.mark.parametrize("sdk", LIMITS)
def test_bad_arguments_are_refused_before_anything_is_changed(sdk: str) -> None:
    api, client = Limiter("api", "1/hour"), object()
    refused: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "has no limiters"),
        (("100/minute",), {}, "as a limiter: write a Limiter"),
        ((api,), {"key": 3}, "a key is 'host', or a function"),
        ((api["a"],), {"key": "model"}, "already has a key"),
        ((api,), {"exempt": "localhost"}, r"write \['localhost'\]"),
        ((api,), {"estimates": 512}, r"write an Estimates\(\)"),
        ((api,), {"models": "m"}, "write the limiter of each model by its name"),
        ((api,), {"models": {"m": "1/hour"}}, "write the limiter of each model by its name"),
        ((api,), {}, f"a client is one of {sdk}"),
    ]
    for arguments, options, words in refused:
        with pytest.raises((TypeError, ValueError), match=rf"^limit\W.*{words}"):
            LIMITS[sdk](client, *arguments, **options)


def test_a_client_on_httpx_is_refused() -> None:
    """OpenAI's SDK still accepts an httpx client."""
    import httpx

    with (
        openai.OpenAI(api_key="k", http_client=httpx.Client()) as client,
        pytest.raises(TypeError, match="on httpx2"),
    ):  # type: ignore[arg-type]
        headgate.http.openai.limit(client, Limiter("api", "1/hour"))


def test_clients_of_azure_are_clients_of_openai(one: Limiter) -> None:
    """The model stands in their path, and in the body."""
    paths: list[str] = []

    def answered(request: httpx2.Request) -> httpx2.Response:
        paths.append(request.url.path)
        return httpx2.Response(
            200,
            json={"id": "x", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}},
        )

    inside = httpx2.Client(transport=httpx2.MockTransport(answered))
    azure = openai.AzureOpenAI(
        api_key="k", api_version="v", azure_endpoint="http://host", http_client=inside
    )
    with headgate.http.openai.limit(azure, one) as client:
        client.chat.completions.create(
            model="mine", messages=[{"role": "user", "content": "hello"}]
        )

    assert paths == ["/openai/deployments/mine/chat/completions"]
    assert spent(one.status()) == bill(1, 3, 4)


def test_a_usage_holds_callers_for_heed_at_most_beyond_the_limits(name: str) -> None:
    """All else of an absurd usage is left out, also without feedback."""
    usage = {"input_tokens": 2**24 - 1, "output_tokens": 0}
    absurd = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"usage": usage}))
    limiter = Limiter(name, "30k tokens/minute", "1000k input_tokens/hour")

    with openai.OpenAI(api_key="k", http_client=httpx2.Client(transport=absurd)) as client:
        headgate.http.openai.limit(client, limiter, heed_at_most=120, feedback=False)
        client.responses.create(model="m", input="hello")

    assert [limit.used for limit in limiter.status().limits] == [90_000, 1_033_333]


def test_limit_wraps_the_transport_of_anthropics_own_client(one: Limiter) -> None:
    with anthropic.Anthropic(api_key="k") as client:
        before = client._client._transport
        assert headgate.http.anthropic.limit(client, one) is client
        assert client._client._transport._inner is before  # type: ignore[attr-defined]
