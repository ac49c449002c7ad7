"""The calendar window: `amount` in each stretch of `per` since the anchor, and none in the slack at
its end.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from headgate.gate.compile import rules_of
from headgate.gate.fixed_window import FixedWindowRule as Rule
from headgate.gate.gate import Grant
from headgate.limits import Quota
from headgate.validation import microseconds
from tests.gate.crowd import SECOND, START, Crowd, events, quotas, same, twin

RESERVES_AHEAD = st.sampled_from([0, 0, 50_000, SECOND])
DAY = 86_400 * SECOND


def stretch(limit: Quota, t: int) -> int:
    """Which window a moment is in, by plain division."""
    return (t - microseconds(limit.origin)) // microseconds(limit.per)


def into(limit: Quota, t: int) -> int:
    """How far it is from the window's beginning."""
    return (t - microseconds(limit.origin)) % microseconds(limit.per)


def assert_never_over(limit: Quota, crowd: Crowd) -> None:
    """T1: no window has more than `amount`, and the slack before its end has none."""
    windows = Counter[int]()
    for grant in crowd.passed:
        windows[stretch(limit, grant.t)] += grant.cost
        assert into(limit, grant.t) < microseconds(limit.per) - microseconds(limit.slack)
    assert max(windows.values(), default=0) <= limit.amount


def counted(crowd: Crowd) -> Rule:
    """The rule, when no caller waits any more."""
    crowd.disperse()
    rule = crowd.gate.rules.all[0]
    assert isinstance(rule, Rule)
    return rule


# Never over ---------------------------------------------------------------------------------------


@given(st.data())
def test_no_window_has_more_than_the_amount(data: st.DataObject) -> None:
    """T1, T5: given any crowd that asks, gives up, pays back, and a clock that jumps, then no
    window has more than `amount`.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit, reserve_ahead=data.draw(RESERVES_AHEAD)).play(data.draw(events([limit])))

    assert_never_over(limit, crowd)


def test_windows_begin_at_midnight_or_where_they_are_anchored() -> None:
    """T1, T4: given a quota that is spent, then the next window is the next day of the calendar, or
    that of its anchor.
    """
    by_calendar, by_anchor = (
        Crowd(Quota(1, per=86_400)),
        Crowd(Quota(1, per=86_400, anchor=9 * 3600)),
    )
    by_calendar.ask()
    by_anchor.ask()

    midnight = START // DAY * DAY + DAY

    assert by_calendar.ask(1, 0).t == midnight
    assert by_anchor.ask(1, 0).t == midnight + 9 * 3600 * SECOND


# No slower ----------------------------------------------------------------------------------------


@given(quotas(), st.lists(st.integers(1, 12), min_size=1, max_size=50))
def test_each_caller_passes_in_the_first_window_with_room(limit: Quota, wished: list[int]) -> None:
    """T2, T3: given a crowd that waits, then each window is filled in order, from its first moment,
    before the next is begun.
    """
    costs = [min(cost, limit.amount) for cost in wished]
    crowd = Crowd(limit).play([("ask", cost, None) for cost in costs])

    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)

    closed = into(limit, START) >= microseconds(limit.per) - microseconds(limit.slack)
    window, used, expected = stretch(limit, START) + closed, 0, []
    for cost in costs:
        if used + cost > limit.amount:
            window, used = window + 1, 0
        used += cost
        expected.append(max(START, window * microseconds(limit.per) + microseconds(limit.origin)))
    assert [passed.t for passed in crowd.passed] == expected


# The moment ---------------------------------------------------------------------------------------


@given(st.data())
def test_the_moment_of_a_refusal_is_exact_for_a_quota(data: st.DataObject) -> None:
    """T4: given any history, then a cost that is refused until t is refused a tick before t, and
    granted at t.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    rule, now = counted(crowd), crowd.gate.clamp(0)
    cost = data.draw(st.integers(1, limit.amount))

    moment = rule.ready(cost, now)

    assert rule.ready(cost, moment) == moment
    assert moment == now or rule.ready(cost, moment - 1) == moment


