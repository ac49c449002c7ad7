"""The world in which a story is told: once in memory, once on the real server."""

from __future__ import annotations

import pytest

from tests.conformance.world import World


@pytest.fixture
def world(store_kind: str, name: str, request: pytest.FixtureRequest) -> World:
    """Memory in virtual time, or Redis in real milliseconds."""
    return World(name, None if store_kind == "memory" else request.getfixturevalue("redis_url"))


@pytest.fixture
def memory(name: str) -> World:
    """Memory in virtual time alone: for what needs a clock that obeys to the microsecond."""
    return World(name)
