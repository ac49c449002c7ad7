"""The pytest fixtures of headgate. pytest finds them where headgate is installed.

This file stands beside the package and imports headgate only inside the fixtures. So a test run
that asks for none of them imports nothing of headgate, and coverage sees every import of the
package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate.testing import ManualClock


@pytest.fixture
def headgate_clock() -> Iterator[ManualClock]:
    """A clock for all limiters of this process: `headgate_clock.advance(30)` moves it."""
    from headgate.testing import ManualClock

    with ManualClock() as clock:
        yield clock


@pytest.fixture
def headgate_skipping_clock() -> Iterator[ManualClock]:
    """A clock for all limiters of this process that skips every wait.

    `headgate_skipping_clock.elapsed()` returns how many seconds were skipped.
    """
    from headgate.testing import ManualClock

    with ManualClock(skips=True) as clock:
        yield clock


@pytest.fixture
def headgate_at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails the test if a limiter of this process has new waiters or held permits at its end."""
    from headgate.testing.assertions import assert_at_rest, find_busy

    for clock in {"headgate_clock", "headgate_skipping_clock"} & {*request.fixturenames}:
        request.getfixturevalue(clock)  # pytest ends it after this fixture
    before = find_busy()
    yield
    left = find_busy() - before
    if left:
        assert_at_rest(*left)
