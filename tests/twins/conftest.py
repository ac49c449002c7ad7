"""A client of the shared server, and names of their own on it."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator

import pytest
import redis

from tests.twins.wire import Wire, load


@pytest.fixture
def client(admin_url: str) -> Iterator[redis.Redis]:
    """A client of the real server."""
    client = redis.Redis.from_url(admin_url)
    load(client)
    yield client
    client.close()


@pytest.fixture
def made(client: redis.Redis) -> Callable[..., Wire]:
    """Makes wires, each to a new name."""
    token, numbers = secrets.token_hex(6), itertools.count(1)
    return lambda functions=True: Wire(client, f"{token}-{next(numbers)}", functions)


@pytest.fixture
def wire(made: Callable[..., Wire]) -> Iterator[Wire]:
    """One wire, and no key left behind it."""
    wire = made()
    yield wire
    wire.forget()
