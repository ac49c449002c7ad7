"""The argument of `on_wait`, and the check of such a callback."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

from headgate.gate.concurrency import NEVER
from headgate.validation import show
from headgate.values import Value, with_fields


@with_fields
class Waiting(Value):
    """The argument of `on_wait`: the place of an acquire in the queue.

    `position`: the number of live waiters before this one; 0: it is the next. `retry_after`:
    seconds until its turn, if no waiter before it gives up and permits are free; None when only a
    release can say.
    """

    __slots__ = ("position", "retry_after")
    position: int
    retry_after: float | None

    def __init__(self, position: int, retry_after: float | None) -> None:
        self._set(position=position, retry_after=retry_after)


OnWait = Callable[[Waiting], object]
# A call of a lazy function does not run its body.
IS_LAZY = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def queued_at(position: int, delay: int) -> Waiting:
    """`delay`: in microseconds."""
    return Waiting(position, seconds_of(delay))


def seconds_of(delay: int) -> float | None:
    """A delay in microseconds as `retry_after`."""
    # Only a release can say in two cases. 0: no rate needs time, so held permits are in the way.
    # More than NEVER // 2: the turn comes at the moment NEVER, and `delay` is the time until then.
    return delay / 1_000_000 if 0 < delay < NEVER // 2 else None


def check_on_wait(value: object, call: str) -> OnWait | None:
    if value is None:
        return None
    if not callable(value):
        raise TypeError(
            f"{call}(on_wait={show(value)}): on_wait must be a function of one argument, not a "
            f"{type(value).__name__}; pass one, such as on_wait=print, or leave it out."
        )
    if any(is_lazy(value) or is_lazy(type(value).__call__) for is_lazy in IS_LAZY):
        raise TypeError(
            f"{call}(on_wait={show(value)}): headgate calls on_wait and does not await it, so it "
            "must not be a coroutine function or a generator; pass a plain function, which may "
            "start a task."
        )
    return cast(OnWait, value)
