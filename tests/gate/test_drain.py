"""The budget that a service states lowers our count and never raises it. A late statement takes
nothing that came since.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.compile import rules_of
from headgate.gate.gate import Gate, Grant
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.gate.crowd import SECOND, START, rated

TEN = [Rate(10, per=60), Rate(10, per=60, steps=True), Window(10, per=60), Quota(10, per=3600)]
KINDS = pytest.mark.parametrize("limit", TEN, ids=repr)


def gate_of(*limits: Limit) -> Gate:
    return Gate(rules_of(limits), START)


def passes(gate: Gate, now: int) -> int:
    """How many pass at once."""
    count = 0
    while isinstance(gate.acquire(now, count, {}, max_sleep=0), Grant):
        count += 1
    return count


@KINDS
def test_a_drain_lowers_the_remaining_budget(limit: Limit) -> None:
    gate = gate_of(limit)

    gate.drain(START, "requests", 0, 3, 0)

    assert passes(gate, START) == 3


@KINDS
def test_a_drain_above_the_remaining_budget_changes_nothing(limit: Limit) -> None:
    """T1: the stated budget is of a moment at which the service did not know the calls on their
    way.
    """
    gate = gate_of(limit)
    for number in range(8):
        gate.acquire(START, number, {})

    for left in (2, 5, 100, 2**52):
        gate.drain(START, "requests", 0, left, 0)

    assert passes(gate, START) == 2


@KINDS
def test_a_drain_changes_only_the_limit_of_its_unit_and_capacity(limit: Limit) -> None:
    """By its unit, and by how much it holds in all."""
    gate = gate_of(
        limit, Window(5, per=1), Rate(10, per=1, unit="tokens"), Concurrency(10, unit="requests")
    )

    gate.drain(START, "requests", 10, 3, 0)
    gate.drain(START, "tokens", 7, 0, 0)

    assert [rule.left(START) for rule in gate.rules.all] == [3, 5, 10, 10]


def test_a_drain_leaves_a_bucket_the_tokens_that_came_since() -> None:
    """L1: given answers that say each 0.1 s that nothing was left a second ago, then it fills up
    all the same.
    """
    gate = gate_of(Rate(10, per=1, capacity=10, initial=0))
    for tenth in range(1, 30):
        now = START + tenth * SECOND // 10
        gate.drain(now, "requests", 0, 0, now - SECOND)

    assert gate.rules.all[0].left(START + 3 * SECOND) == 10


@pytest.mark.parametrize("limit", [Window(10, per=60), Quota(10, per=60, anchor=START / SECOND)])
def test_a_drain_from_before_a_new_period_takes_nothing_of_it(limit: Limit) -> None:
    """Given all used up, when it has become free just now, then an answer to a call from before
    takes nothing of it.
    """
    gate = gate_of(limit)
    assert passes(gate, START + SECOND) == 10
    later = START + 61 * SECOND

    gate.drain(later, "requests", 0, 0, later - 2 * SECOND)

    assert passes(gate, later) == 10


@given(
    rated,
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 2 * SECOND),
    st.integers(0, 2 * SECOND),
)
def test_a_drain_never_raises_the_remaining_budget(
    limit: Limit, used: int, left: int, age: int, before: int
) -> None:
    """T1: after any statement, of any moment, there is no more than before, and no less than the
    statement.
    """
    gate, now = gate_of(limit), START + age
    for number in range(used):
        gate.acquire(START, number, {}, max_sleep=0)
    gate.clamp(now)
    had = gate.rules.all[0].left(now)

    gate.drain(now, "requests", 0, left, now - before)

    assert min(had, left) <= gate.rules.all[0].left(now) <= had
    if not before and not getattr(gate.rules.all[0], "freed_at", 0):
        assert gate.rules.all[0].left(now) == min(had, left)
