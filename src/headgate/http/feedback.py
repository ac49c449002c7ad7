"""Applies the answers of a service to the limiters of a call: pauses, drains and adopted limits.

`heed_at_most` bounds all of it. A failure here never reaches the call. rate_limit_headers.py reads
an answer, backoff.py counts refusals, and adoption.py follows a stated limit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, TypeAlias, get_args

from headgate.changes import Drain, Pause
from headgate.counts import add, counts_of
from headgate.hooks import emit, has_hooks
from headgate.http.adoption import UNIT, Adoption, Factors, check_factors, counts_calls
from headgate.http.backoff import Backoff
from headgate.http.error_bodies import Headers
from headgate.http.rate_limit_headers import Answer, Budget, Scope, Verdict, read
from headgate.http.redirects import Departure, note_redirect
from headgate.internals import capacity_of, queue_of
from headgate.keys import names_of
from headgate.limiter import Limiter
from headgate.limits import Quota, Rate, Window
from headgate.log_writer import log
from headgate.permit import Permit
from headgate.validation import flag, microseconds, seconds, show

Granted: TypeAlias = Sequence[tuple[Limiter, Permit]]  # the permits of a call
Adopt: TypeAlias = bool | Factors
# Gets the status, the client's headers, and the body of an error as far as it was read.
OnAnswer: TypeAlias = Callable[[int, Any, bytes], Answer | None]

HEED_AT_MOST = 3600.0  # seconds
TEMPORARY = {"throttled", "overloaded"}  # refusals after which waiting helps
FAILED_FROM = 500  # a status from here on is an error of the service
BEYOND = 2**53  # a store takes no count from here on


@dataclass(frozen=True, slots=True)
class FeedbackOptions:
    """The arguments of a `limit`, transport, middleware or adapter that concern answers."""

    feedback: bool = True
    adopt: Adopt = False
    heed_at_most: float = HEED_AT_MOST
    on_answer: OnAnswer | None = None

    def make_feedback(self, call: str) -> Feedback | None:
        """Return None if no answer is read. Raises ValueError or TypeError for bad options."""
        way = "write seconds, such as 60, or feedback=False to ignore all answers"
        most = seconds(call, "heed_at_most", self.heed_at_most, way=way)
        factors = check_factors(call, self.adopt)
        check_hook(call, self.on_answer)
        if flag(call, "feedback", self.feedback):
            adoption = None if factors is None else Adoption(factors, most)
            return Feedback(most, adoption, self.on_answer)
        for name, given in (("adopt", self.adopt), ("on_answer", self.on_answer)):
            if given not in (False, None):
                raise ValueError(
                    f"{call}(feedback=False, {name}={show(given)}): {name} needs the answers, "
                    "which are not read; leave feedback=False out."
                )
        return None


def check_hook(call: str, hook: object) -> None:
    if hook is not None and (not callable(hook) or iscoroutinefunction(hook)):
        raise TypeError(
            f"{call}(on_answer={show(hook)}): on_answer is a plain function of the status, the "
            "headers and the body, which returns an Answer or None."
        )


class Feedback:
    """Applies the answers that one limited client gets."""

    __slots__ = ("_adoption", "_backoff", "_heed_at_most", "_on_answer")

    def __init__(
        self,
        heed_at_most: float = HEED_AT_MOST,
        adoption: Adoption | None = None,
        on_answer: OnAnswer | None = None,
    ) -> None:
        self._heed_at_most = heed_at_most
        self._adoption = adoption
        self._on_answer = on_answer
        self._backoff = Backoff()

    def wants_body(self, status: int) -> bool:
        """Return whether the user's hook gets the body of such an answer."""
        return self._on_answer is not None and status >= 400

    def apply(
        self,
        granted: Granted,
        departure: Departure,
        status: int,
        headers: Headers,
        body: bytes = b"",
    ) -> Answer | None:
        """Apply an answer to the limiters of its call. Return it as read. Never raises."""
        answer = None
        with log_failures():
            answer = self._read(status, headers, body, departure.host)
            self.apply_answer(granted, departure, status, answer)
            names = [queue_of(limiter).name for limiter, _ in granted]
            note_redirect(departure, names, status, headers)
        return answer

    def apply_answer(
        self, granted: Granted, departure: Departure, status: int, answer: Answer
    ) -> None:
        """Apply an answer that is read already. Never raises."""
        for limiter, permit in granted:
            if departure.concerns(queue_of(limiter).name):
                with log_failures():  # a pause follows nevertheless
                    self._adopt(limiter, status, answer)
                with log_failures():  # the other limiters are paused nevertheless
                    self._drain_or_pause(permit, departure, status, answer)

    def _read(self, status: int, headers: Headers, body: bytes, host: str) -> Answer:
        """Return the reading of the user's hook, or else that of headgate."""
        if self._on_answer is not None:
            try:
                answer = check_answer(self._on_answer(status, headers, body))
                if answer is not None:
                    return answer
            except Exception as error:
                message = "The hook on_answer failed, so headgate reads the answer by itself."
                log(logging.WARNING, message, error=error, kind="on_answer_failed")
        return read(status, headers, body, host=host)

    def _adopt(self, limiter: Limiter, status: int, answer: Answer) -> None:
        if self._adoption is not None and self._adoption.apply(limiter, status, answer):
            note_action(queue_of(limiter).name, status, answer, "adopt")

    def _drain_or_pause(
        self, permit: Permit, departure: Departure, status: int, answer: Answer
    ) -> None:
        """Drain or pause the limiter of `permit`.

        The pause ends at the latest `heed_at_most` seconds after the call left, however late its
        answer came. So answers to calls that left before a pause cannot extend it for ever.
        """
        queue = queue_of(permit)
        refused_for = self._note_outcome(queue.name, departure, status, answer)
        budgets = [
            budget
            for budget in answer.budgets
            if budget.unit == UNIT and budget.remaining is not None
        ]
        is_single = len(budgets) == 1
        resets = [self._drain(permit, status, answer, budget, is_single) for budget in budgets]
        # The wait after a refusal takes precedence over the resets of its budgets.
        wait = refused_for or max(resets, default=0.0)
        wait = min(wait, self._heed_at_most - (monotonic() - departure.at))
        if wait > 0 and not answer.permanent:
            whole = answer.scope == "service"
            queue.change(Pause(microseconds(wait), reason="server", whole=whole))
            note_action(queue.name, status, answer, "pause")

    def _drain(
        self, permit: Permit, status: int, answer: Answer, budget: Budget, is_single: bool
    ) -> float:
        """Drain by `budget`, if the drain would not hold callers for too long. Otherwise return the
        seconds to pause, if the budget is empty.
        """
        period = drained_period(permit, budget, is_single)
        if period == 0:
            return 0.0
        is_empty = budget.remaining == 0
        stated = budget.next if is_empty else budget.reset
        reset = period if stated is None else stated
        # The tokens that a drain takes come back over the limit's period. That is too long if it is
        # more than twice the time until the server's reset.
        if period <= min(self._heed_at_most, 2 * reset):
            queue, left, limit = queue_of(permit), budget.remaining or 0, budget.limit or 0
            queue.change(Drain(UNIT, left, limit=limit, since=permit.t))
            note_action(queue.name, status, answer, "drain")
            return 0.0
        return reset if is_empty else 0.0

    def _note_outcome(self, name: str, departure: Departure, status: int, answer: Answer) -> float:
        """Note the outcome of a call. Return the seconds to wait after a refusal, or else 0."""
        if answer.verdict != "passed":
            note_refusal(name, status, answer.verdict)
        if answer.verdict in TEMPORARY:
            return answer.retry_after or self._backoff.refuse(name, departure.at)
        if answer.verdict == "passed" and status < FAILED_FROM:
            self._backoff.succeed(name, departure.at)
        return 0.0


