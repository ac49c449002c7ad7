"""The token bucket: never more than B + r d in any interval, no slower than that, and exact for
ever.
"""

from __future__ import annotations

import random
from copy import deepcopy
from fractions import Fraction
from itertools import accumulate, pairwise, product
from math import ceil
from operator import ge, itemgetter

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.gate.compile import Declaration, lengthened, rule_of, rules_of
from headgate.gate.gate import Gate, Grant
from headgate.gate.token_bucket import MARKS, TokenBucketRule
from headgate.limits import Rate
from headgate.validation import rational
from tests.gate.crowd import SECOND, START, Crowd, Event, amounts, events, rates, same, twin

RESERVES_AHEAD = st.sampled_from([0, 0, 50_000, SECOND])
HOUR = 3600
LONG_RUN = 10_000_000
COARSE = Rate(0.007, per=HOUR, capacity=12)  # a tick is ten microseconds


def tokens_a_microsecond(rate: Rate) -> Fraction:
    return rational(rate.amount) / lengthened(rate)


def bucket_at_start(rate: Rate) -> TokenBucketRule:
    rule = rule_of(rate)
    assert isinstance(rule, TokenBucketRule)
    rule.open(START)
    return rule


def tick_of(rate: Rate) -> int:
    """Between two refills, in microseconds."""
    return bucket_at_start(rate).tick


def assert_never_over(rate: Rate, crowd: Crowd) -> None:
    """T1: in any interval of d microseconds at most B + r d, and one tick."""
    passed = crowd.passed
    total = [0, *accumulate(grant.cost for grant in passed)]
    for first in range(len(passed)):
        for last in range(first, len(passed)):
            came = tokens_a_microsecond(rate) * (passed[last].t - passed[first].t + tick_of(rate))
            assert total[last + 1] - total[first] <= rate.burst + came, (first, last, passed)


def empty(rate: Rate, now: int = START) -> Crowd:
    """A caller has just taken all."""
    crowd = Crowd(rate, now=now)
    assert isinstance(crowd.ask(rate.burst), Grant)
    return crowd


def pass_all(crowd: Crowd) -> None:
    """A caller looks whenever the head of the queue could pass."""
    while crowd.gate.queue:
        crowd.time(crowd.gate.next_at() - crowd.now)


def times(crowd: Crowd) -> list[int]:
    """The moments that were granted, since the start."""
    return [passed.t - START for passed in crowd.passed]


# Never over ---------------------------------------------------------------------------------------


@given(st.data())
def test_no_interval_has_more_than_the_burst_and_the_refill_of_its_time(
    data: st.DataObject,
) -> None:
    """T1, T5: given any crowd that asks, gives up and pays back, and a clock that jumps, then no
    interval exceeds B + r d.
    """
    rate = data.draw(rates())
    crowd = Crowd(rate, reserve_ahead=data.draw(RESERVES_AHEAD)).play(data.draw(events([rate])))

    assert_never_over(rate, crowd)


@given(st.data())
def test_a_cancelled_reservation_frees_no_more_than_it_had_taken(data: st.DataObject) -> None:
    """T1, T5: given reservations far ahead, when any of them are cancelled in any order, then no
    interval has more than B + r d.
    """
    rate = data.draw(rates())
    crowd = Crowd(rate, reserve_ahead=10 * lengthened(rate))
    costs = st.integers(1, rate.burst)
    asking = st.tuples(st.just("ask"), costs, st.none())
    undoing = st.tuples(st.just("cancel"), st.integers(0, 9))
    waiting = st.tuples(st.just("time"), st.integers(0, lengthened(rate)))

    crowd.play(data.draw(st.lists(st.one_of(asking, asking, undoing, waiting), max_size=30)))

    assert_never_over(rate, crowd)


def test_a_settlement_behind_reservations_grants_no_extra_tokens() -> None:
    """T1: given a reservation that needs a full bucket, when a call that is over pays back, then
    the bucket would have overflowed.
    """
    rate = Rate(5, per=0.5)
    crowd = Crowd(rate, reserve_ahead=SECOND).play(
        [("ask", 5, None), ("ask", 5, None), ("time", 100_000), ("pay_back", 1, 5)]
    )

    crowd.play([("ask", 5, None)])

    assert times(crowd) == [0, 500_000, 1_000_000]
    assert_never_over(rate, crowd)


