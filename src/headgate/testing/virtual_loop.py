"""The loop of `ManualClock.run`, in which waiting takes no time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Protocol

# If a loop has no ready task and no timer, a thread can still wake it for so many real seconds.
PATIENCE = 1.0


class VirtualTime(Protocol):
    def elapsed(self) -> float: ...
    def jump(self, seconds: float) -> None: ...


class Standstill(RuntimeError):
    """No task can ever go on: none is ready, and no timer is set."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer when nothing is ready."""

    def __init__(self, clock: VirtualTime) -> None:
        self.clock = clock
        super().__init__(_Selector(clock))

    def time(self) -> float:
        return self.clock.elapsed()

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads in real time, without a time-out.

        In Python 3.13 `timeout` is a timer of the loop, to which virtual time would jump.
        """
        await super().shutdown_default_executor()


class _Selector(selectors.SelectSelector):
    def __init__(self, clock: VirtualTime) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(PATIENCE if timeout is None else 0)
        if not ready and timeout is None:
            raise Standstill(
                "No task is ready and no timer is set, so these tasks would wait for ever: "
                "release their permits or cancel them."
            )
        if not ready and timeout:
            self._clock.jump(timeout)
        return ready
