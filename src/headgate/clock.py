"""The clock of one process: integer microseconds since 1970 that never step back.

Here lives the only reading of time in the package's own process; the gate is told the time, and Redis has its own.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import Protocol


class Clock(Protocol):
    """Anything that tells the time in whole microseconds."""

    def now(self) -> int: ...


class SystemClock:
    """The monotonic clock, read once against the calendar: quotas need a date, and nobody needs a step (T6)."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        offset = (time_ns() - monotonic_ns()) // 1000

        def now() -> int:
            return monotonic_ns() // 1000 + offset

        self.now = now
