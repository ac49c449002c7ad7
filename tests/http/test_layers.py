"""A request passes a limiter once. A copy of a client is limited alone."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import requests

import headgate.http.requests
from examples.services.budgets import Rules
from examples.services.models import Models
from headgate import Concurrency, Limiter
from headgate.http.aiohttp import middleware
from headgate.http.requests import Adapter
from headgate.stores.memory.store import MemoryStore
from tests.http.clients import LIMITS
from tests.http.sdks import LIMITS as SDK_LIMITS
from tests.http.sdks import client_of, question
from tests.http.service import FIRST, REST, Service
from tests.http.test_httpx import LIBRARIES
from tests.world import soon, used

Clients = Callable[..., Any]
TWICE = "twice for the same requests"


@pytest.fixture
def api(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), "9/hour")


@pytest.fixture
def models() -> Iterator[Models]:
    with Models(Rules(call_time=0.001)) as service:
        yield service


async def test_a_limiter_is_refused_twice_in_one_call(kind: str, api: Limiter) -> None:
    """Also another object of the same name, and a key that is named by hand."""
    again = Limiter(api.name, "3/minute")
    for limiters in ((api, api), (api, Limiter(f"{api.name}-2", "1/hour"), again)):
        with pytest.raises(ValueError, match=rf"^limit got .*{TWICE}"):
            LIMITS[kind](object(), *limiters)
    with pytest.raises(ValueError, match=TWICE):
        LIMITS[kind](object(), api["a"], api["a"])


async def test_a_second_layer_of_a_limiter_is_refused(
    clients: Clients, service: Service, kind: str, api: Limiter
) -> None:
    """The client stays as it was: limited once."""
    client = clients(api)

    with pytest.raises(ValueError, match=rf"^limit got .*{TWICE}"):
        LIMITS[kind](client.client, Limiter(f"{api.name}-2", "9/hour"), api)

    assert await soon(client.get(service.url)) == 200
    assert used(api.status()) == [0, 1]


async def test_limiters_of_other_states_are_other_limiters(
    clients: Clients, service: Service, kind: str, api: Limiter
) -> None:
    """Other keys, another store."""
    elsewhere = Limiter(api.name, "9/hour", store=MemoryStore())
    client = clients(api["a"], api["b"])
    LIMITS[kind](client.client, elsewhere)

    assert await soon(client.get(service.url)) == 200

    assert [used(each.status()) for each in (api["a"], api["b"], elsewhere)] == [
        [0, 1],
        [0, 1],
        [1],
    ]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_second_layer_by_hand_is_refused(library: str, api: Limiter) -> None:
    client, ours = LIBRARIES[library]
    for kind in (ours.Transport, ours.AsyncTransport):
        with pytest.raises(ValueError, match=rf"^{kind.__name__} got .*{TWICE}"):
            kind(api, inner=kind(api))
    mounted = client.Client(mounts={"all://host": ours.Transport(api)})
    with pytest.raises(ValueError, match=TWICE):
        ours.limit(mounted, api)


def test_a_second_layer_of_adapters_is_refused(api: Limiter) -> None:
    with pytest.raises(ValueError, match=rf"^Adapter got .*{TWICE}"):
        Adapter(api, inner=Adapter(api))
    session = requests.Session()
    session.mount("http://host/", Adapter(api))
    with pytest.raises(ValueError, match=TWICE):
        headgate.http.requests.limit(session, api)


def test_a_middleware_is_refused_a_limiter_twice(api: Limiter) -> None:
    with pytest.raises(ValueError, match=rf"^middleware got .*{TWICE}"):
        middleware(api, api)


# The copies of the SDKs' clients ---------------------------------------------------------------


def say(client: Any) -> Any:
    if hasattr(client, "chat"):
        return client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": question(20)}]
        )
    return client.messages.create(
        model="m", max_tokens=100, messages=[{"role": "user", "content": question(20)}]
    )


@pytest.mark.parametrize("sdk", SDK_LIMITS)
def test_a_limited_copy_leaves_its_original_unlimited(
    sdk: str, models: Models, api: Limiter
) -> None:
    """They share one client of httpx2. The copies of the copy are limited, too."""
    original = client_of(sdk, True, models)
    headers = dict(original._client.headers)
    limited = SDK_LIMITS[sdk](original.with_options(timeout=5), api)

    for _ in range(2):
        say(original)
    assert used(api.status()) == [0, 0]
    say(limited)
    say(limited.with_options(timeout=6))

    assert (models.calls, used(api.status())) == (4, [0, 2])
    assert dict(original._client.headers) == headers
    original.close()


@pytest.mark.parametrize("sdk", SDK_LIMITS)
def test_copies_of_one_client_can_have_limits_of_their_own(
    sdk: str, models: Models, api: Limiter
) -> None:
    """And one limiter serves both."""
    other = Limiter(f"{api.name}-2", "9/hour")
    original = client_of(sdk, True, models)
    first = SDK_LIMITS[sdk](original.with_options(timeout=5), api)
    second = SDK_LIMITS[sdk](original.with_options(timeout=5), api, other)

    say(first)
    say(second)

    assert [used(each.status()) for each in (api, other)] == [[0, 2], [1]]
    with pytest.raises(ValueError, match=TWICE):
        SDK_LIMITS[sdk](second, other)
    original.close()


@pytest.mark.parametrize("dropped", ["copy", "original"])
@pytest.mark.parametrize("sdk", SDK_LIMITS)
def test_a_dropped_client_leaves_the_connections_of_the_other_open(
    sdk: str, models: Models, service: Service, api: Limiter, dropped: str
) -> None:
    """A stream goes on, although the SDKs' clients close when they are collected."""
    original = client_of(sdk, True, models)
    limited = SDK_LIMITS[sdk](original.with_options(timeout=5), api)
    client = limited if dropped == "original" else original

    with client._client.stream("GET", f"{service.url}/stream") as response:
        chunks = response.iter_raw()
        assert next(chunks) == FIRST
        del limited, original
        gc.collect()
        service.finish()
        assert b"".join(chunks) == REST
    client.close()


async def test_a_copy_for_coroutines_is_limited_alone(models: Models, api: Limiter) -> None:
    original = client_of("openai", False, models)
    async with SDK_LIMITS["openai"](original.with_options(timeout=5), api) as limited:
        await asyncio.gather(say(original), say(limited))

    assert (models.calls, used(api.status())) == (2, [0, 1])
    await original.close()
