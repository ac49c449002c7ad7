"""What the stories of frameworks share: the clock by which all of them are told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.testing import ManualClock, assert_at_rest
from headgate.testing.assertions import find_busy


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Time that stands still; and at the end of a story nobody holds anything."""
    with ManualClock() as clock:
        before = find_busy()
        yield clock
        left = find_busy() - before
        if left:
            assert_at_rest(*left)
