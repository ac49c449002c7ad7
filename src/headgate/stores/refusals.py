"""The sentences of a refusal: which call, which number, which limit, and the way out. The same for every store."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from headgate.errors import CostExceedsCapacityError, MaxSleepExceededError, QueueFullError
from headgate.gate.slots import NEVER

if TYPE_CHECKING:
    from headgate.gate.rules import Declaration
    from headgate.request import Request


def too_long(name: str, request: Request, delay: int) -> MaxSleepExceededError:
    retry_after = _seconds(delay)
    return MaxSleepExceededError(
        f"An acquire of limiter {unquote(name)!r} may wait {(request.max_sleep or 0) / 1_000_000:g} s (max_sleep), and its turn is "
        f"{retry_after:g} s away; nothing was charged. Try again after that (retry_after), or raise max_sleep.",
        retry_after,
    )


def queue_full(name: str, request: Request, delay: int, position: int) -> QueueFullError:
    retry_after = _seconds(delay)
    turn = f"its turn would be {retry_after:g} s away" if retry_after else "only a release can say when its turn would be"
    return QueueFullError(
        f"An acquire of limiter {unquote(name)!r} found {position} waiting before it, and its queue is full at "
        f"{request.max_waiters}; {turn}. Nothing was charged. Try again later (retry_after), or raise max_waiters (max_position).",
        retry_after,
        position,
    )


def never(name: str, declared: Declaration, request: Request) -> CostExceedsCapacityError:
    """`declared`: the limits as far as this process knows them; a refusal may be heard of before the new ones are."""
    most = declared.capacity
    known = any(cost > most.get(unit, cost) for unit, cost in request.units.items())
    less = f"no more than {', '.join(f'{unit}={number}' for unit, number in most.items())}" if known else "less than that"
    return CostExceedsCapacityError(
        f"An acquire of limiter {unquote(name)!r} asks for {request.text.replace(',', ', ')}, and its limits were changed to hold "
        f"{less}: it can never pass. Ask for less."
    )


def _seconds(delay: int) -> float:
    return 0.0 if delay >= NEVER // 2 else max(0, delay) / 1_000_000
