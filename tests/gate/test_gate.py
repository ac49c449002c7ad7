"""Several limits together: all or nothing, in the order of arrival, at an exact moment, and a
refusal is free.
"""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.gate.compile import rules_of
from headgate.gate.concurrency import NEVER
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.gate import Gate, Grant, Refuse, Wait
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from tests.gate import test_fixed_window, test_sliding_window, test_token_bucket
from tests.gate.crowd import (
    SECOND,
    START,
    Crowd,
    events,
    kinds,
    largest,
    permits,
    quotas,
    rated,
    rates,
    same,
    twin,
    windows,
)

MIXTURES = st.lists(kinds, min_size=1, max_size=3)
RATED_MIXTURES = st.lists(rated, min_size=1, max_size=3)
HUNDRED = 100
RESERVES_AHEAD = st.sampled_from([0, 0, 50_000, SECOND])


def assert_never_over(limit: Limit, crowd: Crowd) -> None:
    match limit:
        case Rate():
            test_token_bucket.assert_never_over(limit, crowd)
        case Window():
            test_sliding_window.assert_never_over(limit, crowd)
        case Quota():
            test_fixed_window.assert_never_over(limit, crowd)


# Together -----------------------------------------------------------------------------------------


@given(st.data())
def test_each_limit_holds_as_if_it_were_alone_and_the_order_is_kept(data: st.DataObject) -> None:
    """T1, T3, S1, S5, S6: given any limits and any crowd, then no limit is exceeded, and moments,
    fences and places only grow.
    """
    limits = data.draw(MIXTURES)
    crowd = Crowd(*limits, reserve_ahead=data.draw(RESERVES_AHEAD))
    for event in data.draw(events(limits)):
        crowd.play([event])
        for limit, rule in zip(limits, crowd.gate.rules.all, strict=True):
            if isinstance(limit, Concurrency):
                assert sum(crowd.asked[caller] for caller in crowd.held) <= limit.capacity
                assert rule.left(crowd.now) == limit.capacity - sum(
                    crowd.asked[caller] for caller in crowd.held
                )

    for limit in limits:
        assert_never_over(limit, crowd)
    assert list(crowd.ledger) == sorted(crowd.ledger)
    assert all(
        before.t <= after.t and before.fence < after.fence
        for before, after in pairwise(crowd.passed)
    )


