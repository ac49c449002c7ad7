"""The common parts of the tests of bad input: a store's address that must get no connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bad_input.values import Door


@pytest.fixture
def door() -> Iterator[Door]:
    """Where a server would be."""
    door = Door()
    yield door
    door.close()


@pytest.fixture
def nowhere(door: Door) -> Iterator[str]:
    """The URL of a server; the test fails if a client connects."""
    yield door.url
    assert not door.opened(), "something was sent before the input was checked"
