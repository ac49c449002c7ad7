"""The common parts of the tests of bad input: a store's address that must get no connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bad_input.values import Listener


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Where a server would be."""
    listener = Listener()
    yield listener
    listener.close()


@pytest.fixture
def nowhere(listener: Listener) -> Iterator[str]:
    """The URL of a server; the test fails if a client connects."""
    yield listener.url
    assert not listener.opened(), "something was sent before the input was checked"