def test_two_bursts_of_a_rate_in_steps_are_a_whole_period_apart() -> None:
    """T1: given a full bucket whose step would come in a moment, when it is emptied, then the step
    comes one period after that.
    """
    crowd = Crowd(Rate(10, per=1, steps=True)).play([("time", 999_999), ("ask", 10, None)])

    assert crowd.ask(10, 0).t == START + 999_999 + SECOND


# No slower ----------------------------------------------------------------------------------------


@given(
    rates(initial=False).filter(lambda rate: not rate.steps),
    st.lists(amounts, min_size=1, max_size=60),
)
@example(COARSE, [1])
def test_a_backlog_passes_exactly_at_the_rate(rate: Rate, wished: list[int]) -> None:
    """T2, T3: given a crowd behind an empty bucket, then each passes cost / r after the one before
    it, give or take a tick.
    """
    costs = [min(cost, rate.burst) for cost in wished]
    crowd = empty(rate)
    crowd.play([("ask", cost, None) for cost in costs])

    pass_all(crowd)

    gaps = [after.t - before.t for before, after in pairwise(crowd.passed)]
    rule, tick = bucket_at_start(rate), tick_of(rate)
    ideal = [Fraction(cost * rule.price * tick, rule.gain) for cost in costs]
    assert all(
        wish >= cost / tokens_a_microsecond(rate) for wish, cost in zip(ideal, costs, strict=True)
    )
    assert all(wish - tick < gap < wish + tick for wish, gap in zip(ideal, gaps, strict=True))
    assert all(map(ge, times(crowd)[1:], accumulate(ideal)))
    if max(costs) < rate.burst:  # nothing has run over at the brim: no tick is lost at all
        assert all(
            t < total + tick for t, total in zip(times(crowd)[1:], accumulate(ideal), strict=True)
        )


@given(
    rates(initial=False).filter(lambda rate: rate.steps), st.lists(amounts, min_size=1, max_size=60)
)
def test_a_backlog_in_steps_passes_with_the_first_step_that_brings_enough(
    rate: Rate, wished: list[int]
) -> None:
    """T2, T3: given a crowd behind an empty bucket in steps, then all callers that fit into a step
    pass with it, in order.
    """
    costs = [min(cost, rate.burst) for cost in wished]
    crowd = empty(rate)
    crowd.play([("ask", cost, None) for cost in costs])

    pass_all(crowd)

    steps, level, expected = 0, Fraction(0), []
    for cost in costs:
        while level < cost:
            steps, level = steps + 1, min(Fraction(rate.burst), level + rational(rate.amount))
        level -= cost
        expected.append(steps * lengthened(rate))
    assert times(crowd)[1:] == expected


@settings(max_examples=30)
@given(
    rates(initial=False).filter(lambda rate: rate.amount + (rate.amount % 1 > 0) <= rate.burst)
)  # beside a fraction that is left
def test_over_a_long_run_no_part_of_the_rate_is_lost(rate: Rate) -> None:
    """T2: given a crowd that always waits, when 1,000 have passed, then that is 0.999 of the ideal
    number, but for a step begun.
    """
    crowd = empty(rate)
    crowd.play([("ask", 1, None)] * 1000)

    pass_all(crowd)

    ideal = tokens_a_microsecond(rate) * times(crowd)[-1]
    assert Fraction(999, 1000) * ideal <= 1000 + (rate.amount if rate.steps else 0)
    assert ideal >= 1000


# The moment ---------------------------------------------------------------------------------------


@given(st.data())
def test_the_moment_of_a_refusal_is_exact_for_a_rate(data: st.DataObject) -> None:
    """T4, T8: given any history, then a cost that is refused until t is refused a tick before t,
    and granted at t.
    """
    rate = data.draw(rates())
    crowd = Crowd(rate).play(data.draw(events([rate])))
    crowd.disperse()
    gate = crowd.gate
    cost = data.draw(st.integers(1, rate.burst))
    rule = gate.rules.all[0]

    moment = rule.ready(cost, gate.clamp(0))

    assert rule.ready(cost, moment) == moment
    assert moment == gate.t or rule.ready(cost, moment - 1) == moment


def test_a_debt_in_steps_that_overfill_is_paid_by_whole_steps() -> None:
    """T4: given steps that bring more than fits, and a debt of two of them, then the refusal names
    the second step.
    """
    crowd = Crowd(Rate(20, per=1, capacity=10, steps=True)).play([("ask", 10, None)])
    crowd.gate.settle(START, {"requests": 25}, START)

    refused = crowd.ask(10, 0)

    assert refused.t == START + 2 * SECOND
    assert isinstance(
        twin(crowd.gate).acquire(refused.t, "who comes then", {"requests": 10}, max_sleep=0), Grant
    )


