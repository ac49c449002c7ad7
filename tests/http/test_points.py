"""Costs in points: real clients at a service that states them as GitHub, Shopify and Linear do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpcore
import httpx
import httpx2
import pytest

import headgate.http.httpx
import headgate.http.httpx2
from headgate import Concurrency, Limiter, Window
from headgate.http.httpx import AsyncTransport
from headgate.http.point_metering import FIRST, MOST_OPERATIONS, Points, find_operation
from headgate.http.rate_limit_headers import Answer
from tests.http.service import Service
from tests.world import at_rest, held

HOUR = 3600.0  # of an hour's window nothing comes back during a test
LIBRARIES: dict[str, tuple[Any, Callable[..., Any]]] = {
    "httpx": (httpx, headgate.http.httpx.limit),
    "httpx2": (httpx2, headgate.http.httpx2.limit),
}


@pytest.fixture
def github(name: str, store: Any) -> Limiter:
    return Limiter(
        name, Window(1000, HOUR, unit="points"), "1000/hour", Concurrency(5), store=store
    )


async def points(limiter: Limiter) -> int:
    status = await at_rest(limiter)
    return next(limit.used for limit in status.limits if limit.unit == "points")


def shopify(actual: int | None, **more: Any) -> str:
    cost = {"requestedQueryCost": 50, "actualQueryCost": actual}
    return json.dumps({"data": {}, **more, "extensions": {"cost": cost}})


def as_json(body: str) -> tuple[int, dict[str, str], str]:
    return 200, {}, body


@pytest.mark.parametrize("library", LIBRARIES)
async def test_the_cost_in_the_body_of_a_response_is_settled(
    library: str, service: Service, github: Limiter
) -> None:
    """The next call of the same operation is estimated by it, and one of a new one by all."""
    module, limit = LIBRARIES[library]
    service.answers += [
        as_json(shopify(42)),
        as_json(json.dumps({"data": {"rateLimit": {"cost": 7}}})),
        as_json("{}"),
        as_json("{}"),
    ]
    used = []
    async with limit(module.AsyncClient(), github) as client:
        for query in ("a", "b", "a", "c"):
            response = await client.post(f"{service.url}/says", json={"query": query})
            assert response.status_code == 200
            used.append(await points(github))

    assert used == [42, 49, 49 + 42, 49 + 42 + 42]
    assert held(github.status()) == 0


@pytest.mark.parametrize("coding", ["identity", "gzip"])
async def test_the_cost_in_a_body_that_a_transport_has_read_is_settled(
    github: Limiter, coding: str
) -> None:
    """A mock, or a transport that logs bodies, closes the response before headgate sees it."""
    body = shopify(42).encode()
    headers = {"content-type": "application/json", "content-encoding": coding}

    def reply(request: httpx.Request) -> httpx.Response:
        content = gzip.compress(body) if coding == "gzip" else body
        response = httpx.Response(200, headers=headers, stream=httpx.ByteStream(content))
        response.read()
        return response

    transport = AsyncTransport(github, inner=httpx.MockTransport(reply))
    async with httpx.AsyncClient(transport=transport) as client:
        await client.post("http://localhost/graphql", json={"query": "a"})
    assert await points(github) == 42


@pytest.mark.parametrize("library", LIBRARIES)
def test_threads_settle_the_cost_in_the_body_too(library: str, service: Service, name: str) -> None:
    module, limit = LIBRARIES[library]
    limiter = Limiter(name, Window(1000, HOUR, unit="points"))
    service.answers.append(as_json(shopify(42)))

    with limit(module.Client(), limiter, feedback=False) as client:
        client.post(f"{service.url}/says", json={"query": "a"})

    assert limiter.status().limits[0].used == 42


async def test_a_refusal_with_status_200_takes_no_points(service: Service, github: Limiter) -> None:
    service.answers.append(as_json(shopify(None, errors=[{"extensions": {"code": "THROTTLED"}}])))

    async with headgate.http.httpx.limit(httpx.AsyncClient(), github, feedback=False) as client:
        await client.post(f"{service.url}/says", json={"query": "a"})

    assert await points(github) == 0


@pytest.mark.parametrize("library", LIBRARIES)
async def test_a_refusal_with_status_200_holds_callers(
    library: str, service: Service, github: Limiter
) -> None:
    """Shopify's bucket has 100 of the 752 points, and gets 10 a second."""
    module, limit = LIBRARIES[library]
    cost = {
        "requestedQueryCost": 752,
        "throttleStatus": {"maximumAvailable": 2000, "currentlyAvailable": 100, "restoreRate": 10},
    }
    refusal = {"errors": [{"extensions": {"code": "THROTTLED"}}], "extensions": {"cost": cost}}
    service.answers.append(as_json(json.dumps(refusal)))

    async with limit(module.AsyncClient(), github) as client:
        await client.post(f"{service.url}/says", json={"query": "a"})

    assert 0 < (await at_rest(github)).paused <= 65.2
    assert await points(github) == 0


