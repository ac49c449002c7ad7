"""The page behind a real server, alone and mounted in three frameworks, with a real HTTP client."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from headgate import Limiter
from headgate.stores.memory.store import MemoryStore
from headgate.web import app
from tests.machine import scaled
from tests.web import django_project
from tests.web.serving import served

AUTH = ("ops", "secret")


def alone(page: Any) -> Any:
    return page


def in_fastapi(page: Any) -> Any:
    from fastapi import FastAPI

    site = FastAPI()
    site.mount("/inside/limits", page)
    return site


def in_starlette(page: Any) -> Any:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/inside", routes=[Mount("/limits", page)])])


def in_django(page: Any) -> Any:
    return django_project.with_page("/inside/limits", page)


MOUNTS: list[tuple[Callable[[Any], Any], str]] = [
    (alone, ""),
    (in_fastapi, "/inside/limits"),
    (in_starlette, "/inside/limits"),
    (in_django, "/inside/limits"),
]


@pytest.fixture
async def limiter() -> Limiter:
    limiter = Limiter("api", "100/minute", store=MemoryStore())
    (await limiter.acquire()).release()
    return limiter


def page_of(limiter: Limiter) -> Any:
    return app(limiter._store, auth=AUTH, actions=True)


async def first_event(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    async with client.stream("GET", url) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                state: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return state
    raise AssertionError("the stream has ended")


@pytest.mark.parametrize(("mount", "path"), MOUNTS, ids=[mount.__name__ for mount, _ in MOUNTS])
async def test_the_page_its_events_and_its_actions_are_below_the_mount(
    mount: Callable[[Any], Any], path: str, limiter: Limiter
) -> None:
    async with (
        served(mount(page_of(limiter))) as url,
        httpx.AsyncClient(auth=AUTH, timeout=scaled(20.0)) as client,
    ):
        page = await client.get(url + path, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, f"{path}/")
        assert "<title>headgate</title>" in page.text
        state = await first_event(client, str(page.url.join("events")))
        assert [row["name"] for row in state["rows"]] == ["api"]
        paused = await client.post(
            page.url.join("actions"),
            json={"action": "pause", "name": "api", "seconds": 60},
            headers={"Origin": url},
        )
        assert (paused.status_code, limiter.status().paused > 0) == (200, True)
        assert (await client.get(page.url.join("nothing"))).status_code == 404


@pytest.mark.parametrize(("mount", "path"), MOUNTS, ids=[mount.__name__ for mount, _ in MOUNTS])
async def test_no_request_passes_without_the_user(
    mount: Callable[[Any], Any], path: str, limiter: Limiter
) -> None:
    async with served(mount(page_of(limiter))) as url, httpx.AsyncClient() as client:
        for below in ("/", "/events", "/nothing"):
            assert (await client.get(f"{url}{path}{below}")).status_code == 401


async def test_the_rest_of_the_site_is_as_it_was(limiter: Limiter) -> None:
    async with served(in_django(page_of(limiter))) as url, httpx.AsyncClient() as client:
        answer = await client.get(f"{url}/hello/")
        assert (answer.status_code, answer.text) == (200, "hello")
        assert (await client.get(f"{url}/inside/limits-of-others/")).status_code == 404


async def test_a_server_ends_although_a_browser_shows_the_page(
    limiter: Limiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the end of the stream, which is near."""
    monkeypatch.setattr("headgate.web.application.LONGEST_STREAM", scaled(0.5))
    async with httpx.AsyncClient(auth=AUTH, timeout=scaled(20.0)) as client:
        async with served(page_of(limiter)) as url:
            answer = await client.send(client.build_request("GET", f"{url}/events"), stream=True)
        assert "data: " in (await answer.aread()).decode()
