"""Limits that a service states, in place of the declared one or beside it.

`limiter.limits` stay as the user declared them, so each process derives the same limits from the
same answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, isfinite
from time import monotonic
from typing import TypeAlias, TypeGuard

from headgate.changes import Update
from headgate.gate.compile import declaration
from headgate.http.rate_limit_headers import Answer, Budget
from headgate.internals import queue_of
from headgate.limiter import Limiter
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.validation import microseconds, show

TimedLimit: TypeAlias = Rate | Window | Quota
Factors: TypeAlias = tuple[float, float]  # of the declared limit: the least, and the most

UNIT = "requests"  # each call of a client takes one
ONLY_LOWER: Factors = (0.0, 1.0)
PERIODS = 1.0, 60.0, 3600.0, 86_400.0  # seconds, of the limits of most services
MOST_NAMES = 10_000  # limiters and keys with an adopted limit; the oldest ones are forgotten
TOLERANCE = 0.1  # of a period that is computed from rounded numbers


def check_factors(call: str, adopt: object) -> Factors | None:
    """Return the factors between which limits are adopted; None for none."""
    if isinstance(adopt, bool):
        return ONLY_LOWER if adopt else None
    if not (isinstance(adopt, tuple) and len(adopt) == 2 and all(map(is_number, adopt))):
        raise TypeError(
            f"{call}(adopt={show(adopt)}): adopt is True, False, or two factors of the declared "
            "limit, such as (0.1, 2.0)."
        )
    low, high = adopt
    if not 0 <= low <= 1 <= high:
        raise ValueError(
            f"{call}(adopt={show(adopt)}): the first factor is from 0 to 1 and the second at least "
            "1, so that the declared limit is between them; write two such as (0.1, 2.0)."
        )
    return low, high


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


class Adoption:
    """The limits that a client has adopted, by the encoded name of the limiter."""

    __slots__ = ("_adopted", "_factors", "_heed_at_most")

    def __init__(self, factors: Factors, heed_at_most: float) -> None:
        self._factors = factors
        self._heed_at_most = heed_at_most
        # The adopted limits as a program, and when an answer stated them last.
        self._adopted: dict[str, tuple[str, float]] = {}

    def apply(self, limiter: Limiter, status: int, answer: Answer) -> bool:
        """Follow the limit that the answer states. Return whether that changes the limits.

        An answer that states no limit changes nothing at first. When the last statement is
        `heed_at_most` seconds old, the declared limit returns. Nothing changes if an update has
        changed the other limits.
        """
        if not (200 <= status < 300 or status == 429):
            return False
        limits, queue = limiter.limits, queue_of(limiter)
        present = queue.declared
        ours = [(index, limit) for index, limit in enumerate(limits) if counts_calls(limit)]
        if len(ours) != 1 or compile_others(limits) != compile_others(present.limits):
            return False
        index, limit = ours[0]
        stated = self._derive(limit, answer)
        if stated is None:
            if not self._is_old(queue.name, present.program):
                return False
            stated = [limit]
        wanted = declaration((*limits[:index], *stated, *limits[index + 1 :]))
        self._note(queue.name, wanted.program, is_adopted=stated != [limit])
        if wanted.program == present.program:
            return False
        queue.change(Update(wanted, reason="adopted"))
        return True

    def _note(self, name: str, program: str, *, is_adopted: bool) -> None:
        self._adopted.pop(name, None)
        if is_adopted:
            self._adopted[name] = program, monotonic()  # the last entry now
            if len(self._adopted) > MOST_NAMES:
                self._adopted.pop(next(iter(self._adopted)), None)

    def _is_old(self, name: str, program: str) -> bool:
        """Return whether `program` is adopted, and was last stated `heed_at_most` seconds ago."""
        adopted, last = self._adopted.get(name, ("", 0.0))
        return adopted == program and monotonic() - last >= self._heed_at_most

    def _derive(self, limit: TimedLimit, answer: Answer) -> list[TimedLimit] | None:
        """Return the limits that follow from the declared `limit` and the answer.

        A stated limit with the same period replaces the declared one. One with another period
        stands beside it. The declared one is then raised by the upper factor, because it would hold
        calls that the service allows. None: the answer states nothing.
        """
        budget = find_single(answer)
        if budget is None:
            return None
        amount, per = budget.limit or 0, find_period(budget, limit.per)
        if per is None or per > self._heed_at_most:
            return None
        low, high = self._factors
        if budget.per is None and budget.reset is None:
            high = min(high, 1.0)  # the service may mean a longer period
        if microseconds(per) == microseconds(limit.per):
            lowest, highest = ceil(low * limit.amount), scale(limit, high).amount
            return [resize(limit, min(max(amount, lowest), highest))]
        lowest = ceil(low * limit.amount * per / limit.per)
        return [scale(limit, high), adapt(limit, max(amount, lowest), per)]


def counts_calls(limit: Limit) -> TypeGuard[TimedLimit]:
    """Return whether each call of a client takes one of this limit, over time."""
    return limit.unit == UNIT and not isinstance(limit, Concurrency)


def compile_others(limits: Iterable[Limit]) -> str:
    """Return the program of the limits that no answer changes, to compare it."""
    return declaration([limit for limit in limits if not counts_calls(limit)]).program


def find_single(answer: Answer) -> Budget | None:
    """Return the budget on requests. None: the answer states none, or several."""
    stated = [budget for budget in answer.budgets if budget.unit == UNIT and budget.limit]
    return stated[0] if len(stated) == 1 else None


def find_period(budget: Budget, ours: float) -> float | None:
    """Return the seconds of the service's window, from its reset if it states no period.

    None: it may have another period than ours, and the answer does not show which. A window without
    a stated period has the shortest usual one that its reset fits into.
    """
    if budget.per:
        return budget.per
    if budget.reset is None:
        return ours  # nothing speaks against it
    likely = [period for period in sorted({*PERIODS, ours}) if period >= budget.reset]
    if not likely:
        return None
    if likely[0] >= ours:
        return likely[0]
    # The reset fits a shorter window, and also a window of our period that is almost over. Only a
    # bucket shows its period: by the speed of its refill.
    refill = refill_time(budget)
    return ours if abs(refill - ours) <= TOLERANCE * ours else None


def refill_time(budget: Budget) -> float:
    """Return the seconds in which an empty bucket fills, if the budget is full at its reset."""
    limit = budget.limit or 0
    used = limit - (budget.remaining or 0)
    return (budget.reset or 0.0) * limit / used if used > 0 else 0.0


def scale(limit: TimedLimit, factor: float) -> TimedLimit:
    return limit if factor == 1 else resize(limit, max(1, int(limit.amount * factor)))


def resize(limit: TimedLimit, amount: float) -> TimedLimit:
    return limit if amount == limit.amount else adapt(limit, int(amount), limit.per)


def adapt(limit: TimedLimit, amount: int, per: float) -> TimedLimit:
    """Return a limit of this kind with another amount and period."""
    changes: dict[str, object] = {"amount": amount, "per": per}
    if isinstance(limit, Rate):
        changes["initial"] = None  # the old one may exceed the new capacity
        follows_amount = limit.burst == ceil(limit.amount)
        changes["capacity"] = amount if follows_amount else min(limit.burst, amount)
    return replace(limit, **changes)  # type: ignore[arg-type]  # the values have many types
