"""A refusal of one route holds that route alone. A refusal of the whole client holds all routes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from headgate import Limiter
from tests.http.service import Service
from tests.world import LONG, soon, until

Clients = Callable[..., Any]
GLOBAL = '{"message": "You are being rate limited.", "retry_after": 60.0, "global": true}'
ROUTE = '{"message": "You are being rate limited.", "retry_after": 60.0, "global": false}'
HEADERS = {"Retry-After": "60"}
ANSWERS = {
    "header": (429, {**HEADERS, "X-RateLimit-Global": "true"}),
    "scope": (429, {**HEADERS, "X-RateLimit-Scope": "global"}),
    "body": (429, HEADERS, GLOBAL),
}


def path_of(request: Any) -> str:
    return urlsplit(str(request.url)).path


@pytest.fixture
def limiter(name: str, store: Any) -> Limiter:
    return Limiter(name, "1000/hour", store=store)


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_global_refusal_holds_all_keys_of_the_limiter(
    clients: Clients, service: Service, limiter: Limiter, kind: str, answer: str
) -> None:
    """Discord: given a limit for each route, when one route is refused for the whole client, then
    the other routes wait, too, and so does a route that is new. With aiohttp only the headers
    count, so a body alone holds one route.
    """
    unread = (kind, answer) == ("aiohttp", "body")
    client = clients(limiter, key=path_of)
    assert await soon(client.get(f"{service.url}/other")) == 200
    service.answers = [ANSWERS[answer]]  # type: ignore[list-item]  # each is one of its forms

    assert await soon(client.get(f"{service.url}/says")) == 429

    held = [limiter[path] for path in ("/says", "/other", "/new")]
    for each in held[:1] if unread else [*held, limiter]:
        status = await until(lambda status: status.paused > 0, each)
        assert status.paused == pytest.approx(60, abs=LONG)
        assert not await each.atry_acquire()
    assert bool(await limiter["/other"].atry_acquire()) is unread


@pytest.mark.parametrize("scope", ["user", "shared"])
async def test_a_refusal_of_one_route_holds_that_route_alone(
    clients: Clients, service: Service, limiter: Limiter, scope: str
) -> None:
    client = clients(limiter, key=path_of)
    service.answers = [(429, {**HEADERS, "X-RateLimit-Scope": scope}, ROUTE)]

    assert await soon(client.get(f"{service.url}/says")) == 429

    await until(lambda status: status.paused > 0, limiter["/says"])
    assert await limiter["/other"].atry_acquire()
    assert await limiter.atry_acquire()
    assert await soon(client.get(f"{service.url}/other")) == 200


async def test_a_global_refusal_of_a_limiter_without_keys_pauses_it(
    clients: Clients, service: Service, limiter: Limiter
) -> None:
    client, service.answers = clients(limiter), [(429, HEADERS, GLOBAL)]

    assert await soon(client.get(f"{service.url}/says")) == 429

    await until(lambda status: status.paused > 0, limiter)
    assert not await limiter.atry_acquire()
