"""The fixtures of headgate for pytest, which finds them by itself where headgate is installed.

Here live the fixtures and nothing else. It stands beside the package, so that whoever runs pytest and asks for none of them imports
nothing of headgate: no time is lost, no warning of ours is anybody's, and coverage sees every import of the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headgate.testing import ManualClock


@pytest.fixture
def headgate_clock() -> Iterator[ManualClock]:
    """All limiters of this process by a clock that stands still until the test moves it: `headgate_clock.advance(30)`."""
    from headgate.testing import ManualClock

    with ManualClock() as clock:
        yield clock


@pytest.fixture
def headgate_skipping_clock() -> Iterator[ManualClock]:
    """All limiters of this process by a clock that skips every wait: `headgate_skipping_clock.elapsed()` says how long it was."""
    from headgate.testing import ManualClock

    with ManualClock(skips=True) as clock:
        yield clock


@pytest.fixture
def headgate_at_rest(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails at the end of the test when a limiter of this process has waiters or permits that it had not before."""
    from headgate.testing import assert_at_rest, restless

    for clock in {"headgate_clock", "headgate_skipping_clock"} & {*request.fixturenames}:
        request.getfixturevalue(clock)  # before this one, so that it is left after it
    before = restless()
    yield
    left = restless() - before
    if left:
        assert_at_rest(*left)
