"""Applies the server's limits, as a response states them, to the limiters of the call.

A failure here never reaches the call. rate_limit_headers.py reads the response.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import ceil
from typing import Any, TypeAlias

from headgate.changes import Drain, Pause, Update
from headgate.counts import add, counts_of
from headgate.gate.compile import Declaration, declaration, rules_of
from headgate.hooks import emit, has_hooks
from headgate.http.error_bodies import Headers
from headgate.http.rate_limit_headers import Answer, Budget, read
from headgate.internals import queue_of
from headgate.keys import names_of
from headgate.limiter import Limiter
from headgate.limits import Limit, Rate
from headgate.log_writer import log
from headgate.permit import Permit
from headgate.validation import flag, microseconds

Granted: TypeAlias = Sequence[tuple[Limiter, Permit]]  # the permits of a call
# Gets the status, the headers and maybe the body of a response, with the permits of the call.
ApplyFeedback: TypeAlias = Callable[[Granted, int, Any, bytes], None]

LONGEST = 3600.0  # seconds of a pause: a server that says more is asked again after that
UNIT = "requests"  # each call of a client takes one


def choose_feedback(call: str, feedback: bool, adopt: bool = False) -> ApplyFeedback | None:
    if flag(call, "adopt", adopt) and not flag(call, "feedback", feedback):
        raise ValueError(
            f"{call}(feedback=False, adopt=True): a limit that is not read cannot be adopted; "
            "leave feedback=False out."
        )
    if adopt:
        return apply_and_adopt
    return apply_response if flag(call, "feedback", feedback) else None


def apply_response(granted: Granted, status: int, headers: Headers, body: bytes = b"") -> None:
    with log_failures():
        apply_answer(granted, status, read(status, headers, body))


def apply_and_adopt(granted: Granted, status: int, headers: Headers, body: bytes = b"") -> None:
    """`apply_response`, and adopt the limit that the response states."""
    with log_failures():
        answer = read(status, headers, body)
        for limiter, _ in granted:
            with log_failures():  # the other limiters still adopt, and pauses follow
                adopt_limit(limiter, status, answer)
        apply_answer(granted, status, answer)


@contextmanager
def log_failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log(logging.DEBUG, "The rate limits of a response could not be applied.", error=error)


# Pauses and drains -----------------------------------------------------------------------------


def apply_answer(granted: Granted, status: int, answer: Answer) -> None:
    budgets = [
        budget for budget in answer.budgets if budget.unit == UNIT and budget.remaining is not None
    ]
    for limiter, permit in granted:
        queue = queue_of(limiter)
        if answer.verdict != "passed":
            note_refusal(queue.name, status, answer.verdict)
        for budget in budgets:
            if drain(permit, budget, alone=len(budgets) == 1):
                note_action(queue.name, status, answer, "drain")
        if answer.retry_after:
            time = microseconds(min(answer.retry_after, LONGEST))
            queue.change(Pause(time, reason="server"))
            note_action(queue.name, status, answer, "pause")


def note_action(name: str, status: int, answer: Answer, action: str) -> None:
    if has_hooks():
        from headgate.events import ResponseActedOn

        emit(ResponseActedOn(*names_of(name), status, answer.verdict, action))


def note_refusal(name: str, status: int, verdict: str) -> None:
    add(counts_of(name).refusals, (status, verdict))


def drain(permit: Permit, budget: Budget, alone: bool) -> bool:
    """Drain the limits on requests whose capacity is `budget.limit`. Return whether one is.

    If that is not stated, drain only a single limit by a single budget (`alone`).
    """
    queue = queue_of(permit)
    rules = [text for text in queue.declared.program.split(";") if counts_requests(text)]
    fits = alone and len(rules) == 1
    if budget.limit:
        fits = any(capacity_of(text) == budget.limit for text in rules)
    if not fits or budget.remaining is None:
        return False
    queue.change(Drain(UNIT, budget.remaining, limit=budget.limit or 0, since=permit.t))
    return True


def counts_requests(text: str) -> bool:
    """Return whether the rule with this text counts calls over time."""
    kind, unit, *_ = text.split(" ")
    return kind != "slots" and unit == UNIT  # "slots": a Concurrency


def capacity_of(text: str) -> int:
    return int(text.split(" ")[2])


# Limits that are adopted -----------------------------------------------------------------------


def adopt_limit(limiter: Limiter, status: int, answer: Answer) -> None:
    """Replace the limiter's only limit on requests by the one that the response states.

    Nothing changes if an update has changed other limits of the name. `limiter.limits` stay as the
    user declared them, so that each process derives the same limits from the same response.
    """
    stated = [budget for budget in answer.budgets if budget.unit == UNIT and budget.limit]
    limits = list(limiter.limits)
    declared = program_of(limits)
    ours = [index for index, text in enumerate(declared) if counts_requests(text)]
    if len(stated) != 1 or len(ours) != 1:
        return
    index, queue = ours[0], queue_of(limiter)
    present = queue.declared.program.split(";")
    limits[index] = adapt(limits[index], stated[0])
    wanted = program_of(limits)
    if without(declared, index) == without(present, index) and wanted != present:
        queue.change(Update(declaration(limits), reason="adopted"))
        note_action(queue.name, status, answer, "adopt")


def without(program: list[str], index: int) -> list[str]:
    return program[:index] + program[index + 1 :]


def program_of(limits: list[Limit]) -> list[str]:
    return Declaration(rules_of(limits)).program.split(";")


def adapt(limit: Limit, budget: Budget) -> Limit:
    """Return `limit` with the amount of `budget`, and its window if the server states one."""
    changes: dict[str, object] = {"amount": budget.limit}
    if budget.per:
        changes["per"] = budget.per
    if isinstance(limit, Rate):
        changes["initial"] = None  # the old one may exceed the new capacity
        if budget.limit is not None:
            follows_amount = limit.burst == ceil(limit.amount)
            changes["capacity"] = budget.limit if follows_amount else min(limit.burst, budget.limit)
    return replace(limit, **changes)  # type: ignore[arg-type]  # no Concurrency comes here
