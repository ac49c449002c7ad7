"""The actions of the page: only where they are switched on, and only from the page itself."""

from __future__ import annotations

import json
from typing import Any

import pytest

from headgate import Limiter, Window, names
from headgate.stores.memory.store import MemoryStore
from headgate.web import app
from tests.web.asgi import Answer, basic, request

OPS = basic("ops", "secret")
JSON = {"Content-Type": "application/json"}
ORIGIN = {"Origin": "http://localhost"}
OURS = {**OPS, **JSON, **ORIGIN}


async def acted(page: Any, asked: object, headers: dict[str, str] = OURS) -> Answer:
    return await request(page, "POST", "/actions", headers, json.dumps(asked).encode())


async def used(name: str, store: MemoryStore | str) -> Limiter:
    limiter = Limiter(name, "100/minute", store=store)
    assert await limiter.atry_acquire()
    return limiter


async def test_a_pause_and_its_end(name: str, store: MemoryStore | str) -> None:
    limiter = await used(name, store)
    page = app(store, auth="ops:secret", actions=True)
    assert (await acted(page, {"action": "pause", "name": name, "seconds": 60})).status == 200
    assert 0 < (await limiter.astatus()).paused <= 60
    assert (await acted(page, {"action": "resume", "name": name})).status == 200
    assert (await limiter.astatus()).paused == 0


async def test_new_limits(name: str, store: MemoryStore | str) -> None:
    limiter = await used(name, store)
    page = app(store, auth="ops:secret", actions=True)
    asked = {"action": "set", "name": name, "limits": ["50/minute", "5 concurrent"]}
    assert (await acted(page, asked)).status == 200
    limits = [each.limit for each in (await limiter.astatus()).limits]
    assert (limits[0], len(limits)) == (Window(50, 60), 2)


async def test_an_action_on_a_key_leaves_the_others_alone(
    name: str, store: MemoryStore | str
) -> None:
    limiter = await used(name, store)
    page = app(store, auth="ops:secret", actions=True)
    asked = {"action": "pause", "name": name, "key": "tenant", "seconds": 60}
    assert (await acted(page, asked)).status == 200
    assert (await limiter["tenant"].astatus()).paused > 0
    assert (await limiter.astatus()).paused == 0


async def test_an_action_on_an_unknown_name_declares_nothing(
    name: str, store: MemoryStore | str
) -> None:
    page = app(store, auth="ops:secret", actions=True)
    for asked in (
        {"action": "pause", "seconds": 60},
        {"action": "resume"},
        {"action": "set", "limits": ["1/minute"]},
    ):
        assert (await acted(page, {**asked, "name": name})).status == 404
    if isinstance(store, MemoryStore):
        assert names(store) == []


@pytest.mark.parametrize(
    "asked",
    [
        {},
        [],
        {"action": "pause"},
        {"action": "pause", "name": "", "seconds": 60},
        {"action": "pause", "name": "api"},
        {"action": "pause", "name": "api", "seconds": "60"},
        {"action": "pause", "name": "api", "seconds": -1},
        {"action": "pause", "name": "api", "seconds": 0},  # it would pause nothing
        {"action": "pause", "name": "api", "seconds": True},
        {"action": "pause", "name": "api", "key": 7, "seconds": 60},
        {"action": "set", "name": "api"},
        {"action": "set", "name": "api", "limits": []},
        {"action": "set", "name": "api", "limits": "100/minute"},
        {"action": "set", "name": "api", "limits": ["many"]},
        {"action": "set", "name": "api", "limits": [{}]},
        {"action": "close", "name": "api"},
    ],
)
async def test_a_bad_action_is_an_error_and_changes_nothing(asked: object) -> None:
    store = MemoryStore()
    limiter = await used("api", store)
    before = limiter.status()
    answer = await acted(app(store, auth="ops:secret", actions=True), asked)
    assert (answer.status, len(answer.text) > 10) == (400, True)
    assert limiter.status().limits == before.limits
    assert not limiter.status().paused


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 50_000, b"\xff"])
async def test_a_body_that_is_no_json_is_an_error(body: bytes) -> None:
    page = app(MemoryStore(), auth="ops:secret", actions=True)
    assert (await request(page, "POST", "/actions", OURS, body)).status == 400


async def test_a_large_body_is_refused() -> None:
    page = app(MemoryStore(), auth="ops:secret", actions=True)
    assert (await request(page, "POST", "/actions", OURS, b" " * 100_000)).status == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        pytest.param({}, 403, id="no origin"),
        pytest.param({"Origin": "http://host"}, 403, id="another origin"),
        pytest.param({"Origin": "http://localhost:8000"}, 403, id="another port"),
        pytest.param({"Origin": "null"}, 403, id="a sandbox"),
        pytest.param(
            {"Origin": "http://localhost", "Sec-Fetch-Site": "cross-site"}, 403, id="site"
        ),
        pytest.param({"Sec-Fetch-Site": "same-site"}, 403, id="a sibling"),
        pytest.param({"Sec-Fetch-Site": "none"}, 403, id="typed by hand"),
        pytest.param({"Sec-Fetch-Site": "same-origin"}, 200, id="the page"),
        pytest.param(ORIGIN, 200, id="the page, in plain HTTP"),
        pytest.param({"Origin": "https://localhost"}, 200, id="behind a TLS proxy"),
    ],
)
async def test_only_the_page_itself_may_act(headers: dict[str, str], status: int) -> None:
    store = MemoryStore()
    limiter = await used("api", store)
    page = app(store, auth="ops:secret", actions=True)
    pause = {"action": "pause", "name": "api", "seconds": 60}
    assert (await acted(page, pause, {**OPS, **JSON, **headers})).status == status
    assert bool(limiter.status().paused) == (status == 200)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_form_cannot_act(kind: str) -> None:
    page = app(MemoryStore(), auth="ops:secret", actions=True)
    assert (await acted(page, {}, {**OURS, "Content-Type": kind})).status == 415


async def test_there_are_no_actions_unless_they_are_switched_on() -> None:
    store = MemoryStore()
    limiter = await used("api", store)
    page = app(store, auth="ops:secret")
    answer = await acted(page, {"action": "pause", "name": "api", "seconds": 60})
    assert (answer.status, limiter.status().paused) == (403, 0)


async def test_an_action_needs_the_user() -> None:
    store = MemoryStore()
    limiter = await used("api", store)
    page = app(store, auth="ops:secret", actions=True)
    headers = {**OURS, **basic("ops", "wrong")}
    answer = await acted(page, {"action": "pause", "name": "api", "seconds": 60}, headers)
    assert (answer.status, limiter.status().paused) == (401, 0)
