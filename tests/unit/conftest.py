"""The fixtures of the tests of single parts: a store that leases, and a limiter on it that cancels
bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import headgate.lease_watch
from headgate import Limiter
from headgate.internals import queue_of
from tests import virtual
from tests.leases import Leases


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> virtual.VirtualClock:
    clock = virtual.VirtualClock()
    for module in (headgate.permit, headgate.lease_watch):
        monkeypatch.setattr(module, "monotonic", clock.elapsed)
    return clock


@pytest.fixture
def leases(clock: virtual.VirtualClock) -> Iterator[Leases]:
    """Afterwards every permit has come back, once, and has no watch any more."""
    leases = Leases(clock, queue_of(Limiter("api", "5 concurrent")).declared)
    yield leases
    assert sorted(map(id, leases.back)) == sorted(map(id, leases.permits))
    assert [permit.watch for permit in leases.permits if permit.watch] == []


@pytest.fixture
def api(leases: Leases, monkeypatch: pytest.MonkeyPatch) -> Limiter:
    """A limiter whose bodies are cancelled when a lease is lost."""
    monkeypatch.setattr(headgate.limiter, "store_of", lambda where: leases)
    return Limiter("api", "5 concurrent", on_lost="cancel")


WAYS = {"limiter": lambda api: api, "acquire": lambda api: api.acquire()}


@pytest.fixture(params=WAYS)
def block(request: pytest.FixtureRequest, api: Limiter) -> Callable[[], Any]:
    """The entry: the limiter itself, or an acquire of it."""
    return lambda: WAYS[request.param](api)
