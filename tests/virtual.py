"""Virtual time for our own tests: the clock of headgate.testing, shared by an event loop and a
memory store.

This module has the moment at which tests begin, and the wait of a thread. It sleeps in real time,
or as a scheduler of tests makes it sleep. Virtual time does not help against a blocked thread.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from headgate.clock import Clock
from headgate.testing import ManualClock

T = TypeVar("T")
BEGINNING = 1_750_000_000_000_000  # microseconds: some moment of 2025, since a quota wants a date


class VirtualClock(ManualClock):
    """Integer microseconds that move on command: fit for `MemoryStore(clock=...)`."""

    def __init__(self) -> None:
        super().__init__(start=BEGINNING // 1_000_000)

    wait, later = Clock.wait, Clock.later


def run(story: Coroutine[Any, Any, T], clock: VirtualClock) -> T:
    """`asyncio.run` in virtual time."""
    return clock.run(story)
