"""The FastAPI recipe behind a real uvicorn, with real requests."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from headgate import Limiter
from tests.http.service import Service
from tests.recipes.programs import Program, used
from tests.servers import Server

CAPACITY, QUEUE = 5, 50  # of the recipe


@pytest.fixture
def server(places: dict[str, str]) -> Iterator[Program]:
    with Program("-m", "uvicorn", "fastapi_app:app", "--port", "0", **places) as server:
        yield server


@pytest.fixture
async def client(server: Program) -> AsyncIterator[httpx.AsyncClient]:
    url = server.says(r"running on (http://[\d.:]+)")[1]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def test_one_request_too_many_gets_503_and_the_others_are_answered_before_the_server_ends(
    service: Service, server: Program, client: httpx.AsyncClient, limiter: Limiter
) -> None:
    asked = [asyncio.create_task(client.get("/items/stream")) for _ in range(CAPACITY + QUEUE + 1)]
    done, _ = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
    first = done.pop().result()
    assert (first.status_code, int(first.headers["Retry-After"]) >= 1) == (503, True)
    await asyncio.to_thread(service.wait_inside, CAPACITY)
    server.signal(signal.SIGTERM)
    await asyncio.to_thread(server.says, "Shutting down")
    service.finish()
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200] * (CAPACITY + QUEUE) + [503]
    assert service.most == CAPACITY
    # uvicorn ends by the signal itself, when it has cleaned up.
    assert await asyncio.to_thread(server.ended) == -signal.SIGTERM
    assert "Application shutdown complete" in server.text
    assert "Traceback" not in server.text
    assert await used(limiter, "Concurrency") == 0


@pytest.mark.proof
async def test_a_budget_that_is_used_up_is_503_with_the_seconds_until_it_is_back(
    service: Service, server: Program, client: httpx.AsyncClient, limiter: Limiter
) -> None:
    assert (await client.get("/items/any")).status_code == 200
    limiter.drain(requests=0)
    await limiter.aflush()
    refused = await client.get("/items/any")
    assert (refused.status_code, 10 < int(refused.headers["Retry-After"]) <= 60, service.calls) == (
        503,
        True,
        1,
    )


@pytest.mark.proof
async def test_a_refusal_of_the_service_goes_on_to_all_callers(
    service: Service, server: Program, client: httpx.AsyncClient
) -> None:
    service.answers = [(429, {"Retry-After": "40"})]
    assert (await client.get("/items/says")).status_code == 429
    later = await client.get("/items/any")
    assert (later.status_code, 10 < int(later.headers["Retry-After"]) <= 40) == (503, True)
    assert service.calls == 1


@pytest.mark.proof
async def test_without_redis_requests_get_503_until_it_is_back(
    service: Service, server: Program, client: httpx.AsyncClient, own_server: Server
) -> None:
    assert (await client.get("/items/any")).status_code == 200
    own_server.kill()
    away = await client.get("/items/any")
    assert (away.status_code, away.headers["Retry-After"], service.calls) == (503, "5", 1)
    own_server.start()
    while (answer := await client.get("/items/any")).status_code == 503:
        assert answer.headers["Retry-After"] == "5"
    assert answer.status_code == 200


@pytest.mark.proof
async def test_at_its_end_the_server_says_that_redis_did_not_get_a_release(
    service: Service, server: Program, client: httpx.AsyncClient, own_server: Server
) -> None:
    asked = asyncio.create_task(client.get("/items/stream"))
    await asyncio.to_thread(service.wait_inside, 1)
    own_server.kill()
    service.finish()
    assert (await asked).status_code == 200
    server.signal(signal.SIGTERM)
    assert await asyncio.to_thread(server.ended) == -signal.SIGTERM
    assert "StoreError" in server.text
    assert "Application shutdown failed" in server.text
