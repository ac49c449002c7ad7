"""The sentences of a refusal, the same for every store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.errors import (
    CostExceedsCapacityError,
    MaxSleepExceededError,
    QueueFullError,
    UnknownLimiterError,
)
from headgate.keys import title
from headgate.waiting import seconds_of

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.request import Request


def too_long(name: str, request: Request, delay: int) -> MaxSleepExceededError:
    retry_after = seconds_of(delay)
    waits = f"An acquire of {title(name)} may wait {(request.max_sleep or 0) / 1_000_000:g} s"
    if retry_after is None:
        turn = "only a release can say when its turn comes; nothing was charged. Try again later"
    else:
        turn = (
            f"its turn is {retry_after:g} s away (retry_after); nothing was charged. Try again then"
        )
    return MaxSleepExceededError(
        f"{waits} (max_sleep), and {turn}, or raise max_sleep.", retry_after
    )


def queue_full(name: str, request: Request, delay: int, position: int) -> QueueFullError:
    retry_after = seconds_of(delay)
    turn = "only a release can say when its turn would be"
    if retry_after is not None:
        turn = f"its turn would be {retry_after:g} s away (retry_after)"
    option = "max_position" if "/" in name else "max_waiters"  # a classic has the classics' option
    return QueueFullError(
        f"An acquire of {title(name)} found {position} waiting before it, and its queue is full at "
        f"{request.max_waiters}; {turn}. Nothing was charged. Try again later, or raise {option}.",
        retry_after,
        position,
    )


def unknown_limiter(name: str) -> UnknownLimiterError:
    return UnknownLimiterError(
        f"No process has declared limits for {title(name)} in this store, and an attached limiter "
        "has none of its own. Check the name and the store, or declare the limits: Limiter(name, "
        "'100/minute', store=...)."
    )


def never(name: str, declared: Declaration, request: Request) -> CostExceedsCapacityError:
    """`declared`: the limits known here, perhaps old: a refusal can arrive before the new ones."""
    most = declared.capacity
    is_over_known = any(cost > most.get(unit, cost) for unit, cost in request.units.items())
    less = (
        f"no more than {', '.join(f'{unit}={number}' for unit, number in most.items())}"
        if is_over_known
        else "less than that"
    )
    return CostExceedsCapacityError(
        f"An acquire of {title(name)} asks for {request.text.replace(',', ', ')}, and its limits "
        f"were changed to hold {less}: it can never pass. Ask for less."
    )
