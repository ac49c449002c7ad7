"""What is done about an answer: what its server says of its limits holds for all who use the limiters that the call has passed.

Here lives the choice of what to do, and that it never stands in the way of a call. What was said is rate_limit_headers.py's to know; how all
are told of it, the limiters'.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import ceil

from headgate.gate.rules import Declaration, declaration, rules_of
from headgate.http.limiter_chain import Heard, Passed
from headgate.http.rate_limit_headers import Answer, Budget, Headers, read
from headgate.limiter import Limiter
from headgate.limits import Limit, Rate
from headgate.logs import log
from headgate.permit import Permit
from headgate.validation import flag

LONGEST = 3600.0  # seconds of a pause: who says more is asked again after that
UNIT = "requests"  # of which each call of a client takes one


def heeding(call: str, heed: bool, adopt: bool = False) -> Heard | None:
    """What to do with each answer, if anything."""
    if flag(call, "adopt", adopt) and not flag(call, "heed", heed):
        raise ValueError(
            f"{call}(heed=False, adopt=True): a limit that is not heard of cannot be taken over; leave heed=False out."
        )
    return adopting if adopt else listen if flag(call, "heed", heed) else None


def listen(passed: Passed, status: int, headers: Headers, body: bytes = b"") -> None:
    """Tell the limiters what an answer says."""
    with no_matter():
        obey(passed, read(status, headers, body))


def adopting(passed: Passed, status: int, headers: Headers, body: bytes = b"") -> None:
    """The same, and take over the limits that it says. One that cannot be ours is left, and all else that was said holds."""
    with no_matter():
        answer = read(status, headers, body)
        for limiter, _ in passed:
            with no_matter():
                adopt(limiter, answer)
        obey(passed, answer)


@contextmanager
def no_matter() -> Iterator[None]:
    """Whatever goes wrong with an answer is no matter of the call's."""
    try:
        yield
    except Exception as error:
        log(logging.DEBUG, "An answer could not be heeded.", error=error)


# What is told ------------------------------------------------------------------------------------------------------------------


def obey(passed: Passed, answer: Answer) -> None:
    """A refusal for a time is a pause. One that no waiting helps has no time, nor have answers that are none."""
    budgets = [
        budget for budget in answer.budgets if budget.unit == UNIT and budget.remaining is not None
    ]
    for limiter, permit in passed:
        for budget in budgets:
            drain(permit, budget, alone=len(budgets) == 1)
        if answer.retry_after:
            limiter.pause(min(answer.retry_after, LONGEST))


def drain(permit: Permit, budget: Budget, alone: bool) -> None:
    """What is left of a limit that is ours, too: one that holds as much in all; or the only one, where it is not said how much."""
    queue = permit._queue
    rules = [text for text in queue.declared.program.split(";") if counts(text)]
    meant = (
        any(capacity_of(text) == budget.limit for text in rules)
        if budget.limit
        else alone and len(rules) == 1
    )
    if meant and budget.remaining is not None:
        queue.drain(UNIT, budget.remaining, budget.limit or 0, permit.t)


def counts(text: str) -> bool:
    """Whether the rule that wrote `text` counts calls over time."""
    kind, unit, *_ = text.split(" ")
    return kind != "slots" and unit == UNIT


def capacity_of(text: str) -> int:
    return int(text.split(" ")[2])


# What is taken over ------------------------------------------------------------------------------------------------------------


def adopt(limiter: Limiter, answer: Answer) -> None:
    """Take over the one limit that is told for the one that counts calls here, unless others have changed more than that.

    `limiter.limits` stay what the program says: from them all who are told the same come to the same, whatever was told before.
    """
    told = [budget for budget in answer.budgets if budget.unit == UNIT and budget.limit]
    limits = list(limiter.limits)
    ours = [index for index, rule in enumerate(rules_of(limits)) if counts(rule.text)]
    if len(told) != 1 or len(ours) != 1:
        return
    index = ours[0]
    former, present = program_of(limits), limiter._queue.declared.program.split(";")
    limits[index] = as_told(limits[index], told[0])
    wanted = program_of(limits)
    if (
        former[:index] == present[:index]
        and former[index + 1 :] == present[index + 1 :]
        and wanted != present
    ):
        limiter._queue.update(declaration(limits))


def program_of(limits: list[Limit]) -> list[str]:
    return Declaration(rules_of(limits)).program.split(";")


def as_told(limit: Limit, budget: Budget) -> Limit:
    """So much in all; in the time of ours, if none is told."""
    changes: dict[str, object] = {"amount": budget.limit}
    if budget.per:
        changes["per"] = budget.per
    if isinstance(limit, Rate):
        changes["initial"] = None
        if budget.limit is not None:
            changes["capacity"] = (
                budget.limit
                if limit.burst == ceil(limit.amount)
                else min(limit.burst, budget.limit)
            )
    return replace(limit, **changes)  # type: ignore[arg-type]  # each has these fields, but for a Concurrency, which counts no calls