@given(st.data())
def test_the_estimate_for_many_is_when_the_last_of_them_passes(data: st.DataObject) -> None:
    """T4: given any history, when a caller comes behind a queue of ones, then its estimate is the
    very moment at which it will pass.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    counted(crowd)
    many = data.draw(st.integers(1, 40))
    estimate = [crowd.ask(1).t for _ in range(many)]

    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)

    assert [passed.t for passed in crowd.passed[-many:]] == estimate


# Giving up ----------------------------------------------------------------------------------------


@given(st.data())
def test_a_cancelled_grant_of_a_quota_leaves_no_trace(data: st.DataObject) -> None:
    """T5: given any history, when one more is granted and undone at once, then there is as much
    left as before.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    rule = counted(crowd)
    cost = data.draw(st.integers(1, limit.amount))
    moment = rule.ready(cost, max(crowd.gate.clamp(crowd.now), crowd.gate.not_before))
    left = twin(crowd.gate).rules.all[0].left(moment)
    grant = crowd.gate.acquire(crowd.now, "regrets it", {"requests": cost}, reserve_ahead=10**15)
    assert isinstance(grant, Grant)

    crowd.gate.cancel(crowd.now, {"requests": cost}, grant.t)

    assert grant.t == moment
    assert rule.left(moment) == left


def test_a_grant_cancelled_in_the_next_window_gives_nothing_to_it() -> None:
    """T5: given a spent window that is over, when one of its calls is undone, then the next window
    has only its own.
    """
    crowd = Crowd(Quota(2, per=1))
    crowd.play([("ask", 2, None), ("time", SECOND), ("ask", 1, None)])

    crowd.gate.cancel(crowd.now, {"requests": 2}, START)

    assert crowd.gate.rules.all[0].left(crowd.now) == 1


# Clocks -------------------------------------------------------------------------------------------


@given(st.data())
def test_a_jump_of_the_clock_is_worth_one_amount_of_a_quota_at_most(data: st.DataObject) -> None:
    """T6: given any history, when the clock jumps ahead by years, then `amount` pass, and
    no more.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    counted(crowd)
    crowd.time(data.draw(st.integers(0, 10 * 365 * DAY)))

    granted = sum(isinstance(crowd.ask(1, 0), Grant) for _ in range(limit.amount + 1))

    assert granted <= limit.amount


# New limits ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_new_quota_keeps_the_used_part_of_the_former(data: st.DataObject) -> None:
    """T9: given any history, when the quota is changed, then of the window that runs as much is
    used as before.
    """
    former, limit = data.draw(quotas()), data.draw(quotas())
    crowd = Crowd(former).play(data.draw(events([former])))
    counted(crowd)
    used = former.amount - twin(crowd.gate).rules.all[0].left(
        max(crowd.gate.clamp(crowd.now), crowd.gate.not_before)
    )

    crowd.gate.follow(crowd.now, rules_of([limit]))

    now = max(crowd.gate.t, crowd.gate.not_before)
    assert crowd.gate.rules.all[0].left(now) == limit.amount - used
    assert crowd.gate.rules.all[0].ready(1, now) > now or used < limit.amount


# Forgetting ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_quota_may_be_forgotten_when_its_window_is_over(data: st.DataObject) -> None:
    """T12: given any history, then from `idle_at` on the quota is as a new one, and a tick before
    that something was used.
    """
    limit = data.draw(quotas())
    crowd = Crowd(limit).play(data.draw(events([limit])))
    rule = counted(crowd)

    idle = rule.idle_at()

    assert idle == 0 or twin(crowd.gate).rules.all[0].left(idle - 1) < limit.amount
    assert rule.left(max(idle, crowd.gate.t, crowd.gate.not_before)) == limit.amount


# The hot path -------------------------------------------------------------------------------------


@given(st.data())
def test_admit_of_a_quota_does_the_same_as_ready_and_take(data: st.DataObject) -> None:
    """T1, T8: given any history, when one is asked for, then `admit` says and does the same as
    `ready` and `take`.
    """
    limit = data.draw(quotas())
    gate = Crowd(limit).play(data.draw(events([limit]))).gate
    now = gate.clamp(gate.t + data.draw(st.integers(0, 2 * microseconds(limit.per))))
    short, long = twin(gate), twin(gate)

    admitted = short.rules.all[0].admit(now)

    assert admitted == (long.rules.all[0].ready(1, now) == now)
    if admitted:
        long.rules.all[0].take(1, now)
    assert same(short, long)
