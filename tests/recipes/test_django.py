"""The Django recipe: Django's own server, with a thread for each request."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from headgate import Limiter
from tests.http.service import Service
from tests.recipes.programs import Program, used
from tests.servers import Server, free_port

pytestmark = pytest.mark.proof
CAPACITY = 3  # of the recipe
GUNICORN = "-m gunicorn --workers 2 --threads 8 --bind 127.0.0.1:0 django_site:application"
SERVERS = {"runserver": "django_site.py runserver --noreload PORT", "gunicorn": GUNICORN}


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest, places: dict[str, str]) -> Iterator[Program]:
    words = SERVERS[request.param].replace("PORT", str(free_port()))
    with Program(*words.split(), **places) as server:
        yield server


@pytest.fixture
async def client(server: Program) -> AsyncIterator[httpx.AsyncClient]:
    url = server.says(r"(?:server|Listening) at:? (http://[\d.:]+)")[1]
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def test_threads_and_processes_share_the_limits_and_the_server_ends_with_nothing_held(
    service: Service, server: Program, client: httpx.AsyncClient, limiter: Limiter
) -> None:
    """Given more requests than capacity, then those beyond it wait 2 s and get 503."""
    asked = [asyncio.create_task(client.get("/items/stream")) for _ in range(CAPACITY + 3)]
    refused = [await answer for answer in itertools.islice(asyncio.as_completed(asked), 3)]
    said = [(answer.status_code, answer.headers["Retry-After"]) for answer in refused]
    assert said == [(503, "1")] * 3
    if "gunicorn" in server.text:  # it finishes its requests before it ends
        server.signal(signal.SIGTERM)
        await asyncio.to_thread(server.says, "Handling signal: term")
    service.finish()
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    assert sorted(statuses) == [200] * CAPACITY + [503] * 3
    assert (service.most, service.calls) == (CAPACITY, CAPACITY)
    if "gunicorn" not in server.text:
        server.signal(signal.SIGINT)
    assert await asyncio.to_thread(server.ended) == 0
    assert await used(limiter, "Concurrency") == 0


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
