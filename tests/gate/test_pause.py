"""A pause at the gate: no caller passes before its end, it grants no extra tokens, and the
estimates know of it.
"""

from __future__ import annotations

import pytest

from headgate.gate.compile import rules_of
from headgate.gate.gate import Gate, Grant, Refuse, Wait
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.gate.crowd import SECOND, START

LIMITS = [
    Rate(2, per=1),
    Rate(2, per=1, capacity=5),
    Rate(2, per=1, steps=True),
    Window(3, per=1),
    Quota(3, per=1),
]
KINDS = pytest.mark.parametrize("limit", LIMITS, ids=repr)


def gate_of(*limits: Limit) -> Gate:
    return Gate(rules_of(limits), START)


@KINDS
@pytest.mark.parametrize("seconds", [0.000_001, 0.3, 1, 7.5])
def test_the_estimate_of_a_caller_in_a_pause_is_the_moment_of_its_grant(
    limit: Limit, seconds: float
) -> None:
    """T4: given a budget half used up, when ten come in a pause, then each goes at its estimate,
    and none before the pause's end.

    Of a quota, whose windows do not begin with the pause, each estimate is the latest moment.
    """
    gate, end = gate_of(limit), START + round(seconds * SECOND)
    gate.acquire(START, "first", {})
    gate.pause(START, end - START)

    estimates = {}
    for number in range(10):
        answer = gate.acquire(START, number, {})
        assert isinstance(answer, Wait)
        estimates[number] = answer.t

    while gate.queue:
        for caller, grant in gate.advance(gate.next_at()):
            moment = estimates.pop(caller)
            assert end <= grant.t == moment or (
                isinstance(limit, Quota) and end <= grant.t < moment
            )
    assert estimates == {}


@KINDS
def test_a_refusal_in_a_pause_names_the_end_of_the_pause(limit: Limit) -> None:
    """T8: by each way in, and nothing is charged."""
    gate = gate_of(limit, Concurrency(5))
    gate.acquire(START, "first", {"requests": 0, "permits": 0})
    gate.pause(START, 10 * SECOND)
    before = [rule.left(START) for rule in gate.rules.all]

    assert gate.at_once(START + SECOND) is None
    assert gate.acquire(START + SECOND, "late", {}, max_sleep=0) == Refuse(
        START + 10 * SECOND, False
    )
    assert gate.not_before > gate.t
    assert [rule.left(START) for rule in gate.rules.all] <= before or isinstance(limit, Rate)
    assert isinstance(gate.acquire(START + 10 * SECOND, "on time", {}), Grant)
    assert gate.not_before <= gate.t


def test_the_later_end_of_two_pauses_counts() -> None:
    gate = gate_of(Concurrency(1))
    for seconds in (3, 1, 5, 2):
        gate.pause(START, seconds * SECOND)

    assert gate.next_at() > START
    assert gate.ready((1,)) == START + 5 * SECOND


def test_a_reserved_moment_is_earlier_than_the_end_of_any_pause() -> None:
    """T3: so a sleeper with a reservation is distinct from callers that are granted after the
    pause.
    """
    gate = gate_of(Rate(1, per=1, capacity=1))
    gate.acquire(START, "first", {})
    reserved = gate.acquire(START, "second", {}, reserve_ahead=2 * SECOND)
    assert isinstance(reserved, Grant)

    gate.pause(START, 1)

    assert gate.not_before == reserved.t + 1


def test_a_slower_rate_that_is_set_in_a_pause_counts_from_then_on() -> None:
    """T9: given an empty bucket, when the rate is lowered as a pause begins, then at its end it has
    the gain of that rate.
    """
    gate = gate_of(Rate(100, per=1))
    gate.acquire(START, "all", {"requests": 100})
    gate.pause(START, 60 * SECOND)
    gate.acquire(START, "waits", {})

    gate.follow(START, rules_of([Rate(1, per=1, capacity=100)]))

    assert gate.rules.all[0].left(START + 60 * SECOND) == 60


@pytest.mark.parametrize(
    ("before", "after"),
    [(Window(2, per=60), Window(2, per=3600)), (Quota(2, per=60), Quota(2, per=86_400))],
)
def test_counts_from_before_a_pause_hold_for_limits_that_are_set_in_it(
    before: Limit, after: Limit
) -> None:
    """T9: an estimate for the time after the pause forgets nothing."""
    gate = gate_of(before)
    gate.acquire(START, "all", {"requests": 2})
    gate.pause(START, 120 * SECOND)
    gate.acquire(START, "waits", {})

    gate.follow(START, rules_of([after]))

    assert gate.next_at() > START + 600 * SECOND


def test_a_gate_is_not_forgotten_in_a_pause() -> None:
    """T12."""
    gate = gate_of(Concurrency(1), Rate(1, per=1))
    gate.pause(START, 60 * SECOND)

    assert gate.idle_at() == START + 60 * SECOND