def test_a_caller_refused_for_its_max_sleep_gets_the_wait_and_pays_nothing() -> None:
    """T4, T8: given 3 tokens and 2 a second, when a caller asks for 7 within a second, then it is
    refused for exactly two.
    """
    crowd = empty(Rate(2, per=1, capacity=10)).play([("time", 1_500_000)])
    before = twin(crowd.gate)

    refused = crowd.ask(7, SECOND)

    before.clamp(crowd.now)
    assert refused.t == crowd.now + 2 * SECOND
    assert same(crowd.gate, before)


# Giving up ----------------------------------------------------------------------------------------


@given(st.data())
def test_cancelling_the_last_reservation_gives_it_back_in_full(data: st.DataObject) -> None:
    """T5: given any history, when the next caller with a reservation gives up, then the bucket is
    as it would have been without.
    """
    rate = data.draw(rates())
    crowd = Crowd(rate).play(data.draw(events([rate])))
    crowd.disperse()
    gate = crowd.gate
    untouched = twin(gate)
    cost = data.draw(st.integers(1, rate.burst))
    grant = gate.acquire(gate.t, "regrets it", {"requests": cost}, reserve_ahead=10**15)
    assert isinstance(grant, Grant)

    gate.cancel(gate.t, {"requests": cost}, grant.t)

    for moment in (grant.t, grant.t + 1, grant.t + lengthened(rate)):
        assert [rule.left(moment) for rule in twin(gate).rules.all] == [
            rule.left(moment) for rule in twin(untouched).rules.all
        ]


@pytest.mark.parametrize(
    ("costs", "back"),
    [
        ((1, 1), 1),  # the second would have found 2
        ((4, 3), 2),  # the second would have found 7, and the bucket holds 5
        ((4, 1), 4),
        ((3, 5), 0),  # the second needs a full bucket: all that the first left would have run over
        ((5, 5), 0),
    ],
)
def test_a_reservation_cancelled_before_a_later_one_gives_back_the_part_with_room(
    costs: tuple[int, int], back: int
) -> None:
    """T5: given an empty bucket for 5 and two reservations, when the first is undone, then no more
    comes back than without it. No less than its cost comes back, but for the later reservation.
    """
    crowd = empty(Rate(5, per=0.5))
    crowd.reserve_ahead = 2 * SECOND
    crowd.play([("ask", cost, None) for cost in costs])

    crowd.cancel(1)

    assert max(0, costs[0] - costs[1]) <= crowd.gate.rules.all[0].left(crowd.passed[-1].t) <= back


def level_without(rule: TokenBucketRule, takes: list[tuple[int, int]], now: int) -> Fraction:
    """The level at `now` of a bucket that was full at the start, had it been asked for these parts
    at these moments.

    It fills at each moment, not once in a tick.
    """
    level, at = Fraction(rule.size), START
    for t, parts in [*takes, (now, 0)]:
        level, at = min(rule.size, level + Fraction((t - at) * rule.gain, rule.tick)) - parts, t
    return level


