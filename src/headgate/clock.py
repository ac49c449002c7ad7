"""The clock of one process: integer microseconds since 1970 that never step back.

The memory store reads the time and waits for a moment only by such a clock, so headgate.testing can
replace it. Other modules, such as closing.py and lease_watch.py, read the monotonic clock or wait
by themselves. The gate gets the time as an argument, and Redis has its own.
"""

from __future__ import annotations

from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable


class Event(Protocol):
    """A thread waits for it until another thread sets it; the wait consumes it."""

    def set(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Timer(Protocol):
    """A planned call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock:
    """Anything that tells the time in whole microseconds.

    A caller that sleeps by it sleeps in real time, unless the clock has its own way to sleep.
    """

    __slots__ = ()
    now: Callable[[], int]

    def wait(self, event: Event, timeout: float | None) -> None:
        """Block this thread until `event` is set, or for `timeout` seconds."""
        event.wait(timeout)

    def later(self, loop: AbstractEventLoop, timeout: float, call: Callable[[], None]) -> Timer:
        """Call in the running `loop`, in `timeout` seconds."""
        return loop.call_later(timeout, call)


class SystemClock(Clock):
    """The monotonic clock, read once against the calendar.

    Quotas need a date. A step of the calendar must not move any limit (T6 in
    docs/promises.md).
    """

    __slots__ = ("now",)

    def __init__(self) -> None:
        offset = (time_ns() - monotonic_ns()) // 1000

        def now() -> int:
            return monotonic_ns() // 1000 + offset

        self.now = now


# Makes the clock of a new store. headgate.testing replaces it.
made: Callable[[], Clock] = SystemClock
