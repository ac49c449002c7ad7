"""The sliding window: never more than `amount` in any interval of `per`, no slower than that while
128 entries suffice, and never more entries.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.compile import Declaration, lengthened, rules_of
from headgate.gate.gate import Grant
from headgate.gate.sliding_window import SlidingWindowRule as Rule
from headgate.limits import Window
from tests.gate.crowd import SECOND, START, Crowd, Passed, events, same, twin, windows

RESERVES_AHEAD = st.sampled_from([0, 0, 50_000, SECOND])


def assert_never_over(limit: Window, crowd: Crowd) -> None:
    """T1: no interval of `per` that begins with a grant, nor any other, has more than `amount`."""
    for first in crowd.passed:
        inside = sum(
            grant.cost for grant in crowd.passed if first.t <= grant.t < first.t + lengthened(limit)
        )
        assert inside <= limit.amount, (first, crowd.passed)


def counted(crowd: Crowd) -> Rule:
    """The rule, when no caller waits any more."""
    crowd.disperse()
    rule = crowd.gate.rules.all[0]
    assert isinstance(rule, Rule)
    return rule


# Never over ---------------------------------------------------------------------------------------


@given(st.data())
def test_no_interval_of_the_period_has_more_than_the_amount(data: st.DataObject) -> None:
    """T1, T5: given any crowd that asks, gives up, pays back, and a clock that jumps, then no `per`
    has more than `amount`.
    """
    limit = data.draw(windows())
    crowd = Crowd(limit, reserve_ahead=data.draw(RESERVES_AHEAD)).play(data.draw(events([limit])))

    assert_never_over(limit, crowd)


def test_a_window_has_no_room_in_the_second_after_a_burst() -> None:
    """T1: given 10 a second, all taken in the last moment of a second, then the next second has
    room for none of them.
    """
    crowd = Crowd(Window(10, per=1)).play([("time", 999_999), ("ask", 10, None), ("time", 1)])

    assert crowd.ask(1, 0).t == START + 999_999 + SECOND


# No slower ----------------------------------------------------------------------------------------


@given(windows(), st.lists(st.integers(1, 12), min_size=1, max_size=50))
def test_each_caller_passes_as_soon_as_the_window_has_room(
    limit: Window, wished: list[int]
) -> None:
    """T2, T3: given a crowd that waits, then a tick before each grant the window was too full, or
    its turn had not come.
    """
    costs = [min(cost, limit.amount) for cost in wished]
    crowd = Crowd(limit).play([("ask", cost, None) for cost in costs])

    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)

    assert [passed.cost for passed in crowd.passed] == costs
    for number, (before, passed) in enumerate(pairwise(crowd.passed)):
        earlier = [
            other
            for other in crowd.passed[: number + 1]
            if other.t + lengthened(limit) > passed.t - 1
        ]
        assert (
            passed.t == before.t
            or sum(other.cost for other in earlier) + passed.cost > limit.amount
        )


def test_a_crowd_of_one_period_passes_once_a_period_for_ever() -> None:
    """T2: given 7 a second and a crowd of 700, then they have passed in 99 seconds, 7 at a time."""
    crowd = Crowd(Window(7, per=1)).play([("ask", 1, None)] * 700)

    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)

    assert [passed.t - START for passed in crowd.passed] == [
        number // 7 * SECOND for number in range(700)
    ]


# The moment ---------------------------------------------------------------------------------------


@given(st.data())
def test_the_moment_of_a_refusal_is_exact_for_a_window(data: st.DataObject) -> None:
    """T4: given any history, then a cost that is refused until t is refused a tick before t, and
    granted at t.
    """
    limit = data.draw(windows())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    rule, now = counted(crowd), crowd.gate.clamp(0)
    cost = data.draw(st.integers(1, limit.amount))

    moment = rule.ready(cost, now)

    assert rule.ready(cost, moment) == moment
    assert moment == now or rule.ready(cost, moment - 1) == moment


def test_the_moment_of_a_refusal_is_exact_for_a_large_cost() -> None:
    """T4: given 1,000 tokens a minute, spent 100 a second, when 900 are asked for, then the refusal
    names the ninth's end.
    """
    crowd = Crowd(Window(1000, per=60))
    crowd.play([("ask", 100, None), ("time", SECOND)] * 10)

    refused = crowd.ask(900, 0)

    assert refused.t == START + 8 * SECOND + 60 * SECOND
    assert isinstance(
        twin(crowd.gate).acquire(refused.t, "who comes then", {"requests": 900}, max_sleep=0), Grant
    )


# Bounded ------------------------------------------------------------------------------------------


class Exact:
    """All grants, one by one."""

    def __init__(self, amount: int, per: int) -> None:
        self.amount, self.per = amount, per
        self.grants: list[tuple[int, int]] = []

    def used(self, t: int, longer: int = 0) -> int:
        """The tokens of a period at `t`, if each grant counts for `longer`."""
        return sum(cost for moment, cost in self.grants if moment > t - self.per - longer)

    def moments(self, t: int) -> int:
        """How many of the grants' moments count at `t`."""
        return len({moment for moment, _ in self.grants if moment > t - self.per})


