"""Fixtures for the tests of clients: a service that counts, and a limiter in either store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from headgate import Concurrency, Limiter
from headgate.http import limiter_chain
from tests.http.clients import CLIENTS
from tests.http.service import Service
from tests.world import LONG


@pytest.fixture(autouse=True)
def no_body_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, any body may come later than a tenth of a second."""
    monkeypatch.setattr(limiter_chain, "LATE", LONG)


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def one(name: str, store: Any) -> Limiter:
    """A limiter of one call at a time; a thousand requests an hour serve to count them."""
    return Limiter(name, Concurrency(1), "1000/hour", store=store)


@pytest.fixture(params=sorted(CLIENTS))
def kind(request: pytest.FixtureRequest) -> str:
    """The name of a client: the test runs once for each."""
    return str(request.param)


@pytest.fixture
async def clients(kind: str) -> AsyncIterator[Callable[..., Any]]:
    """`clients(limiter, ..., key=...)`: a limited client of that kind, closed at the end."""
    made: list[Any] = []

    def make(*limiters: Limiter, timeout: float = 5, **options: Any) -> Any:
        made.append(CLIENTS[kind](limiters, options, timeout))
        return made[-1]

    yield make
    for client in made:
        await client.close()
