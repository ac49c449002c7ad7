"""Fixtures for the scenarios of faults: a bad network, a second connection to the server, shorter
constants.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack

import pytest
from redis import Redis

from headgate.limits import Limit
from tests.faults import haste
from tests.faults.proxy import Proxy
from tests.faults.scene import Puppet
from tests.processes import running
from tests.servers import Server


@pytest.fixture
async def proxy(redis_server: Server) -> AsyncIterator[Proxy]:
    """A bad network before the server that all tests share."""
    async with Proxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
async def own_proxy(own_server: Server) -> AsyncIterator[Proxy]:
    """A bad network before the server of this test."""
    async with Proxy(own_server.port) as proxy:
        yield proxy


@pytest.fixture
def admin(redis_server: Server) -> Iterator[Redis]:
    """ADMIN: another connection to the shared server, to look and to count."""
    with Redis(port=redis_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def own_admin(own_server: Server) -> Iterator[Redis]:
    """ADMIN of this test's own server, to which a test may send any command."""
    with Redis(port=own_server.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """All limiters of this test use the shorter constants of `haste`."""
    haste.hurry(monkeypatch.setattr)


@pytest.fixture
def puppet(name: str, redis_url: str) -> Iterator[Callable[..., Puppet]]:
    """Makes processes that share the test's name, and its shorter constants if it has them."""
    with ExitStack() as stack:

        def made(*limits: Limit, pace: str = "hurried") -> Puppet:
            puppet = Puppet(
                stack.enter_context(running("puppet", redis_url, name, pace, *map(repr, limits)))
            )
            stack.callback(puppet.resume)
            assert puppet.process.line() == "ready"
            return puppet

        yield made