PERIODS = st.sampled_from([1, 7, 124, 125, 1_000, 99_999, SECOND])


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Rule, Exact, list[tuple[int, int]]]:
    """A window, and grants so near one another that more than 128 of them are in a period."""
    per, amount = draw(PERIODS), draw(st.integers(100, 3_000))
    dice = draw(st.randoms(use_true_random=True))
    gap = max(1, per // dice.randint(130, 1_000))
    gaps = [0, 1, gap, gap, gap, 2 * gap]
    asked = [(dice.choice(gaps), dice.randint(1, 5)) for _ in range(600)]
    for _ in range(dice.randint(0, 3)):
        asked.insert(dice.randrange(600), (per // 2, 1))
    return Rule("requests", amount, per), Exact(amount, per), asked


def entries(rule: Rule) -> list[tuple[int, int]]:
    numbers = [*rule.log[rule.skipped :], rule.last, rule.pending]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@given(crowded())
def test_a_window_of_any_amount_has_128_entries_and_is_one_cell_slower_at_most(
    scene: tuple[Rule, Exact, list[tuple[int, int]]],
) -> None:
    """T1, T2, S9: given grants at any moments, then the window has never more than `amount` in a
    period. It refuses only if there is no room when each grant counts for a cell longer. It is
    exact until 128 moments were not enough.
    """
    rule, exact, asked = scene
    now, was_exact = START, True
    for gap, cost in asked:
        now += gap
        passes = rule.ready(cost, now) == now
        was_exact = was_exact and exact.moments(now) <= 127
        assert not passes or exact.used(now) + cost <= rule.capacity
        assert passes or exact.used(now, 0 if was_exact else rule.cell) + cost > rule.capacity
        if passes:
            rule.take(cost, now)
            exact.grants.append((now, cost))
        assert len(entries(rule)) <= 128
        assert sum(cost for _, cost in entries(rule)) == rule.used


@given(crowded(), st.data())
def test_a_grant_is_given_back_from_the_entry_that_it_merged_into(
    scene: tuple[Rule, Exact, list[tuple[int, int]]], data: st.DataObject
) -> None:
    """T5: given many grants, when each that counts is undone, in any order, then a cell later the
    window is as new.
    """
    rule, _, asked = scene
    asked = asked[: data.draw(st.integers(150, 600))]
    now, grants = START, []
    for gap, cost in asked:
        now += gap
        if rule.ready(cost, now) == now:
            rule.take(cost, now)
            grants.append((cost, now))
    counting = [(cost, t) for cost, t in grants if t + rule.per > now]

    for cost, t in data.draw(st.permutations(counting)):
        rule.give(cost, t)

    assert rule.left(now + rule.cell) == rule.capacity


def test_a_cell_is_at_most_a_120th_of_a_period_rounded_up() -> None:
    """T2: so a caller of a minute's window waits for half a second longer at most."""
    cells = {per: Rule("requests", 1, per).cell for per in range(1, 10_000)}
    assert all(cell <= -(-per // 120) for per, cell in cells.items())
    assert Rule("requests", 1, 60 * SECOND).cell < SECOND / 2


LARGE = 10_000
CELL = Rule("requests", LARGE, SECOND).cell
ALIGNED = START - START % CELL


def window(*moments: int) -> Rule:
    """A large window of a second, with a grant at each of these moments after the first cell."""
    rule = Rule("requests", LARGE, SECOND)
    for moment in moments:
        rule.take(1, ALIGNED + moment)
    return rule


MERGED = range(0, 64 * CELL, CELL // 4)  # four grants in each of 64 cells


def test_nothing_is_given_back_for_a_moment_without_a_grant() -> None:
    """T5: neither from a later grant of its cell nor, in a window that merges, of another cell."""
    exact = window(10)
    exact.give(1, ALIGNED)
    assert exact.used == 1

    merged = window(*MERGED, 100 * CELL)
    before = merged.used
    merged.give(1, ALIGNED + 90 * CELL)
    assert (merged.used, len(entries(merged)) < len(MERGED)) == (before, True)


def test_an_expired_grant_is_not_given_back_from_one_that_counts() -> None:
    """T5: given two grants of one cell, when the first expires before the window merges, then to
    give it back takes nothing from the second.
    """
    first, second = 0, CELL - 1
    rule = window(first, second, *range(CELL, 63 * CELL, CELL // 2 + 1))
    while len(entries(rule)) < 128:
        rule.take(1, rule.last + 1)
    expired = ALIGNED + first + SECOND
    rule.take(1, expired)
    rule.take(1, expired + 1)
    rule.take(1, expired + 2)
    used = rule.used

    rule.give(1, ALIGNED + first)

    assert rule.merges_until > expired
    assert rule.used == used


def test_a_grant_of_before_a_reset_is_not_given_back_from_a_later_one() -> None:
    """T9: though both are of one cell, and the window merges."""
    rule = window(0)
    rule.open(ALIGNED + 1)
    for number in range(1, 500):
        rule.take(1, ALIGNED + 1 + number)

    rule.give(1, ALIGNED)

    assert rule.used == 499


# Giving up ----------------------------------------------------------------------------------------


@given(st.data())
def test_a_cancelled_grant_of_a_window_leaves_no_trace(data: st.DataObject) -> None:
    """T5: given any history, when one more is granted and undone, at once or after others, then all
    is as without it.
    """
    limit = data.draw(windows())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    counted(crowd)
    without = twin(crowd.gate)
    cost, others = (
        data.draw(st.integers(1, limit.amount)),
        data.draw(st.lists(st.integers(1, limit.amount), max_size=5)),
    )
    grant = crowd.gate.acquire(crowd.now, "regrets it", {"requests": cost}, reserve_ahead=10**12)
    assert isinstance(grant, Grant)
    followers = [
        crowd.gate.acquire(crowd.now, "stays", {"requests": other}, reserve_ahead=10**12)
        for other in others
    ]

    crowd.gate.cancel(crowd.now, {"requests": cost}, grant.t)

    for follower, other in zip(followers, others, strict=True):
        without.rules.all[0].take(other, follower.t)
    for moment in (
        max(answer.t for answer in (grant, *followers)) + late for late in (0, 1, lengthened(limit))
    ):
        assert crowd.gate.rules.all[0].left(moment) == without.rules.all[0].left(moment)


# Clocks -------------------------------------------------------------------------------------------


@given(st.data())
def test_a_jump_of_the_clock_is_worth_one_amount_of_a_window_at_most(data: st.DataObject) -> None:
    """T6: given any history, when the clock jumps ahead by years, then `amount` pass, and
    no more.
    """
    limit = data.draw(windows())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    counted(crowd)
    crowd.time(data.draw(st.integers(0, 10 * 365 * 86_400 * SECOND)))

    granted = sum(isinstance(crowd.ask(1, 0), Grant) for _ in range(limit.amount + 1))

    assert granted <= limit.amount


# New limits ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_new_window_keeps_the_counts_of_the_former(data: st.DataObject) -> None:
    """T9: given any history, when amount and period are changed, then counted entries count on,
    until they are a new period old.
    """
    former, limit = data.draw(windows()), data.draw(windows())
    crowd = Crowd(former).play(data.draw(events([former])))
    rule = counted(crowd)
    now = crowd.gate.clamp(crowd.now)
    rule.refresh(now)
    counting = [Passed(t, cost, 0) for t, cost in entries(rule) if cost]

    crowd.gate.follow(crowd.now, rules_of([limit]))
    crowd.ledger = {}
    crowd.play(event for event in data.draw(events([limit])) if event[0] in ("ask", "time"))

    for passed in crowd.passed:
        inside = [
            other.cost
            for other in counting + crowd.passed
            if passed.t - lengthened(limit) < other.t <= passed.t
        ]
        assert sum(inside) <= limit.amount


# Forgetting ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_window_may_be_forgotten_once_nothing_in_it_counts(data: st.DataObject) -> None:
    """T12: given any history, then from `idle_at` on the window is as a new one, and a tick before
    that something counted.
    """
    limit = data.draw(windows())
    crowd = Crowd(limit).play(
        [event for event in data.draw(events([limit])) if event[0] in ("ask", "time")]
    )
    rule = counted(crowd)

    idle = rule.idle_at()

    assert idle == 0 or twin(crowd.gate).rules.all[0].left(idle - 1) < limit.amount
    assert rule.left(max(idle, crowd.gate.t)) == limit.amount


# The hot path -------------------------------------------------------------------------------------


@given(st.data())
def test_admit_of_a_window_does_the_same_as_ready_and_take(data: st.DataObject) -> None:
    """T1, T8: given any history, when one is asked for, then `admit` says and does the same as
    `ready` and `take`.
    """
    limit = data.draw(windows())
    gate = Crowd(limit).play(data.draw(events([limit]))).gate
    now = gate.clamp(gate.t + data.draw(st.integers(0, 2 * lengthened(limit))))
    short, long = twin(gate), twin(gate)

    admitted = short.rules.all[0].admit(now)

    assert admitted == (long.rules.all[0].ready(1, now) == now)
    if admitted:
        long.rules.all[0].take(1, now)
    assert same(short, long)


@given(crowded())
def test_admit_of_a_crowded_window_does_the_same_as_ready_and_take(
    scene: tuple[Rule, Exact, list[tuple[int, int]]],
) -> None:
    """T1, T8, S9: also when it merges. `admit` forgets later, and that changes nothing."""
    quick, _, asked = scene
    plain, now = Rule("requests", quick.capacity, quick.per), START
    for gap, _ in asked:
        now += gap
        assert quick.admit(now) == (plain.ready(1, now) == now)
        if plain.ready(1, now) == now:
            plain.take(1, now)

    assert quick.left(now) == plain.left(now)
    assert (entries(quick), quick.merges_until) == (entries(plain), plain.merges_until)


@pytest.mark.parametrize("amount", [1, 2, 3, 5])
def test_admit_of_a_full_window_forgets_the_entry_that_expires(amount: int) -> None:
    """T1: given one call for each token that comes free, it forgets as `take` does, also for
    `drain`.
    """
    quick, plain = Rule("requests", amount, SECOND), Rule("requests", amount, SECOND)
    for number in range(3 * amount):
        now = START + number * SECOND // amount
        assert quick.admit(now)
        plain.take(1, now)
    assert quick.freed_at == plain.freed_at > START


WAYS: dict[str, Callable[[Rule, int], Any]] = {
    "take": lambda rule, t: rule.take(1, t),
    "admit": Rule.admit,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_full_window_keeps_few_forgotten_entries(way: str) -> None:
    """S9: given one call for each token that comes free, the log stays short."""
    rule = Rule("requests", 3, SECOND)
    for number in range(100):
        WAYS[way](rule, START + number * SECOND // 3 + number)
        assert len(rule.log) <= 2 * (3 + 17)
    assert len(entries(rule)) <= 4


@pytest.mark.parametrize("way", WAYS)
def test_entries_are_exact_again_after_a_period_of_merging(way: str) -> None:
    """T2: from that very moment on."""
    rule = window(*MERGED)
    last, until = rule.last, rule.merges_until
    while rule.last < until - 1:
        rule.take(1, min(rule.last + CELL, until - 1))

    before = len(entries(rule))
    WAYS[way](rule, until)

    assert last < until
    assert entries(rule)[-2:] == [(until - 1, 1), (until, 1)]
    assert len(entries(rule)) <= before + 1


def test_rules_of_one_declaration_share_no_state() -> None:
    """A declaration is not a state: two names held to the same limits share nothing."""
    declared = Declaration(rules_of([Window(1, per=1)]))

    declared.rules()[0].take(1, START)

    assert declared.rules()[0].left(START) == 1
