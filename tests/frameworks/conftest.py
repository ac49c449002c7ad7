"""The clock that the tests of frameworks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.testing import ManualClock, assert_at_rest
from headgate.testing.assertions import find_busy


@pytest.fixture
def clock() -> Iterator[ManualClock]:
    """Time that stands still. At the end of a test no limiter has new waiters or holders."""
    with ManualClock() as clock:
        before = find_busy()
        yield clock
        left = find_busy() - before
        if left:
            assert_at_rest(*left)
