"""Permits that are held: never more than the capacity at once, and every grant ends once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.compile import Declaration, rules_of
from headgate.gate.concurrency import NEVER, ConcurrencyRule
from headgate.gate.gate import Gate, Grant, Refuse, Wait
from headgate.limits import Concurrency
from tests.gate.crowd import START, amounts, same, twin

DEEDS = st.tuples(
    st.sampled_from(["ask", "ask", "release", "cancel", "cut"]), st.integers(0, 11), st.booleans()
)


class Ward:
    """The holders of a weighted limit and their units, counted beside the gate."""

    def __init__(self, capacity: int) -> None:
        self.gate = Gate(rules_of([Concurrency(capacity, unit="mb")]), START)
        self.capacity = capacity
        self.asked: dict[int, int] = {}
        self.held: dict[int, int] = {}
        self.order: list[int] = []

    @property
    def total(self) -> int:
        return sum(self.held.values())

    def ask(self, size: int, patient: bool) -> None:
        caller = len(self.asked)
        self.asked[caller] = min(1 + size, self.capacity)
        answer = self.gate.acquire(
            START, caller, {"mb": self.asked[caller]}, max_sleep=None if patient else 0
        )
        if isinstance(answer, Grant):
            self.enter(caller)

    def enter(self, caller: int) -> None:
        self.held[caller] = self.asked[caller]
        self.order.append(caller)
        assert self.total <= self.capacity, "S1"

    def release(self, pick: int, again: bool) -> None:
        if pick < len(self.held):
            self.gate.release({"mb": self.held.pop(list(self.held)[pick])})
        self.look()

    def cancel(self, pick: int, again: bool) -> None:
        """A grant that was not used."""
        if pick < len(self.held):
            self.gate.cancel(START, {"mb": self.held.pop(list(self.held)[pick])}, START)
        self.look()

    def cut(self, capacity: int, again: bool) -> None:
        """Another capacity is declared; a waiter that asks for more than that can never pass."""
        self.capacity = 1 + capacity
        for never in self.gate.follow(START, rules_of([Concurrency(self.capacity, unit="mb")])):
            self.gate.leave(never)
        self.look()

    def look(self) -> None:
        for caller, _ in self.gate.advance(START):
            assert isinstance(caller, int)
            self.enter(caller)


@given(amounts, st.lists(DEEDS, max_size=60))
def test_never_more_is_held_than_the_capacity_and_all_of_it_comes_back(
    capacity: int, deeds: list[tuple[str, int, bool]]
) -> None:
    """S1, S6, S7: given any crowd and any cuts, then no grant exceeds the capacity of its moment,
    free and held are C, in order.
    """
    ward = Ward(capacity)
    for deed, number, flag in deeds:
        getattr(ward, deed)(number, flag)
        assert ward.gate.rules.all[0].left(START) == ward.capacity - ward.total
        assert ward.order == sorted(ward.order)
        if ward.gate.queue:  # no waiter waits without a reason
            _, costs = next(iter(ward.gate.queue.values()))
            assert ward.total + costs[0] > ward.capacity

    while ward.held:
        ward.release(0, False)

    assert not ward.gate.queue
    assert ward.gate.rules.all[0].left(START) == ward.capacity


def test_after_a_cut_no_caller_passes_until_enough_have_left() -> None:
    """S1: given three holders, when the capacity is cut to one, then the next one passes when the
    third has left.
    """
    gate = Gate(rules_of([Concurrency(3)]), START)
    for caller in "abc":
        assert isinstance(gate.acquire(START, caller, {}), Grant)
    gate.acquire(START, "waits", {})

    gate.follow(START, rules_of([Concurrency(1)]))
    passed = []
    for _ in "abc":
        gate.release({})
        passed.append([caller for caller, _ in gate.advance(START)])

    assert passed == [[], [], ["waits"]]


def test_a_large_cost_at_the_head_is_not_passed_by_small_ones() -> None:
    """S6: given one unit free and a head that needs five, when a caller asks for that one unit,
    then it waits behind the head.
    """
    gate = Gate(rules_of([Concurrency(5, unit="mb")]), START)
    gate.acquire(START, "holds", {"mb": 4})
    gate.acquire(START, "large", {"mb": 5})

    small = gate.acquire(START, "small", {"mb": 1})

    assert isinstance(small, Wait)
    assert gate.advance(START) == []
    gate.release({"mb": 4})
    assert [caller for caller, _ in gate.advance(START)] == ["large"]


def test_a_refusal_for_held_permits_names_no_moment() -> None:
    """T4, T8: given that all is held, when a caller may not wait, then it is refused for now, and
    nothing has changed.
    """
    gate = Gate(rules_of([Concurrency(1)]), START)
    gate.acquire(START, "holds", {})
    before = twin(gate)

    refused = gate.acquire(START, "asks", {}, max_sleep=0)

    assert refused == Refuse(START, full=False)
    assert gate.rules.all[0].ready(1, START) == NEVER
    assert same(gate, before)


def test_a_held_permit_is_neither_settled_nor_forgotten() -> None:
    """S1, S8: given a holder, when its call settles and time passes, then its permit is held until
    the release.
    """
    gate = Gate(rules_of([Concurrency(2, unit="mb")]), START)
    gate.acquire(START, "holds", {"mb": 2})

    gate.settle(START, {"mb": -2}, START)

    assert gate.idle_at() == NEVER
    assert isinstance(gate.acquire(START, "asks", {"mb": 1}, max_sleep=0), Refuse)
    gate.release({"mb": 2})
    assert gate.idle_at() <= START


@pytest.mark.parametrize("leases", [(30, 5), (5, 30)])
def test_a_permit_lives_as_long_as_the_shortest_lease(leases: tuple[float, float]) -> None:
    """S2: given two concurrency limits, when a client asks how long it may believe in a permit,
    then it is the shorter lease.
    """
    permits, weights = leases
    declared = Declaration(
        rules_of([Concurrency(1, lease=permits), Concurrency(64, lease=weights, unit="mb")])
    )

    assert declared.lease == 5_000_000


def test_admit_passes_as_many_callers_as_there_are_permits() -> None:
    """S1: given room for two, when four come by the short way, then two are in."""
    rule = ConcurrencyRule("permits", 2, 30_000_000)

    assert [rule.admit(START) for _ in range(4)] == [True, True, False, False]
    assert rule.left(START) == 0


def test_after_a_cut_nothing_is_free_until_enough_holders_have_left() -> None:
    """S1: two callers hold permits, and the capacity is cut to one."""
    gate = Gate(rules_of([Concurrency(2)]), START)
    gate.acquire(START, "a", {})
    gate.acquire(START, "b", {})

    gate.follow(START, rules_of([Concurrency(1)]))

    assert gate.rules.all[0].left(START) == -1
    gate.release({})
    assert gate.rules.all[0].left(START) == 0
