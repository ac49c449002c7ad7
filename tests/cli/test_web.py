"""`headgate web`: the real command serves the page of the store."""

from __future__ import annotations

import json
import signal
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from headgate import Concurrency, Limiter
from tests.cli.command import Started, headgate_here
from tests.index import refreshed
from tests.machine import scaled
from tests.servers import Server

AUTH = "ops:secret"


@contextmanager
def served(store: str, *words: str) -> Iterator[tuple[Started, str]]:
    """`headgate web`, and its address."""
    started = Started(store, "web", "--port", "0", *words)
    try:
        address = started.line()
        assert address.startswith("http://127.0.0.1:"), started.done().err
        yield started, address
    finally:
        started.end()


def get(address: str, **headers: str) -> str:
    with urlopen(Request(address, headers=headers), timeout=scaled(10)) as reply:
        return str(reply.read().decode())


def first_event(address: str) -> dict[str, object]:
    with urlopen(f"{address}events", timeout=scaled(10)) as reply:
        while not (line := reply.readline().decode()).startswith("data: "):
            pass
    found: dict[str, object] = json.loads(line.removeprefix("data: "))
    return found


async def test_it_shows_the_names_of_the_store_and_ends_in_silence(
    own_server: Server, name: str
) -> None:
    async with Limiter(name, Concurrency(2), store=own_server.user_url):
        await refreshed(own_server.user_url)
        with served(own_server.user_url) as (started, address):
            assert "<title>" in get(address)
            assert name in json.dumps(first_event(address))
            started.signal(signal.SIGTERM)
            done = started.done()
    assert (done.code, done.err) == (0, "")


def test_with_a_password_it_asks_for_it(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_WEB_AUTH", AUTH)
    with served(redis_url, "--actions") as (_, address):
        with pytest.raises(HTTPError, match="401"):
            get(address)
        assert "<title>" in get(address, Authorization=f"Basic {b64encode(AUTH.encode()).decode()}")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "0.0.0.0"], "set HEADGATE_WEB_AUTH=user:password"),
        (["--actions"], "set HEADGATE_WEB_AUTH=user:password"),
        (["--port", "70000"], "a port is a number from 0 to 65535"),
        (["--host", "no.such.host.invalid"], "would show all limiters"),
    ],
    ids=["any address", "actions", "no port", "a name"],
)
async def test_an_address_or_actions_for_others_need_a_password(
    redis_url: str, words: list[str], why: str
) -> None:
    done = await headgate_here(redis_url, "web", *words)
    assert done.code == 64
    assert why in done.err


async def test_a_port_in_use_is_an_error_of_usage(redis_url: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = await headgate_here(redis_url, "web", "--port", str(taken.getsockname()[1]))
    assert done.code == 64
    assert "no server can listen there" in done.err


async def test_a_password_without_a_user_is_an_error_that_does_not_show_it(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_WEB_AUTH", "swordfish")
    done = await headgate_here(redis_url, "web")
    assert done.code == 64
    assert "swordfish" not in done.err
