"""The requests that the page answers, and the headers of each answer."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest

from headgate.stores.memory.store import MemoryStore
from headgate.web import app
from tests.web.asgi import request, scope_of


@pytest.fixture
def page() -> Any:
    return app(MemoryStore(), auth=None)


async def test_the_page_is_one_file_without_any_other_resource(page: Any) -> None:
    answer = await request(page, "GET", "/")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(r"""(?:src|href)="([^"#]+)""", answer.text) == ["data:,"]
    assert "://" not in answer.text


async def test_the_policy_allows_the_own_script_and_style_and_no_other(page: Any) -> None:
    answer = await request(page, "GET", "/")
    policy = answer.headers["content-security-policy"]
    for tag in ("script", "style"):
        [text] = re.findall(f"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize("path", ["/", "/nothing", "/actions"])
async def test_no_answer_is_kept_or_framed(page: Any, path: str) -> None:
    headers = (await request(page, "GET", path)).headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_head_request_gets_the_headers_alone(page: Any) -> None:
    answer = await request(page, "HEAD", "/")
    assert (answer.status, answer.body) == (200, b"")
    assert int(answer.headers["content-length"]) > 10_000


async def test_other_paths_and_methods_are_refused(page: Any) -> None:
    assert (await request(page, "GET", "/nothing")).status == 404
    for method, path, allowed in (
        ("POST", "/", "GET, HEAD"),
        ("POST", "/events", "GET"),
        ("GET", "/actions", "POST"),
    ):
        answer = await request(page, method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)


@pytest.mark.parametrize("query", ["?name=", f"?name={'x' * 257}", "?name=a&key=", "?page=one"])
async def test_a_bad_view_is_an_error(page: Any, query: str) -> None:
    assert (await request(page, "GET", f"/events{query}")).status == 400


@pytest.mark.parametrize("path", ["/limits/", "/"])
async def test_a_mount_may_leave_its_path_in_the_request_or_take_it_out(
    page: Any, path: str
) -> None:
    assert (await request(page, "GET", path, root_path="/limits")).status == 200


async def test_a_mount_without_a_slash_is_redirected_to_the_one_with_it(page: Any) -> None:
    """A name that begins like the mount is another one."""
    answer = await request(page, "GET", "/a/limits", root_path="/a/limits")
    assert (answer.status, answer.headers["location"]) == (307, "./limits/")
    assert (await request(page, "GET", "/limits-b/", root_path="/limits")).status == 404


async def test_a_server_can_start_and_stop_the_application(page: Any) -> None:
    said: list[str] = []
    heard = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive() -> dict[str, str]:
        return {"type": next(heard)}

    async def send(message: dict[str, str]) -> None:
        said.append(message["type"])

    await page({"type": "lifespan"}, receive, send)
    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_websocket_is_closed(page: Any) -> None:
    said: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        said.append(message)

    await page({**scope_of("GET", "/"), "type": "websocket"}, None, send)
    assert said == [{"type": "websocket.close", "code": 1008}]
