"""Virtual time: an event loop in which waiting takes no time, and the clock that it shares with a memory store.

Here lives the one trick that lets a test wait for hours: when nothing is ready, the clock jumps to the next timer. What blocks
a thread is not helped by it, and when nothing is left that could ever happen, the loop says so instead of hanging.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
BEGINNING = 1_750_000_000_000_000  # microseconds: some moment of 2025, since a quota wants a date


class VirtualClock:
    """Integer microseconds that move when they are told to: fit for `MemoryStore(clock=...)`."""

    def __init__(self, start: int = BEGINNING) -> None:
        self.start = start
        self.moment = start

    def now(self) -> int:
        return self.moment

    def elapsed(self) -> float:
        """Seconds since the beginning, as the loop counts them."""
        return (self.moment - self.start) / 1_000_000

    def jump(self, seconds: float) -> None:
        """Move forward, to the next whole microsecond: a timer never finds itself too early."""
        self.moment += math.ceil(seconds * 1_000_000 - 1e-3)


class Standstill(RuntimeError):
    """Every task waits for something that nothing will bring about."""


class _Selector(selectors.SelectSelector):
    """Looks at the real world for an instant, and lets the virtual time pass."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise Standstill("nothing is ready, no timer is set: these tasks would wait for ever")
        if not ready and timeout:
            self._clock.jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on `clock`."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self._virtual.elapsed()


def run(story: Coroutine[Any, Any, T], clock: VirtualClock) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(clock)) as runner:
        return runner.run(story)
