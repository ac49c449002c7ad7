"""Users of the page: nothing is open unless the program says so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headgate.stores.memory.store import MemoryStore
from headgate.web import app
from tests.web.asgi import basic, request

USERS: list[Any] = ["ops:se:cret", ("ops", "se:cret")]


@pytest.mark.parametrize("auth", USERS, ids=["text", "pair"])
@pytest.mark.parametrize("path", ["/", "/events", "/nothing"])
async def test_each_path_asks_for_the_user_and_the_password(auth: Any, path: str) -> None:
    page = app(MemoryStore(), auth=auth)
    for wrong in (
        {},
        basic("ops", "se:cre"),
        basic("ops", "se:cret "),
        basic("opsse", "cret"),
        basic("", ""),
        {"Authorization": "Basic ???"},
        {"Authorization": "Bearer b3BzOnNlOmNyZXQ="},
    ):
        answer = await request(page, "GET", path, wrong)
        assert answer.status == 401
        assert answer.headers["www-authenticate"] == 'Basic realm="headgate", charset="UTF-8"'


@pytest.mark.parametrize("auth", USERS, ids=["text", "pair"])
async def test_the_right_user_sees_the_page_from_anywhere(auth: Any) -> None:
    page = app(MemoryStore(), auth=auth)
    headers = {**basic("ops", "se:cret"), "Host": "limits.example"}
    assert (await request(page, "GET", "/", headers, client=("203.0.113.7", 1))).status == 200


async def test_a_password_may_hold_any_character() -> None:
    page = app(MemoryStore(), auth=("öps", "pässwörd:\U0001f511"))
    assert (await request(page, "GET", "/", basic("öps", "pässwörd:\U0001f511"))).status == 200


async def test_a_function_of_the_scope_decides() -> None:
    page = app(MemoryStore(), auth=lambda scope: scope["path"] == "/")
    assert (await request(page, "GET", "/")).status == 200
    assert (await request(page, "GET", "/events")).status == 403


async def test_a_coroutine_function_decides_too() -> None:
    async def auth(scope: Any) -> bool:
        await asyncio.sleep(0)
        return bool(scope["path"] == "/")

    page = app(MemoryStore(), auth=auth)
    assert (await request(page, "GET", "/")).status == 200
    assert (await request(page, "GET", "/events")).status == 403


@pytest.mark.parametrize("verdict", [None, 1, "user", False, object()])
async def test_only_true_lets_a_request_pass(verdict: object) -> None:
    page = app(MemoryStore(), auth=lambda scope: verdict)
    assert (await request(page, "GET", "/")).status == 403


@pytest.mark.parametrize("client", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000"])
async def test_without_auth_this_machine_may_look_at_the_loopback(client: str, host: str) -> None:
    page = app(MemoryStore(), auth=None)
    assert (await request(page, "GET", "/", {"Host": host}, client=(client, 1))).status == 200


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        pytest.param(("203.0.113.7", 1), {}, id="another machine"),
        pytest.param(("::ffff:203.0.113.7", 1), {}, id="another machine, in IPv6"),
        pytest.param(("127.0.0.1", 1), {"Host": "rebound.example"}, id="a rebound name"),
        pytest.param(("127.0.0.1", 1), {"Host": "localhost.example"}, id="a similar name"),
        pytest.param(("127.0.0.1", 1), {"Host": "["}, id="a malformed name"),
        pytest.param(("127.0.0.1", 1), {"X-Forwarded-For": "203.0.113.7"}, id="a proxy"),
        pytest.param(None, {}, id="an unknown client"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/events", "/nothing"])
async def test_without_auth_no_other_request_is_answered(
    client: tuple[str, int] | None, headers: dict[str, str], path: str
) -> None:
    page = app(MemoryStore(), auth=None)
    answer = await request(page, "GET", path, headers, client=client)
    assert (answer.status, "auth=" in answer.text) == (403, True)


@pytest.mark.parametrize(
    ("auth", "error"),
    [
        ("password-alone-1", ValueError),
        (":password-1", ValueError),
        ("ops:", ValueError),
        (("ops", ""), ValueError),
        (("o:ps", "password-1"), ValueError),
        (("ops", "password-1", "more"), TypeError),
        (("ops", b"password-1"), TypeError),
        (b"ops:password-1", TypeError),
        (7, TypeError),
    ],
)
def test_a_bad_auth_is_an_error_that_shows_no_password(auth: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"web\.app\(auth=\.\.\.\)") as raised:
        app(MemoryStore(), auth=auth)
    assert "password-" not in str(raised.value)


def test_auth_has_no_default_and_actions_need_it() -> None:
    with pytest.raises(TypeError, match="auth"):
        app(MemoryStore())  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="give it an auth"):
        app(MemoryStore(), auth=None, actions=True)
    with pytest.raises(TypeError, match="actions"):
        app(MemoryStore(), auth="ops:secret", actions=1)  # type: ignore[arg-type]