async def test_the_cost_in_a_header_is_settled_by_every_client(
    service: Service, github: Limiter, clients: Callable[..., Any]
) -> None:
    """Linear states it there."""
    service.answers.append((200, {"X-Complexity": "120"}))

    await clients(github).get(f"{service.url}/says")

    assert await points(github) == 120


@pytest.mark.parametrize("asks", [False, True])
async def test_an_old_cost_from_a_cache_is_neither_settled_nor_learned(
    github: Limiter, asks: bool
) -> None:
    """`asks`: the cache asks the service whether its response still holds, which is a call."""
    old = {"headers": {"X-Complexity": "120"}, "text": shopify(120)}
    responses = [
        httpx.Response(200, **old, extensions={"from_cache": True}),
        httpx.Response(200, text="{}"),
    ]

    class Cache(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            if asks:
                details = {"request": httpcore.Request("POST", "http://localhost")}
                await request.extensions["trace"]("http11.send_request_headers.started", details)
            return responses.pop(0)

    used = []
    async with headgate.http.httpx.limit(httpx.AsyncClient(transport=Cache()), github) as client:
        for _ in range(2):
            await client.post("http://localhost/graphql", json={"query": "a"})
            used.append(await points(github))

    assert used == ([FIRST, 2 * FIRST] if asks else [0, FIRST])


async def test_without_a_cost_the_estimate_stands(
    service: Service, github: Limiter, clients: Callable[..., Any]
) -> None:
    client = clients(github)

    await client.get(f"{service.url}/")
    assert await points(github) == FIRST
    service.answers.append((429, {}))
    await client.get(f"{service.url}/says")

    assert await points(github) == FIRST


@pytest.mark.parametrize("cost", [-5, 10**9, "many", None, [1]])
async def test_an_absurd_cost_is_ignored(service: Service, github: Limiter, cost: Any) -> None:
    service.answers.append(as_json(shopify(cost)))

    async with headgate.http.httpx.limit(httpx.AsyncClient(), github) as client:
        await client.post(f"{service.url}/says", json={"query": "a"})

    assert await points(github) == FIRST


async def test_a_cost_holds_callers_for_heed_at_most_beyond_the_limit(
    service: Service, name: str
) -> None:
    """1,000 an hour, and 16 in a minute. The debt of a million would last 41 days."""
    limiter = Limiter(name, Window(1000, HOUR, unit="points"))
    service.answers.append(as_json(shopify(1_000_000)))

    client = headgate.http.httpx.limit(httpx.AsyncClient(), limiter, heed_at_most=60)
    async with client:
        await client.post(f"{service.url}/says", json={"query": "a"})

    assert await points(limiter) == 1016


async def test_a_hook_states_the_cost_of_a_provider(service: Service, github: Limiter) -> None:
    service.answers.append((200, {"X-Acme-Cost": "33"}))

    def read_acme(status: int, headers: Any, body: bytes) -> Answer:
        return Answer(cost=int(headers["X-Acme-Cost"]))

    client = headgate.http.httpx.limit(httpx.AsyncClient(), github, on_answer=read_acme)
    async with client:
        await client.get(f"{service.url}/says")

    assert await points(github) == 33


async def test_calls_that_pass_no_limit_on_points_are_left_alone(
    service: Service, name: str
) -> None:
    limiter = Limiter(name, "1000/hour")
    service.answers.append((200, {"X-Complexity": "120"}))

    async with headgate.http.httpx.limit(httpx.AsyncClient(), limiter) as client:
        await client.get(f"{service.url}/says")

    assert limiter.status().limits[0].used == 1


async def test_an_estimate_is_at_most_the_capacity(service: Service, name: str) -> None:
    limiter = Limiter(name, Window(5, HOUR, unit="points"))

    async with headgate.http.httpx.limit(httpx.AsyncClient(), limiter) as client:
        await client.get(f"{service.url}/")

    assert limiter.status().limits[0].used == 5


def test_nine_of_ten_calls_take_no_more_than_their_estimate() -> None:
    learned = Points()
    for cost in range(1, 11):
        learned.learn("a", cost)

    assert (learned.estimate("a"), learned.estimate("b")) == (9, 9)


def test_few_operations_are_remembered() -> None:
    learned = Points()
    for number in range(3 * MOST_OPERATIONS):
        learned.learn(f"{number}", number)

    assert len(learned._costs) == MOST_OPERATIONS
    assert learned.estimate("another") > 2 * MOST_OPERATIONS


def test_a_busy_operation_is_remembered_beside_many_others() -> None:
    learned = Points()
    for number in range(3 * MOST_OPERATIONS):
        learned.learn(f"{number}", 1)
        if number % 10 == 0:
            learned.learn("busy", 500)

    assert learned.estimate("busy") == 500


def test_an_operation_is_known_by_its_name_or_its_query() -> None:
    assert find_operation(b'{"operationName": "Shops", "query": "query Shops { id }"}') == "Shops"
    assert find_operation(json.dumps({"query": "q" * 500}).encode()) == "q" * 200
    assert find_operation(b"[]") == find_operation(b"no json") == ""