@given(
    rates(initial=False).filter(lambda rate: not rate.steps),
    st.lists(st.tuples(st.integers(0, 999), st.integers(0, 11)), min_size=2, max_size=20),
    st.lists(st.tuples(st.integers(0, 19), st.integers(-12, 12)), min_size=1, max_size=6),
)
@example(COARSE, [(0, 0), (0, 0), (0, 10)], [(0, 0)])
@example(Rate(0.007, per=HOUR, capacity=10, slack=0.0005), [(0, 0), (5, 0)], [(0, 1)])
def test_a_settlement_leaves_the_bucket_as_if_the_real_cost_had_been_taken(
    rate: Rate, asked: list[tuple[int, int]], backs: list[tuple[int, int]]
) -> None:
    """T1, T5: given calls that settle for less than they took, or for more, then the bucket is no
    fuller than if they had taken that at once. If none took more, it is less full by a sixteenth at
    most for each of them.
    """
    rule = bucket_at_start(rate)
    takes, now = [], START
    for pause, cost in asked:
        parts = (1 + cost % rate.burst) * rule.price
        now = rule.ready(parts // rule.price, now + pause * lengthened(rate) // 500)
        rule.take(parts // rule.price, now)
        takes.append((now, parts))
    now += lengthened(rate) // 7
    for number, (pick, most) in enumerate(backs, 1):
        t, parts = takes[pick % len(takes)]
        back = min(most, parts // rule.price)
        takes[pick % len(takes)] = t, parts - back * rule.price

        rule.settle(-back, t, now)

        exact, tick = level_without(rule, takes, now), rule.gain if rule.tick > 1 else 0
        assert rule.level <= exact + tick  # a full bucket begins its next tick at once
        if min(backs, key=itemgetter(1))[1] >= 0:
            assert rule.level > exact - number * rule.grain - tick


def test_a_call_is_cancelled_in_full_though_others_have_followed() -> None:
    """T5: given room for all of it ever since, when a call that was never made is undone, then all
    of it is there again.
    """
    crowd = Crowd(Rate(5, per=HOUR)).play(
        [("ask", 2, None), ("time", 10), ("ask", 1, None), ("time", 10)]
    )

    crowd.cancel(1)

    assert crowd.gate.rules.all[0].left(crowd.now) == 4


def test_overflowed_tokens_do_not_come_back() -> None:
    """T1, T5: given a bucket that was full before it was emptied, when a call of before that pays
    back, then nothing comes.
    """
    crowd = Crowd(Rate(10, per=1)).play(
        [("ask", 10, None), ("time", SECOND), ("ask", 10, None), ("time", 1_000)]
    )

    crowd.pay_back(1, 10)

    assert crowd.gate.rules.all[0].left(crowd.now) == 0


def test_settlements_of_almost_everything_keep_few_marks() -> None:
    """S9, T1: given calls that pay back nearly all, each after a small one, then the bucket keeps
    16 marks at most. It grants no extra tokens.
    """
    rate = Rate(1_000, per=HOUR)
    crowd = Crowd(rate)
    for _ in range(50):
        crowd.play(
            [
                ("ask", 63, None),
                ("time", 1),
                ("ask", 1, None),
                ("time", 1),
                ("pay_back", 1, 62),
                ("time", 1),
            ]
        )
        rule = crowd.gate.rules.all[0]
        assert isinstance(rule, TokenBucketRule)
        assert len(rule.marks) <= MARKS

    assert_never_over(rate, crowd)
    assert crowd.gate.rules.all[0].left(crowd.now) == 1_000 - 50 * 2


def test_a_bucket_remembers_many_levels_in_few_marks() -> None:
    """S9: given 5,000 calls from a full bucket, with any settlements, then it remembers 16 levels
    at most.
    """
    crowd = Crowd(Rate(5_000, per=HOUR))
    for number in range(5_000):
        crowd.play([("ask", 1, None), ("time", 1), ("pay_back", number % 5, number % 2)])
        assert len(crowd.gate.rules.all[0].marks) <= MARKS


# Clocks -------------------------------------------------------------------------------------------


@given(st.data())
def test_a_jump_of_the_clock_is_worth_one_burst_at_most(data: st.DataObject) -> None:
    """T6: given any history, when the clock jumps ahead by years, then B tokens are there, and no
    more.
    """
    rate = data.draw(rates())
    crowd = Crowd(rate).play(data.draw(events([rate])))
    crowd.disperse()
    later = crowd.gate.t + data.draw(st.integers(0, 10 * 365 * 86_400 * SECOND))
    crowd.time(later - crowd.now)

    granted = sum(isinstance(crowd.ask(1, 0), Grant) for _ in range(rate.burst + 1))

    assert granted <= rate.burst


# New limits ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_new_rate_grants_no_extra_tokens_for_the_past(data: st.DataObject) -> None:
    """T9: given any history, when the rate is changed, then there are as many tokens as before, and
    more come at the new rate.
    """
    former, rate = data.draw(rates()), data.draw(rates())
    crowd = Crowd(former).play(data.draw(events([former])))
    crowd.disperse()
    left = twin(crowd.gate).rules.all[0].left(crowd.gate.clamp(crowd.now))

    crowd.gate.follow(crowd.now, rules_of([rate]))
    start, crowd.ledger = crowd.gate.t, {}
    assert crowd.gate.rules.all[0].left(start) == min(left, rate.burst)
    crowd.play(event for event in data.draw(events([rate])) if event[0] in ("ask", "time"))

    total = 0
    for passed in crowd.passed:
        total += passed.cost
        came = tokens_a_microsecond(rate) * (passed.t - start + tick_of(rate))
        assert total < left + 1 + came  # of the last token a part may have been there


@pytest.mark.parametrize(
    "rates",
    [
        (Rate(5, per=1, capacity=20, steps=True), Rate(5, per=1, capacity=21, steps=True)),
        (Rate(5, per=1, capacity=20, steps=True), Rate(6, per=1, capacity=20, steps=True)),
        (Rate(5, per=1, capacity=20, steps=True), Rate(10, per=2, capacity=20, steps=True)),
        (
            Rate(5, per=1, capacity=20, steps=True),
            Rate(5, per=1, capacity=20, slack=0.1, steps=True),
        ),
    ],
    ids=str,
)
def test_quick_changes_of_a_rate_in_steps_postpone_no_step(rates: tuple[Rate, Rate]) -> None:
    """T2, T9: given rates in steps that take turns four times a second, then in 40 s no more comes
    than each would bring. No less comes than the slower one alone would bring, but for a step
    begun.
    """
    crowd = empty(rates[0])
    due, slower = Fraction(0), min(map(tokens_a_microsecond, rates))
    for number in range(160):
        crowd.time(SECOND // 4)
        due += tokens_a_microsecond(rates[number % 2]) * SECOND / 4
        while isinstance(crowd.ask(1, 0), Grant):
            pass
        crowd.gate.follow(crowd.now, rules_of([rates[1 - number % 2]]))

    came = sum(passed.cost for passed in crowd.passed) - rates[0].burst
    assert slower * 40 * SECOND - max(rate.amount for rate in rates) <= came <= due


def test_a_running_step_counts_the_time_before_a_change_at_the_former_rate() -> None:
    """T9: given 9 of 10 s of a step of 10, when it is to bring 1,000, then those 9 s are worth
    exactly 9 of them.
    """
    crowd = empty(Rate(10, per=10, steps=True)).play([("time", 9 * SECOND)])

    crowd.gate.follow(crowd.now, rules_of([Rate(1_000, per=10, steps=True)]))

    assert crowd.ask(1, 0).t - crowd.now - 10 * SECOND * (1_000 - 9) // 1_000 in (0, 1)


def test_tokens_that_overflowed_at_the_former_rate_do_not_come_back_at_the_new() -> None:
    """T1, T9: given a bucket that was full before it was emptied, when the rate is changed, then
    nothing of before comes back.
    """
    crowd = Crowd(Rate(10, per=1)).play([("ask", 10, None), ("time", SECOND), ("ask", 10, None)])

    crowd.gate.follow(crowd.now, rules_of([Rate(10, per=2)]))
    crowd.pay_back(1, 10)

    assert crowd.gate.rules.all[0].left(crowd.now) == 0


# Exactness ----------------------------------------------------------------------------------------


@pytest.mark.proof
def test_ten_million_operations_do_not_drift_by_a_tick() -> None:
    """T11: given 7 tokens in 3 s, when a crowd asks 10^7 times, 40,009 microseconds apart, then all
    is as with exact fractions.

    All 10^7 operations are carried out, one by one, and 933,554 of them take a token; the oracle
    looks at every 100,000th. It needs no history: the bucket is never full again, so the passed and
    the remaining tokens are B + r t together.
    """
    rate = Rate(7, per=3, capacity=11)
    bucket = Gate(rules_of([rate]), START).rules.all[0]
    assert isinstance(bucket, TokenBucketRule)
    taken = 0
    for stretch in range(0, LONG_RUN, 100_000):
        moments = range(START + stretch * 40_009, START + (stretch + 100_000) * 40_009, 40_009)
        taken += sum(map(bucket.admit, moments))
        came = rate.burst + tokens_a_microsecond(rate) * (moments[-1] - START)
        assert taken == min(int(came), stretch + 100_000)
        assert Fraction(bucket.level, bucket.price) == came - taken
        assert bucket.ready(1, moments[-1]) == START + ceil(
            (taken + 1 - rate.burst) / tokens_a_microsecond(rate)
        )


@pytest.mark.parametrize(
    "rate",
    [
        Rate(7, 3, 11),
        Rate(1, 86_400, 3),
        Rate(999_983, 60, 10),
        Rate(10, 0.333333, 4, steps=True),
        Rate(3, 7, slack=0.001),
    ],
)
def test_an_irregular_crowd_does_not_drift_by_a_tick(rate: Rate) -> None:
    """T11: given any moments, costs and overflows, when 5,000 have asked, then each was answered as
    by exact fractions.
    """
    bucket, dice, now = rule_of(rate), random.Random(str(rate)), START
    bucket.open(now)
    tick, gain = (
        (tick_of(rate), Fraction(rate.amount)) if rate.steps else (1, tokens_a_microsecond(rate))
    )
    level, at = Fraction(rate.burst), now
    for _ in range(5_000):
        now += dice.choice(
            [
                0,
                1,
                dice.randrange(lengthened(rate)),
                dice.randrange(1 + lengthened(rate) // rate.amount),
            ]
        )
        cost = dice.randint(1, rate.burst)
        level, at = level + (now - at) // tick * gain, now - (now - at) % tick
        if level >= rate.burst:
            level, at = Fraction(rate.burst), now
        moment = now if level >= cost else at + ceil((cost - level) / gain) * tick
        assert bucket.ready(cost, now) == moment
        if moment == now or dice.random() < 0.1:
            bucket.take(cost, moment)
            level, at = level + (moment - at) // tick * gain, moment - (moment - at) % tick
            if level >= rate.burst:
                level, at = Fraction(rate.burst), moment
            level, now = level - cost, moment


# Forgetting ---------------------------------------------------------------------------------------


@given(st.data())
def test_a_bucket_may_be_forgotten_once_it_is_full(data: st.DataObject) -> None:
    """T12: given any history, then from `idle_at` on the bucket is as a new one, and a tick before
    it was not.
    """
    rate = data.draw(rates(initial=False))
    rule = Crowd(rate).play(data.draw(events([rate]))).gate.rules.all[0]
    assert isinstance(rule, TokenBucketRule)

    idle = rule.idle_at()

    before, then = Declaration([rule]).rules()[0], idle
    before.open(then)
    assert rule.level == rule.size or rule.at + (idle - rule.at - 1) // rule.tick * rule.tick < idle
    rule.refresh(then)
    assert rule.level == rule.size
    probe: list[Event] = [
        (cost, then + late)
        for late in (0, 1, lengthened(rate))
        for cost in range(1, rate.burst + 1)
    ]
    assert [rule.ready(*asked) for asked in probe] == [before.ready(*asked) for asked in probe]


class Interrupted(int):
    """A large integer in whose product a signal handler raises."""

    def __rmul__(self, other: int) -> int:
        raise InterruptedError


def test_a_handler_that_raises_in_a_product_adds_no_token() -> None:
    """T1, H1: the refill that it interrupted is not counted twice."""
    rule = TokenBucketRule("requests", 10, 1, 1, 5, 2)
    rule.open(START)
    rule.tick = Interrupted(5)
    with pytest.raises(InterruptedError):
        rule.refresh(START + 15)

    assert (rule.level, rule.at) == (2, START)


# The hot path -------------------------------------------------------------------------------------


@given(st.data())
def test_admit_of_a_bucket_does_the_same_as_refresh_ready_and_take(data: st.DataObject) -> None:
    """T1: given any history, when one token is asked for, then `admit` says and does the same as
    `refresh`, `ready` and `take`.
    """
    rate = data.draw(rates())
    gate = Crowd(rate).play(data.draw(events([rate]))).gate
    now = gate.t + data.draw(st.integers(0, 2 * lengthened(rate)))
    rule = gate.rules.all[0]
    assert isinstance(rule, TokenBucketRule)

    assert_admits_alike(rule, now)


@pytest.mark.parametrize("tick", [1, 3])
def test_admit_of_a_bucket_does_the_same_at_every_border(tick: int) -> None:
    """T1, T5: given any level, mark and moment of a small bucket, then `admit` says and does the
    same as `refresh`, `ready` and `take`.
    """
    rule = TokenBucketRule("requests", 3, 2, 1, tick, 3)
    rule.open(START)
    levels, moments = range(-2, rule.size + 1), range(START - 1, START + 9 * tick + 2)
    for level, top, now in product(levels, levels, moments):
        rule.level, rule.top = level, top
        assert_admits_alike(rule, now)


def assert_admits_alike(rule: TokenBucketRule, now: int) -> None:
    """`admit` leaves `rule` as `refresh`, `ready` and `take` leave it."""
    short, long = deepcopy(rule), deepcopy(rule)

    admitted = short.admit(now)

    assert admitted == (long.ready(1, now) == now)
    if admitted:
        long.take(1, now)
    else:
        long.left(now)
    assert all(getattr(short, name) == getattr(long, name) for name in TokenBucketRule.__slots__)
