"""The estimates of real SDKs at a local service: attachments, and calls that wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from examples.services.budgets import Rules
from examples.services.models import Models
from examples.services.speech import FILE, PICTURE
from headgate import Limiter, Window
from headgate.http.openai import Estimates
from headgate.http.token_estimates import FIRST_ATTACHED
from tests.http.sdks import LIMITS, client_of, question
from tests.http.test_sdks import FIRST, HOUR, INTO, everything, spent
from tests.world import at_rest, soon

SDKS = sorted(LIMITS)
DATA = "A" * 100_000  # a picture or a file in base64


@pytest.fixture
def service() -> Iterator[Models]:
    with Models(Rules(call_time=0.001)) as service:
        yield service


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def estimates() -> Estimates:
    return Estimates()


@pytest.fixture
async def client(
    sdk: str, service: Models, one: Limiter, estimates: Estimates
) -> AsyncIterator[Any]:
    async with client_of(sdk, False, service) as client:
        yield LIMITS[sdk](client, one, estimates=estimates)


@pytest.fixture
def one(name: str) -> Limiter:
    return everything(name, at_once=100)


PARTS: dict[tuple[str, str], dict[str, Any]] = {
    ("openai", "picture"): {
        "type": "input_image",
        "detail": "auto",
        "image_url": f"data:image/png;base64,{DATA}",
    },
    ("openai", "file"): {"type": "input_file", "filename": "a.pdf", "file_data": DATA},
    ("anthropic", "picture"): {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": DATA},
    },
    ("anthropic", "file"): {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": DATA},
    },
}


async def ask(client: Any, sdk: str, words: int = 20, *, attached: str = "") -> Any:
    text = "input_text" if sdk == "openai" else "text"
    content: list[dict[str, Any]] = [{"type": text, "text": question(words)}]
    if attached:
        content.append(PARTS[sdk, attached])
    messages: Any = [{"role": "user", "content": content}]
    if sdk == "openai":
        return await client.responses.create(model="m", input=messages)
    return await client.messages.create(model="m", messages=messages, max_tokens=8000)


@pytest.mark.parametrize(("attached", "size"), [("picture", PICTURE), ("file", FILE)])
async def test_calls_with_attachments_do_not_spoil_the_estimates_of_texts(
    sdk: str, client: Any, one: Limiter, estimates: Estimates, attached: str, size: int
) -> None:
    """Their tokens are learned by themselves, also within calls with text."""
    for _ in range(5):
        await ask(client, sdk, attached=attached)

    (learned,) = estimates.status()
    assert learned.tokens_per_character == 0.25
    assert learned.attachments[attached] == pytest.approx(size, rel=0.01)
    assert estimates.input("m", 4000) == 1000
    assert estimates.input("m", 4000, {attached: 1}) == pytest.approx(1000 + size, rel=0.01)
    used = spent(await at_rest(one))["input_tokens"]
    assert used == 5 * (INTO + size)


async def test_the_first_picture_has_an_estimate(
    sdk: str, client: Any, service: Models, one: Limiter
) -> None:
    """The service does not state the usage, so the estimate stays charged."""
    service.secretive = True

    await ask(client, sdk, attached="picture")

    used = spent(await at_rest(one))
    assert used["input_tokens"] - FIRST_ATTACHED["picture"] < 20
    assert used["output_tokens"] == FIRST


async def test_waiting_calls_profit_from_the_first_response(
    sdk: str, service: Models, name: str, store: Any
) -> None:
    """Each of 20 calls takes 26 tokens. Of the first estimates, one fits into 600 an hour.

    Estimates of the arrival would let one call in at a time, and none after 87 tokens were used.
    """
    unit = "tokens" if sdk == "openai" else "output_tokens"
    limiter = Limiter(name, Window(600, HOUR, unit=unit), store=store)
    async with client_of(sdk, False, service) as client:
        LIMITS[sdk](client, limiter)

        await soon(asyncio.gather(*(ask(client, sdk) for _ in range(20))))

    assert spent(await at_rest(limiter)) == {unit: 20 * (20 + INTO * (unit == "tokens"))}