@contextmanager
def log_failures() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        log(logging.DEBUG, "The rate limits of a response could not be applied.", error=error)


def check_answer(answer: object) -> Answer | None:
    """Check the result of a user's hook: a text in place of a number would break the queue."""
    if answer is None:
        return None
    if not isinstance(answer, Answer):
        raise TypeError(f"on_answer returned {show(answer)}: return an Answer or None.")
    budgets = answer.budgets
    if not all(isinstance(budget, Budget) for budget in budgets):
        raise TypeError(f"on_answer returned budgets={show(budgets)}: write a tuple of Budgets.")
    verdicts, scopes = get_args(Verdict), get_args(Scope)
    check_field("verdict", answer.verdict in verdicts, answer.verdict, f"one of {verdicts}")
    check_field("scope", answer.scope in scopes, answer.scope, f"one of {scopes}")
    for name, time in [("retry_after", answer.retry_after), *times_of(budgets)]:
        check_field(name, is_time(time), time, "seconds from 0")
    for name, count in [("cost", answer.cost), *counts_in(budgets)]:
        check_field(name, is_count(count), count, "a whole number from 0")
    return answer


def check_field(name: str, is_right: bool, value: object, way: str) -> None:
    if not is_right:
        raise ValueError(f"on_answer returned {name}={show(value)}: write {way}.")


def times_of(budgets: Iterable[Budget]) -> Iterator[tuple[str, object]]:
    for budget in budgets:
        yield "reset", budget.reset
        yield "per", budget.per


def counts_in(budgets: Iterable[Budget]) -> Iterator[tuple[str, object]]:
    for budget in budgets:
        yield "limit", budget.limit
        yield "remaining", budget.remaining


def is_time(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return value is None or (isinstance(value, int | float) and value >= 0)


def is_count(value: object) -> bool:
    return value is None or (type(value) is int and 0 <= value < BEYOND)


def drained_period(permit: Permit, budget: Budget, is_single: bool) -> float:
    """Return the longest period of the limits that `budget` drains, or 0 if there are none.

    It drains the limits on requests whose capacity is `budget.limit`. If that is not stated, only a
    single budget drains, and only a single limit.
    """
    ours = [limit for limit in queue_of(permit).declared.limits if counts_calls(limit)]
    if budget.limit:
        ours = [limit for limit in ours if capacity_of(limit) == budget.limit]
    elif not is_single or len(ours) != 1:
        return 0.0
    return max(map(period_of, ours), default=0.0)


def period_of(limit: Rate | Window | Quota) -> float:
    """Return the seconds in which an empty limit is full again."""
    if isinstance(limit, Rate):
        return limit.per * max(1.0, limit.burst / limit.amount)
    return limit.per


def note_action(name: str, status: int, answer: Answer, action: str) -> None:
    if has_hooks():
        from headgate.events import ResponseActedOn

        emit(ResponseActedOn(*names_of(name), status, answer.verdict, action))


def note_refusal(name: str, status: int, verdict: str) -> None:
    add(counts_of(name).refusals, (status, verdict))
