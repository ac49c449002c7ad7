"""A pause that is ended, and counts that are forgotten: the callers that pass then, and the units
that do not come back.
"""

from __future__ import annotations

import pytest

from headgate.gate.compile import rules_of
from headgate.gate.gate import Gate, Grant, Wait
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.gate.crowd import SECOND, START

COUNTING = [Rate(3, per=60), Rate(3, per=60, steps=True), Window(3, per=60), Quota(3, per=3600)]
KINDS = pytest.mark.parametrize("limit", COUNTING, ids=repr)


def gate_of(*limits: Limit) -> Gate:
    return Gate(rules_of(limits), START)


# Resume -------------------------------------------------------------------------------------------


def test_waiters_pass_in_order_when_a_pause_is_ended() -> None:
    """S6: given three that came in a pause, when it is ended, then two pass at that moment, in
    their order.
    """
    gate = gate_of(Concurrency(2))
    gate.pause(START, 60 * SECOND)
    for caller in ("a", "b", "c"):
        assert isinstance(gate.acquire(START, caller, {}), Wait)

    gate.resume(START + SECOND)

    granted = gate.advance(START + SECOND)
    assert [(caller, grant.t) for caller, grant in granted] == [
        ("a", START + SECOND),
        ("b", START + SECOND),
    ]


def test_a_resume_without_a_pause_changes_nothing() -> None:
    """T3: reservations stay, and no caller passes before them."""
    gate = gate_of(Rate(1, per=1))
    gate.acquire(START, "now", {})
    reserved = gate.acquire(START, "soon", {}, reserve_ahead=2 * SECOND)
    assert isinstance(reserved, Grant)

    gate.resume(START)

    assert (gate.not_before, gate.pause_left()) == (reserved.t, 0)


def test_no_caller_passes_before_a_reserved_moment_when_a_pause_is_ended() -> None:
    """T3: given a reservation, then a pause, when the pause is ended, then the next one passes at
    the reserved moment, not before.
    """
    gate = gate_of(Concurrency(5), Rate(1, per=1, unit="tokens"))
    gate.acquire(START, "now", {"tokens": 1})
    reserved = gate.acquire(START, "soon", {"tokens": 1}, reserve_ahead=2 * SECOND)
    assert isinstance(reserved, Grant)
    gate.pause(START, 60 * SECOND)

    gate.resume(START)

    assert gate.acquire(START, "other", {}, reserve_ahead=2 * SECOND) == Grant(
        reserved.t, reserved.fence + 1
    )


@pytest.mark.parametrize("passed", [0, 1, 59 * SECOND, 60 * SECOND, 61 * SECOND])
def test_pause_left_is_the_rest_of_a_pause(passed: int) -> None:
    gate = gate_of(Concurrency(1))
    gate.pause(START, 60 * SECOND)

    gate.clamp(START + passed)

    assert gate.pause_left() == max(0, 60 * SECOND - passed)


def test_a_reservation_alone_is_no_pause() -> None:
    gate = gate_of(Rate(1, per=1))
    gate.acquire(START, "now", {})
    gate.acquire(START, "soon", {}, reserve_ahead=2 * SECOND)

    assert gate.not_before > gate.t
    assert gate.pause_left() == 0


# Reset --------------------------------------------------------------------------------------------


@KINDS
def test_a_reset_limit_passes_as_much_at_once_as_a_new_one(limit: Limit) -> None:
    gate, new = gate_of(limit), gate_of(limit)
    for caller in range(3):
        assert isinstance(gate.acquire(START, caller, {}), Grant)
    assert isinstance(gate.acquire(START, "waits", {}), Wait)

    gate.reset(START + SECOND)

    assert [caller for caller, _ in gate.advance(START + SECOND)] == ["waits"]
    more = [gate.acquire(START + SECOND, caller, {}) for caller in "abc"]
    assert [type(answer) for answer in more] == [Grant, Grant, Wait]
    assert new.idle_at() <= START


@KINDS
def test_a_reset_forgets_debts(limit: Limit) -> None:
    gate = gate_of(limit)
    gate.settle(START, {"requests": 100}, START)
    assert gate.rules.all[0].left(START) < 0

    gate.reset(START)

    assert gate.rules.all[0].left(START) == 3
    assert gate.idle_at() <= START


@KINDS
def test_a_grant_from_before_a_reset_gives_nothing_back(limit: Limit) -> None:
    """T9: given a grant of before the reset, and one after it, when the former is given back, then
    no token comes of that.
    """
    gate = gate_of(limit)
    grant = gate.acquire(START, "before", {"requests": 3})
    assert isinstance(grant, Grant)
    gate.reset(START + SECOND)
    gate.acquire(START + 2 * SECOND, "after", {"requests": 3})

    gate.cancel(START + 2 * SECOND, {"requests": 3}, grant.t)

    assert gate.rules.all[0].left(START + 2 * SECOND) == 0


def test_a_reservation_from_before_a_reset_gives_nothing_back() -> None:
    """T9: the same, of a moment ahead: the counts begin behind it."""
    gate = gate_of(Rate(1, per=1, capacity=5))
    gate.acquire(START, "all", {"requests": 5})
    reserved = gate.acquire(START, "soon", {}, reserve_ahead=2 * SECOND)
    assert isinstance(reserved, Grant)
    gate.reset(START)
    gate.acquire(START, "after", {"requests": 5}, reserve_ahead=2 * SECOND)

    gate.cancel(reserved.t + 1, {}, reserved.t - 1)

    assert gate.rules.all[0].left(reserved.t + 1) == 0


def test_a_bucket_is_reset_to_its_initial_tokens() -> None:
    gate = gate_of(Rate(10, per=60, initial=4))
    gate.acquire(START, "all", {"requests": 4})

    gate.reset(START)

    assert gate.rules.all[0].left(START) == 4


def test_a_reset_keeps_holders_waiters_and_a_pause() -> None:
    """S1: held permits stay held, waiters keep their places, and no caller passes before the pause
    is over.
    """
    gate = gate_of(Concurrency(1), Rate(1, per=60))
    gate.acquire(START, "holds", {})
    gate.acquire(START, "waits", {})
    gate.pause(START, 10 * SECOND)

    gate.reset(START + SECOND)

    assert [rule.left(START + SECOND) for rule in gate.rules.all] == [0, 1]
    assert (list(gate.queue), gate.pause_left()) == (["waits"], 9 * SECOND)
    assert gate.advance(START + SECOND) == []
