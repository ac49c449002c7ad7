"""A crowd in front of a gate, in a time of its own, and the limits that hypothesis makes up for it.

This module has the common parts of the tests of this folder. Callers ask, give up, pay back and let
time pass, and a ledger keeps the grants. It knows the rules' verbs and none of their arithmetic.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from hypothesis import strategies as st

from headgate.gate.compile import rules_of
from headgate.gate.gate import Gate, Grant, Refuse, Units, Wait
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.limits import Concurrency, Limit, Quota, Rate, Window

START = 1_700_000_043_123_457  # a moment as long as real ones are, and round in no period
SECOND = 1_000_000
PERIODS = [0.001, 0.007, 0.333333, 1, 60, 3600]

# Limits -------------------------------------------------------------------------------------------

amounts = st.integers(1, 12)
fractions = st.sampled_from([0.5, 2.5, 0.1, 1 / 3, 7.25, 0.007, 3.333])  # amounts of a rate alone
periods = st.sampled_from(PERIODS)
slacks = st.sampled_from([0, 0, 0.0005])


@st.composite
def rates(draw: st.DrawFn, initial: bool = True) -> Rate:
    amount, capacity = draw(amounts | fractions), draw(st.none() | amounts)
    start = draw(st.none() | st.integers(0, capacity or ceil(amount))) if initial else None
    return Rate(amount, draw(periods), capacity, start, draw(st.booleans()), slack=draw(slacks))


@st.composite
def windows(draw: st.DrawFn) -> Window:
    return Window(draw(amounts), draw(periods), slack=draw(slacks))


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    per, anchors = draw(periods), st.sampled_from([None, 0.25, START / SECOND, -5])
    return Quota(draw(amounts), per, draw(anchors), slack=draw(st.sampled_from([0, per / 4])))


permits = st.builds(Concurrency, amounts)
rated = st.one_of(rates(), windows(), quotas())
kinds = st.one_of(rated, permits)


def largest(limits: Iterable[Limit]) -> int:
    """The most that one acquire can ask for at all."""
    return min(rule.capacity for rule in rules_of(limits))


# Events -------------------------------------------------------------------------------------------

Event = tuple[Any, ...]


DEEDS = [
    "time",
    "time",
    "time",
    "back",
    "ask",
    "ask",
    "ask",
    "ask",
    "cancel",
    "leave",
    "pay_back",
    "release",
    "release",
]
MAX_SLEEPS = [None, None, None, 0, 1_000, SECOND]
numbers = st.tuples(st.integers(0, len(DEEDS) - 1), st.integers(0, 999), st.integers(0, 11))


def events(limits: Sequence[Limit], size: int = 40) -> st.SearchStrategy[list[Event]]:
    """The actions of a crowd: mostly it asks, and time passes by parts of a period, by ticks, and
    now and then backwards.
    """
    most = largest(limits)
    spans = [
        round(limit.per * SECOND) for limit in limits if not isinstance(limit, Concurrency)
    ] or [SECOND]

    def span_of(number: int) -> int:
        return spans[number % len(spans)]

    def event(drawn: tuple[int, int, int]) -> Event:
        deed, large, small = drawn
        match DEEDS[deed]:
            case "time":
                span = span_of(large)
                passing = [0, 1, span - 1, span, span + 1, span // most]
                return "time", passing[small] if small < len(passing) else span * large // 500
            case "back":
                return "time", -span_of(large) * (1 + small) // 6
            case "ask":
                return "ask", 1 + large % most, MAX_SLEEPS[small % len(MAX_SLEEPS)]
            case "pay_back":
                return "pay_back", large % 6, 1 + small
            case other:
                return other, small // 2

    one = numbers.map(event)
    return st.sampled_from([2, size // 4, size]).flatmap(
        lambda most: st.lists(one, min_size=most // 2, max_size=most)
    )


class Passed(NamedTuple):
    """One grant in the ledger: for which moment, and how much it has cost in the end."""

    t: int
    cost: int
    fence: int


class Crowd:
    """A gate, a clock that may step back, and the ledger."""

    def __init__(self, *limits: Limit, now: int = START, reserve_ahead: int = 0) -> None:
        self.gate = Gate(rules_of(limits), now)
        self.now = now
        self.reserve_ahead = reserve_ahead
        self.numbers = count()
        self.ledger: dict[int, Passed] = {}  # by caller, in the order of the grants
        self.asked: dict[int, int] = {}
        self.acted: set[int] = (
            set()
        )  # they have made their calls: nothing of theirs is undone any more
        self.paid: set[int] = set()
        self.held: set[int] = set()

    def play(self, events: Iterable[Event]) -> Crowd:
        for kind, *details in events:
            getattr(self, kind)(*details)
        return self

    def time(self, delta: int) -> None:
        self.now += delta
        self.look()

    def look(self) -> None:
        for caller, grant in self.gate.advance(self.now, self.reserve_ahead):
            self.note(caller, grant)

    def ask(self, cost: int = 1, max_sleep: int | None = None) -> Grant | Wait | Refuse:
        caller = next(self.numbers)
        self.asked[caller] = cost
        answer = self.gate.acquire(
            self.now, caller, self.units(cost), self.reserve_ahead, max_sleep
        )
        if isinstance(answer, Grant):
            self.note(caller, answer)
        return answer

    def units(self, cost: int) -> Units:
        """`cost` of each unit that the limits count."""
        return {rule.unit: cost for rule in self.gate.rules.all}

    def note(self, caller: Any, grant: Grant) -> None:
        self.ledger[caller] = Passed(grant.t, self.asked[caller], grant.fence)
        self.held.add(caller)

    def picked(self, pick: int) -> int | None:
        return list(self.ledger)[-1 - pick] if pick < len(self.ledger) else None

    def cancel(self, pick: int) -> None:
        """A caller has not used its grant and never will: it takes nothing."""
        caller = self.picked(pick)
        if caller is not None and caller not in self.acted:
            self.held.remove(caller)
            self.gate.cancel(self.now, self.units(self.asked[caller]), self.ledger.pop(caller).t)
            self.look()

    def release(self, pick: int) -> None:
        """A caller is done."""
        caller = self.picked(pick)
        if caller in self.held:
            self.held.remove(caller)
            self.acted.add(caller)
            self.gate.release(self.units(self.asked[caller]))
            self.look()

    def leave(self, pick: int) -> None:
        waiting = list(self.gate.queue)
        if pick < len(waiting):
            self.gate.leave(waiting[pick])
            self.look()

    def pay_back(self, pick: int, most: int) -> None:
        """A call took less than it asked for."""
        caller = self.picked(pick)
        if (
            caller is not None
            and caller not in self.paid
            and self.ledger[caller].t <= self.gate.clamp(self.now)
        ):
            self.acted.add(caller)
            self.paid.add(caller)
            passed = self.ledger[caller]
            back = min(most, passed.cost)
            self.ledger[caller] = passed._replace(cost=passed.cost - back)
            self.gate.settle(self.now, self.units(-back), passed.t)
            self.look()

    def queue_up(self, cost: int = 1) -> None:
        """Some more come, until one waits."""
        while not self.gate.queue:
            self.ask(cost)

    def disperse(self) -> None:
        """All waiters give up."""
        for caller in list(self.gate.queue):
            self.gate.leave(caller)

    @property
    def passed(self) -> list[Passed]:
        return list(self.ledger.values())


def twin(gate: Gate) -> Gate:
    """The same state once more: changes of one do not show in the other."""
    return copy.deepcopy(gate)


def same(gate: Gate, other: Gate) -> bool:
    """Whether two gates behave alike, now and later."""
    return described(gate) == described(other)


def described(gate: Gate) -> Any:
    """The whole state at the gate's own time, in plain values."""
    gate = twin(gate)
    for rule in gate.rules.all:
        # Bring it up to the moment: a state may be old, and still the same.
        rule.left(max(gate.t, gate.not_before))
        if isinstance(rule, SlidingWindowRule):
            rule.drop_skipped()
    rules = [
        {name: getattr(rule, name) for name in type(rule).__slots__} for rule in gate.rules.all
    ]
    return gate.t, gate.not_before, gate.fence, list(gate.queue.items()), gate.waiting, rules
