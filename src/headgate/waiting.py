"""What an acquire hears when it has to queue.

Here live the value that `on_wait` is called with, and what such a callback must be; when and where it is called is the stores' to
know.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from headgate.checks import show
from headgate.gate.slots import NEVER


@dataclass(frozen=True, slots=True)
class Waiting:
    """What `on_wait` is told: `position`, how many live waiters stand before this one, and `estimate`, seconds until its turn.

    `estimate` is None when only a release can make room. Otherwise it reckons that nobody gives up and that permits are free.
    """

    position: int
    estimate: float | None


OnWait = Callable[[Waiting], object]
LATER = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)  # to call them runs nothing of them


def queued_at(position: int, delay: int) -> Waiting:
    """From what a gate says: `delay` in microseconds, none at all where it is not the time that stands in the way."""
    return Waiting(position, delay / 1_000_000 if 0 < delay < NEVER // 2 else None)


def check_on_wait(value: object, call: str) -> OnWait | None:
    """None, or something to be called with a `Waiting`."""
    if value is None:
        return None
    if not callable(value):
        raise TypeError(
            f"{call}(on_wait={show(value)}): on_wait must be a function of one argument, not a {type(value).__name__}; "
            "pass one, such as on_wait=print, or leave it out."
        )
    if any(makes(value) or makes(type(value).__call__) for makes in LATER):
        raise TypeError(
            f"{call}(on_wait={show(value)}): on_wait is called and not awaited, so it must not be a coroutine function or a "
            "generator; pass a plain function, which may start a task."
        )
    return cast(OnWait, value)