@given(st.data())
def test_no_caller_waits_while_all_limits_have_room(data: st.DataObject) -> None:
    """T2: given any limits and any crowd, then at no moment before that of the head do all limits
    have its cost.
    """
    limits = data.draw(MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    crowd.queue_up(data.draw(st.integers(1, largest(limits))))
    _, costs = next(iter(crowd.gate.queue.values()))

    moment = crowd.gate.next_at()

    assert moment > crowd.now
    earliest = max(crowd.gate.t, crowd.gate.not_before)
    for t in {
        earliest,
        moment - 1,
        data.draw(st.integers(earliest, min(moment - 1, earliest + 10**10))),
    } - {earliest - 1}:
        assert any(
            rule.ready(cost, t) != t for rule, cost in zip(crowd.gate.rules.all, costs, strict=True)
        )


def test_an_acquire_takes_from_all_limits_or_from_none() -> None:
    """T8: given a full bucket beside an empty one, when the second refuses a caller, then the first
    has lost nothing.
    """
    gate = Gate(rules_of([Rate(5, per=1), Rate(100, per=60, unit="tokens", initial=0)]), START)

    refused = gate.acquire(START, "asks", {"tokens": 50}, max_sleep=0)

    assert refused == Refuse(START + 30 * SECOND, full=False)
    assert [rule.left(START) for rule in gate.rules.all] == [5, 0]


def test_a_caller_does_not_wait_for_a_unit_that_it_does_not_ask_for() -> None:
    """T2: given that no tokens are left, when a caller comes that needs none, then it passes."""
    gate = Gate(rules_of([Rate(5, per=1), Rate(100, per=60, unit="tokens", initial=0)]), START)

    assert isinstance(gate.acquire(START, "needs none", {}, max_sleep=0), Grant)


@given(st.data())
def test_the_gate_always_knows_the_cost_of_its_whole_queue(data: st.DataObject) -> None:
    """S9: given any crowd and any change of limits, then an estimate need not walk the queue: its
    sums are kept to the token.
    """
    limits, others = data.draw(MIXTURES), data.draw(MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    for _ in range(2):
        sums = [
            sum(costs[index] for _, costs in crowd.gate.queue.values())
            for index in range(len(crowd.gate.rules.all))
        ]
        assert [crowd.gate.waiting[index] for index, _ in crowd.gate.rules.rated] == [
            sums[index] for index, _ in crowd.gate.rules.rated
        ]
        crowd.gate.follow(crowd.now, rules_of(others))


# The moment, and refusals -------------------------------------------------------------------------


@given(st.data())
def test_a_refusal_names_the_moment_and_changes_nothing(data: st.DataObject) -> None:
    """T4, T8: given any limits and any history, when a caller is refused until t, then all is as
    before. A tick before t it is refused again, and at t it passes.
    """
    limits = data.draw(RATED_MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    cost = data.draw(st.integers(1, largest(limits)))
    crowd.disperse()
    units, before = crowd.units(cost), twin(crowd.gate)

    while not isinstance(refused := crowd.ask(cost, 0), Refuse):
        before = twin(crowd.gate)

    before.clamp(crowd.now)
    assert same(crowd.gate, before)
    moment = crowd.gate.ready(crowd.gate.rules.costs(units))
    assume(moment < NEVER)
    assert refused.t == moment
    if moment > max(before.t, before.not_before) + 1:
        assert isinstance(
            twin(before).acquire(refused.t - 1, "comes too early", units, max_sleep=0), Refuse
        )
    assert isinstance(twin(before).acquire(refused.t, "comes then", units, max_sleep=0), Grant)


def test_a_refusal_names_a_moment_at_which_all_limits_are_open() -> None:
    """T4: given a token in five seconds, and a quota that keeps that very moment clear, then the
    refusal names the next window.
    """
    crowd = Crowd(Rate(1, per=5), Quota(100, per=6, anchor=START / SECOND, slack=2))
    crowd.ask()

    assert crowd.ask(1, 0) == Refuse(START + 6 * SECOND, full=False)


@given(st.data())
def test_a_refusal_behind_a_queue_changes_nothing_either(data: st.DataObject) -> None:
    """T8, S9: given any limits and a queue, when one more is refused, for `max_sleep` or for
    `max_waiters`, then all is as before.
    """
    limits = data.draw(MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    crowd.queue_up()
    gate, units = crowd.gate, crowd.units(1)
    waiting = len(gate.queue)
    before = twin(gate)
    before.clamp(crowd.now)

    impatient = gate.acquire(crowd.now, "impatient", units, max_sleep=0)
    crowded_out = gate.acquire(crowd.now, "crowded out", units, max_waiters=waiting)

    assert (impatient, crowded_out) == (
        Refuse(impatient.t, full=False),
        Refuse(impatient.t, full=True),
    )
    assert same(gate, before)
    assert isinstance(
        gate.acquire(crowd.now, "one more is allowed", units, max_waiters=waiting + 1), Wait
    )


@pytest.mark.parametrize(
    "limit",
    [
        Rate(7, per=3),
        Rate(3, per=1, steps=True),
        Rate(20, per=1, capacity=10, steps=True),
        Window(7, per=3),
        Quota(7, per=3),
    ],
)
def test_the_estimate_of_a_waiter_is_the_moment_of_its_grant(limit: Limit) -> None:
    """T4: given a queue behind a spent limit, when a caller comes, then its estimate is the very
    moment at which it will pass.
    """
    crowd = Crowd(limit)
    answers = [crowd.ask(1) for _ in range(50)]

    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)

    assert [passed.t for passed in crowd.passed] == [answer.t for answer in answers]
    positions = [answer.position for answer in answers if isinstance(answer, Wait)]
    assert positions == list(range(len(positions)))


def test_max_sleep_is_compared_with_the_wait_for_the_whole_queue() -> None:
    """T4, T8: given one a second and three waiters, when the fourth has a tick less than four
    seconds, then it is refused.
    """
    crowd = Crowd(Rate(1, per=1)).play([("ask", 1, None)] * 4)

    assert crowd.ask(1, 4 * SECOND - 1) == Refuse(START + 4 * SECOND, full=False)
    assert crowd.ask(1, 4 * SECOND) == Wait(START + 4 * SECOND, 3)


# Bounds -------------------------------------------------------------------------------------------


class Asked(FixedWindowRule):
    """A quota that counts how often it is asked, by all quotas together."""

    times: ClassVar[int] = 0

    def ready(self, cost: int, t: int) -> int:
        Asked.times += 1
        return super().ready(cost, t)


def never_meeting() -> list[Quota]:
    """Two quotas of a second, each open for its first tenth, half a second apart."""
    return [Quota(5, per=1, slack=0.9), Quota(5, per=1, anchor=0.5, slack=0.9)]


def test_quotas_that_never_meet_are_given_up_after_a_hundred_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S9: given two quotas that are never open together, when a caller asks, then the work ends,
    and no caller ever passes.
    """
    monkeypatch.setattr(Asked, "times", 0)
    rules = [
        Asked(rule.unit, rule.capacity, rule.per, rule.anchor, rule.slack)
        for rule in rules_of(never_meeting())
    ]
    gate = Gate(rules, START)

    assert isinstance(gate.acquire(START, "asks", {}, max_sleep=0), Refuse)
    assert isinstance(gate.acquire(START, "waits", {}), Wait)
    assert Asked.times <= 2 * len(rules) * (HUNDRED + 1)
    assert gate.next_at() == NEVER
    assert gate.advance(START + 3600 * SECOND) == []


def test_an_estimate_of_never_stays_exactly_never() -> None:
    """S9: given a permit that is held and a quota behind it, then NEVER is said, and not a little
    more than that.
    """
    gate = Gate(rules_of([Concurrency(1), Quota(3, per=0.333333, slack=0.1)]), START)
    gate.acquire(START, "holds", {})

    assert gate.ready(gate.rules.usual) == NEVER


# Giving up ----------------------------------------------------------------------------------------


@given(st.data())
def test_a_waiter_that_gives_up_leaves_no_trace_in_the_queue(data: st.DataObject) -> None:
    """T5, T10: given any limits and a queue, when one waiter leaves, then the others pass as if it
    had never come. Leaving twice is leaving once.
    """
    limits = data.draw(RATED_MIXTURES)
    assume(all(not isinstance(limit, Quota) or not limit.slack for limit in limits))
    crowd = Crowd(*limits).play(data.draw(events(limits, 20)))
    without = twin(crowd.gate)
    costs = data.draw(st.lists(st.integers(1, largest(limits)), min_size=2, max_size=8))
    regrets = data.draw(st.integers(0, len(costs) - 1))
    for number, cost in enumerate(costs):
        units = crowd.units(cost)
        crowd.gate.join(f"caller {number}", units, crowd.gate.rules.costs(units))
        if number != regrets:
            without.join(f"caller {number}", units, without.rules.costs(units))

    left = [crowd.gate.leave(f"caller {regrets}") for _ in range(2)]

    assert left == [True, False]
    while without.queue:
        now = without.next_at()
        assert crowd.gate.advance(now) == without.advance(now)
    assert not crowd.gate.queue


# Clocks -------------------------------------------------------------------------------------------


@given(st.data())
def test_a_clock_that_steps_back_counts_as_one_that_stands_still(data: st.DataObject) -> None:
    """T6: given any limits and a clock that steps back now and then, then all goes as if it had
    stood still instead.
    """
    limits = data.draw(MIXTURES)
    stepping, standing = Crowd(*limits), Crowd(*limits)
    ahead = 0
    for event in data.draw(events(limits)):
        stepping.play([event])
        if event[0] == "time":
            ahead = max(ahead, stepping.now - START)
            event = ("time", START + ahead - standing.now)
        standing.play([event])

    assert stepping.passed == standing.passed
    stepping.gate.clamp(standing.now)
    assert same(stepping.gate, standing.gate)


# New limits ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_waiter_whose_cost_exceeds_the_new_limits_is_named(
    data: st.DataObject,
) -> None:
    """T7: given a queue, when smaller limits are declared, then each waiter that can never pass is
    named, for the caller to take it out.
    """
    limits, smaller = data.draw(RATED_MIXTURES), data.draw(MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    waiting = list(crowd.gate.queue)

    never = crowd.gate.follow(crowd.now, rules_of(smaller))

    assert list(crowd.gate.queue) == waiting
    asked = {
        caller: crowd.gate.rules.costs({"requests": crowd.asked[caller]}) for caller in waiting
    }
    assert never == [caller for caller in waiting if crowd.gate.rules.never(asked[caller])]
    for caller in never:
        assert any(
            cost > rule.capacity
            for cost, rule in zip(asked[caller], crowd.gate.rules.all, strict=True)
        )


def test_each_new_rule_continues_the_old_rule_of_its_kind_and_unit() -> None:
    """T9: given two buckets and a window, when the limits are turned round and one is added, then
    none starts anew but that.
    """
    gate = Gate(rules_of([Rate(10, per=60), Rate(100, per=3600), Window(10, per=60)]), START)
    for _ in range(10):
        gate.acquire(START, "asks", {})

    gate.follow(
        START,
        rules_of(
            [
                Window(8, per=60),
                Rate(20, per=60),
                Rate(50, per=3600),
                Rate(5, per=60, unit="tokens"),
            ]
        ),
    )

    assert [rule.left(START) for rule in gate.rules.all] == [-2, 0, 50, 5]


@given(st.data())
def test_a_limit_of_another_kind_starts_with_the_used_amount(data: st.DataObject) -> None:
    """T9: given any history and a debt, when the limit is of another kind, then as much of it is
    used: at most all, and the debt.
    """
    former, limit = data.draw(rated), data.draw(rated)
    assume(type(former) is not type(limit))
    crowd = Crowd(former).play(data.draw(events([former])))
    crowd.gate.settle(
        crowd.now, {"requests": data.draw(st.sampled_from([0, 0, 3, 40]))}, crowd.gate.t
    )
    now = max(crowd.gate.clamp(crowd.now), crowd.gate.not_before)
    old, fresh = twin(crowd.gate).rules.all[0], rules_of([limit])[0]
    fresh.open(now)
    left = old.left(now)

    crowd.gate.follow(crowd.now, rules_of([limit]))

    used = old.capacity - left
    assert crowd.gate.rules.all[0].left(now) == min(
        fresh.left(now), max(fresh.capacity - used, min(0, left))
    )


def test_limits_that_change_their_kind_over_and_over_grant_no_extra_tokens() -> None:
    """T1, T9: given 10 of each kind, when they take the place of one another over and over, then 10
    pass in all.
    """
    crowd = Crowd(Rate(10, per=60))
    for limit in [
        Window(10, per=60),
        Quota(10, per=10**6),
        Rate(10, per=60, steps=True),
        Window(10, per=60),
    ] * 3:
        crowd.play([("ask", 3, 0)] * 9 + [("ask", 1, 0)] * 9)
        crowd.gate.follow(crowd.now, rules_of([limit]))

    assert sum(passed.cost for passed in crowd.passed) == 10


def test_a_limit_added_beside_one_of_its_unit_starts_as_new() -> None:
    """T9: given a bucket that goes on, when a window is added to it, then the window has counted
    nothing.
    """
    crowd = Crowd(Rate(10, per=60)).play([("ask", 10, None)])

    crowd.gate.follow(
        crowd.now, rules_of([Window(10, per=60), Rate(10, per=60), Concurrency(5, unit="requests")])
    )

    assert [rule.left(crowd.now) for rule in crowd.gate.rules.all] == [10, 0, 5]


@pytest.mark.parametrize("back", ["undone", "settled"])
def test_a_grant_from_before_a_rate_gives_the_rate_nothing_back(back: str) -> None:
    """T9: given a grant of a time without a rate, when one is declared that begins empty, then
    nothing of it comes back.
    """
    gate = Gate(rules_of([Concurrency(2)]), START)
    granted = gate.acquire(START, "asks", {})
    gate.follow(START + 1, rules_of([Concurrency(2), Rate(10, per=10, initial=0)]))

    if back == "undone":
        gate.cancel(START + 1, {}, granted.t)
    else:
        gate.settle(START + 1, {"requests": -1}, granted.t)

    assert [rule.left(START + 1) for rule in gate.rules.all] == [2 if back == "undone" else 1, 0]


@pytest.mark.parametrize("back", ["undone", "settled"])
def test_a_grant_from_before_a_quota_gives_the_quota_nothing_back(back: str) -> None:
    """T1, T9: given a grant of a time without a quota, when one is declared, used, and replaced by
    another, then both count on.
    """
    gate = Gate(rules_of([Rate(100, per=1, unit="tokens")]), START)
    granted = gate.acquire(START, "asks", {"tokens": 1})
    gate.follow(START + 1, rules_of([Quota(2, per=60)]))
    taken = [gate.acquire(START + 1, who, {}) for who in ("comes", "comes, too")]
    gate.follow(START + 2, rules_of([Quota(3, per=60)]))

    for grant in (granted, taken[0]):
        if back == "undone":
            gate.cancel(START + 2, {}, grant.t)
        else:
            gate.settle(START + 2, {"requests": -1}, grant.t)

    assert gate.rules.all[0].left(START + 2) == 2


def test_reservations_ahead_stay_ahead_under_new_limits() -> None:
    """T3, T9: given a reservation in a second's time, when twice the rate is declared, then a new
    caller passes after it.
    """
    crowd = Crowd(Rate(1, per=1), reserve_ahead=SECOND).play([("ask", 1, None), ("ask", 1, None)])

    crowd.gate.follow(crowd.now, rules_of([Rate(2, per=1)]))

    assert crowd.ask(1, 0).t == START + SECOND + SECOND // 2


def test_a_reservation_ahead_is_counted_in_its_own_window() -> None:
    """T1, T9: given a reservation in the next window of a quota, when another quota is declared,
    then that window has counted it.
    """
    crowd = Crowd(Quota(1, per=1, anchor=START / SECOND), reserve_ahead=SECOND).play(
        [("ask", 1, None), ("ask", 1, None)]
    )

    crowd.gate.follow(crowd.now, rules_of([Quota(3, per=1, anchor=START / SECOND)]))

    assert crowd.gate.rules.all[0].left(START + SECOND) == 2


# Fences -------------------------------------------------------------------------------------------


def test_fences_grow_even_when_the_latest_changes_of_the_state_are_lost() -> None:
    """S5: given a state that is a few grants old, as on a replica, when it goes on later, then no
    fence is given twice.
    """
    gate = Gate(rules_of([Concurrency(100)]), START)
    replica = twin(gate)
    fences = [gate.acquire(START + 10 * number, number, {}).fence for number in range(10)]

    fences += [replica.acquire(START + 100 + 10 * number, number, {}).fence for number in range(10)]

    assert fences == sorted(set(fences))


def test_fences_grow_within_one_moment_too() -> None:
    """S5: given ten grants at one moment, then they have ten fences, in order."""
    crowd = Crowd(Rate(10, per=1)).play([("ask", 1, None)] * 10)

    fences = [passed.fence for passed in crowd.passed]

    assert fences == sorted(set(fences))
    assert fences[0] >= START


# The hot path -------------------------------------------------------------------------------------


@given(st.data())
def test_admit_and_at_once_decide_the_same_as_acquire(data: st.DataObject) -> None:
    """T1, T8: given any limits and history, when one of each is asked for with an empty queue, then
    `admit` says the same as `acquire`.
    """
    limits = data.draw(MIXTURES)
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    crowd.disperse()
    now = crowd.gate.clamp(crowd.now + data.draw(st.integers(0, SECOND)))
    shortest, short, long = (twin(crowd.gate) for _ in range(3))

    admitted, granted = shortest.rules.admit(now), short.at_once(now)

    answer = long.acquire(now, "asks", {}, max_sleep=0)
    assert granted == (answer if isinstance(answer, Grant) else None)
    assert admitted == (granted is not None)
    assert [rule.left(now) for rule in shortest.rules.all] == [
        rule.left(now) for rule in long.rules.all
    ]
    assert same(short, long)


def test_no_caller_passes_at_once_before_a_queue_or_when_the_clock_steps_back() -> None:
    """S6, T6: given room for one and a large cost that waits, or a clock that steps back, then no
    caller passes at once.
    """
    crowd = Crowd(Rate(5, per=1)).play([("ask", 4, None)])
    assert twin(crowd.gate).at_once(START - 1) is None

    crowd.ask(5)

    assert crowd.gate.at_once(START) is None
    assert crowd.gate.rules.all[0].left(START) == 1


# The questions of a store in this process ---------------------------------------------------------


def test_a_pause_is_over_at_its_end() -> None:
    gate = Gate(rules_of([Concurrency(1)]), START)
    gate.pause(START, SECOND)
    gate.clamp(START + SECOND - 1)
    assert gate.not_before > gate.t

    gate.clamp(START + SECOND)

    assert gate.not_before <= gate.t


def test_the_estimate_of_a_new_caller_counts_all_waiters() -> None:
    """T4: given a token a second and one waiter for the next, then there is another one a second
    later.
    """
    gate = Gate(rules_of([Rate(1, per=1)]), START)
    gate.acquire(START, "passes", {})
    assert gate.entry_at() == START + SECOND

    gate.acquire(START, "waits", {})

    assert gate.entry_at() == START + 2 * SECOND


# Forgetting ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_gate_may_be_forgotten_when_nothing_is_held_awaited_or_owed(data: st.DataObject) -> None:
    """T12, S8: given any history, then the gate is kept while a caller waits or holds. From
    `idle_at` on it is as a new one.
    """
    limits = data.draw(
        st.lists(
            st.one_of(rates(initial=False), windows(), quotas(), permits), min_size=1, max_size=3
        )
    )
    crowd = Crowd(*limits).play(data.draw(events(limits)))
    assert (crowd.gate.idle_at() == NEVER) >= bool(crowd.gate.queue)
    crowd.disperse()
    if any(isinstance(limit, Concurrency) for limit in limits):
        assert (crowd.gate.idle_at() == NEVER) == bool(crowd.held)
    for caller in crowd.held:
        crowd.gate.release(crowd.units(crowd.asked[caller]))

    idle = max(crowd.gate.idle_at(), crowd.gate.t, crowd.gate.not_before)

    fresh = Gate(rules_of(limits), idle)
    for now in (idle, idle + 1, idle + SECOND):
        for cost in range(1, largest(limits) + 1):
            found, new = (
                twin(gate).acquire(now, "asks", crowd.units(cost), max_sleep=0)
                for gate in (crowd.gate, fresh)
            )
            assert (type(found), found.t) == (type(new), new.t)
        assert [rule.left(now) for rule in crowd.gate.rules.all] == [
            rule.left(now) for rule in fresh.rules.all
        ]


def test_entry_is_a_guess_if_only_a_release_can_say() -> None:
    """Given permits that are held, then the entry is never, or the moment of the rate beside
    them if that is later than now.
    """
    gate = Gate(rules_of([Concurrency(1)]), START)
    gate.acquire(START, "holds", {})
    assert gate.entry_at() == NEVER

    gate = Gate(rules_of([Concurrency(1), Rate(1, per=10, capacity=1)]), START)
    gate.acquire(START, "holds", {})
    assert gate.entry_at() == START + 10 * SECOND
