"""The clock of one process: integer microseconds since 1970 that never step back.

The memory store reads the time and waits for a moment only by such a clock, so headgate.testing can
replace it. Other modules, such as permit.py, read the monotonic clock. Redis has its own clock.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable


class Event(Protocol):
    """Another thread sets it, and `wait` clears it again."""

    def set(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Timer(Protocol):
    """A planned call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock:
    """Tells the time in whole microseconds. Its waits last real time; a subclass may differ."""

    __slots__ = ()
    now: Callable[[], int]

    def wait(self, event: Event, timeout: float | None) -> None:
        event.wait(timeout)

    def later(self, loop: AbstractEventLoop, timeout: float, call: Callable[[], None]) -> Timer:
        return loop.call_later(timeout, call)


class SystemClock(Clock):
    """The monotonic clock plus a fixed offset to the calendar.

    Quotas need a date. A step of the calendar must not move any limit (T6 in docs/promises.md).
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        offset = (time_ns() - monotonic_ns()) // 1000

        def now() -> int:
            return monotonic_ns() // 1000 + offset

        self.now = now


# Makes the clock of a new store. headgate.testing replaces it.
make_clock: Callable[[], Clock] = SystemClock
