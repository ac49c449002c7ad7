"""From limits to rules: the same allowance in whole numbers, never more of it, and small enough for
Lua.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate.gate.compile import (
    Declaration,
    lengthened,
    limit_of,
    parsed,
    program,
    rule_of,
    rules_of,
)
from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.fixed_window import FixedWindowRule
from headgate.gate.sliding_window import SlidingWindowRule
from headgate.gate.token_bucket import TokenBucketRule
from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.validation import WHOLE_FROM, microseconds, rational
from tests.gate.crowd import START, kinds

YEAR = 365 * 86_400
TEN_YEARS = 10 * YEAR
EXACT = 2**53  # beyond it a double, as Lua has it, loses count
amounts = st.one_of(st.integers(1, 100), st.integers(1, 10**9))
tokens = st.one_of(
    amounts,
    st.floats(0.001, 2**21, exclude_max=True),
    st.sampled_from([2.5, 0.5, 1 / 3, 0.1, 1e-3]),
)
periods = st.one_of(
    st.sampled_from([1e-6, 0.001, 1 / 3, 1, 60, 3600, 86_400]), st.floats(1e-6, TEN_YEARS * 0.999)
)


def countable(amount: float, per: float, capacity: int | None) -> bool:
    """Whether a rate may be declared so: parts of a token are not for huge buckets, nor for tokens
    that take ten years.
    """
    return isinstance(amount, int) or (
        per / amount < TEN_YEARS and max(amount, capacity or 1) <= WHOLE_FROM - 1
    )


def bucket(rate: Rate) -> TokenBucketRule:
    rule = rule_of(rate)
    assert isinstance(rule, TokenBucketRule)
    return rule


# Buckets ------------------------------------------------------------------------------------------


@given(tokens, periods, st.none() | amounts, st.booleans(), st.sampled_from([0, 0.0005, 3]))
def test_a_bucket_never_refills_faster_than_declared(
    amount: float, per: float, capacity: int | None, steps: bool, slack: float
) -> None:
    """T1: given any rate, then its bucket gains no more in a tick than the rate brings, and hardly
    less.
    """
    assume(countable(amount, per, capacity))
    rate = Rate(amount, per, capacity, steps=steps, slack=slack)
    rule = bucket(rate)

    gained = Fraction(rule.gain, rule.price * rule.tick)

    declared = rational(amount) / lengthened(rate)
    assert gained <= declared
    assert (
        rule.tick == 1
        or gained == declared
        or gained * (lengthened(rate) + rule.tick) >= rational(amount)
    )
    assert rule.size == rate.burst * rule.price


@given(tokens, periods, st.none() | amounts, st.booleans())
def test_a_bucket_uses_numbers_that_are_exact_in_lua(
    amount: float, per: float, capacity: int | None, steps: bool
) -> None:
    """T11: given any rate, then a full bucket, a queue of 256 of them and a tick's gain are exact
    as doubles.
    """
    assume(countable(amount, per, capacity))
    rule = bucket(Rate(amount, per, capacity, steps=steps))

    assert rule.price == 1 or rule.size * 256 <= EXACT
    assert rule.size + rule.gain < EXACT
    assert rule.tick <= max(1, lengthened(Rate(amount, per, capacity)))


def test_a_steady_bucket_ticks_each_microsecond() -> None:
    """5 a second: a token every 200,000 microseconds, in parts of one."""
    rule = bucket(Rate(5, per=1))

    assert (rule.price, rule.gain, rule.tick, rule.size) == (200_000, 1, 1, 1_000_000)


@pytest.mark.parametrize(
    ("amount", "per", "interval"),
    [
        (2.5, 1, 400_000),
        (0.5, 1, 2_000_000),
        (0.1, 1, 10_000_000),
        (1 / 3, 1, 3_000_000),
        (0.1 * 3, 3, 10_000_000),
    ],
    ids=str,
)
def test_a_fraction_of_a_token_comes_back_to_the_microsecond(
    amount: float, per: float, interval: int
) -> None:
    """T2, T11: given an empty bucket, when as many tokens have passed as make whole microseconds,
    then no part is over.
    """
    rule = bucket(Rate(amount, per, capacity=1))
    rule.open(START)

    moments = []
    for _ in range(1000):
        moments.append(rule.ready(1, START))
        rule.take(1, moments[-1])

    assert moments == [START + interval * number for number in range(1000)]


def test_a_fraction_of_a_token_is_the_same_rate_as_its_whole_tokens() -> None:
    assert program([bucket(Rate(2.5, per=1, capacity=9))]) == program(
        [bucket(Rate(5, per=2, capacity=9))]
    )
    assert program([bucket(Rate(0.5, per=60))]) == program([bucket(Rate(1, per=120))])


def test_a_full_bucket_that_would_be_too_much_has_coarser_ticks() -> None:
    """T11: 2^20 tokens of 2^25 parts are the first that do."""
    assert bucket(Rate(1, per=33.554431, capacity=2**20)).tick == 1
    assert bucket(Rate(1, per=33.554432, capacity=2**20)).tick == 10


@pytest.mark.parametrize(
    "rate",
    [
        Rate(2**46, per=7),
        Rate(2**46, per=1),
        Rate(2**43, per=1.5),
        Rate(10**13 + 1, per=86_400, slack=0.123),
        Rate(10, per=3600, capacity=10**15 + 1, slack=1 / 3),
        Rate(EXACT - 1, per=0.000_5),
    ],
    ids=repr,
)
def test_a_steady_bucket_of_billions_refills_in_short_steps_and_in_time(rate: Rate) -> None:
    """T2, T11: it is slower by a thousandth at most, and keeps its rule when it is read back."""
    rule = bucket(rate)
    declared = Fraction(rate.amount) / lengthened(rate)

    assert declared * 999 / 1000 <= Fraction(rule.gain, rule.price * rule.tick) <= declared
    assert rule.tick <= 100_000 or (rule.price, rule.gain) == (1, 1)
    assert [again.text for again in rules_of([limit_of(rule)])] == [rule.text]


def test_a_bucket_in_steps_ticks_once_a_period() -> None:
    rule = bucket(Rate(5, per=1, capacity=20, initial=3, steps=True))

    assert (rule.price, rule.gain, rule.tick, rule.size, rule.level) == (1, 5, 1_000_000, 20, 3)


# Slack --------------------------------------------------------------------------------------------


def test_slack_lengthens_the_period_of_rates_and_windows() -> None:
    """T1: calls that leave one period apart may arrive closer. A user that knows the difference
    declares it, and the limit is stricter.
    """
    slow, window = bucket(Rate(1, per=1, slack=0.5)), rule_of(Window(3, per=1, slack=0.5))

    assert (slow.price, slow.gain) == (1_500_000, 1)
    assert isinstance(window, SlidingWindowRule)
    assert window.per == 1_500_000


def test_slack_closes_a_quota_before_its_window_ends() -> None:
    rule = rule_of(Quota(3, per=60, anchor=90, slack=0.5))

    assert isinstance(rule, FixedWindowRule)
    assert (rule.per, rule.anchor, rule.slack) == (60_000_000, 30_000_000, 500_000)


# Declarations -------------------------------------------------------------------------------------


@given(st.lists(kinds, min_size=1, max_size=4))
def test_a_declaration_is_read_back_as_it_was_written(limits: list[Limit]) -> None:
    """Equal text is equal behaviour: the text travels, and tells one declaration from another."""
    text = program(rules_of(limits))

    again = [parsed(rule) for rule in text.split(";")]

    assert program(again) == text
    assert program(Declaration(again).rules()) == text
    for rule, limit in zip(again, limits, strict=True):
        rule.open(START)
        fresh = rule_of(limit)
        fresh.open(START)
        assert rule.left(START) == fresh.left(START)


def test_a_declaration_knows_the_cost_of_an_acquire_for_each_rule() -> None:
    """Each unit that is not named has its default: one request, one permit, and nothing of any
    other unit.
    """
    declared = Declaration(
        rules_of(
            [Rate(10, per=1), Concurrency(5), Rate(900, per=60, unit="tokens"), Rate(100, per=60)]
        )
    )

    assert declared.costs({}) == (1, 1, 0, 1)
    assert declared.costs({"tokens": 700}) == (1, 1, 700, 1)
    assert declared.costs({"requests": 3, "permits": 2}) == (3, 2, 0, 3)
    assert declared.capacity == {"requests": 10, "permits": 5, "tokens": 900}
    assert declared.rated == {"requests", "tokens"}


@pytest.mark.parametrize(
    ("limits", "holds", "timeless", "lease", "is_one_rate"),
    [
        ([Rate(1, per=1)], False, False, 0, True),
        ([Rate(1, per=1, unit="tokens")], False, False, 0, False),
        ([Concurrency(1)], True, True, 30_000_000, False),
        ([Concurrency(1, unit="requests")], True, False, 30_000_000, False),
        (
            [Concurrency(1, lease=2), Concurrency(9, lease=1, unit="mb")],
            *(True, True, 1_000_000, False),
        ),
        ([Concurrency(1, unit="mb")], True, False, 30_000_000, False),
        ([Concurrency(1), Window(1, per=1)], True, False, 30_000_000, False),
    ],
)
def test_a_declaration_knows_the_facts_that_choose_how_a_request_is_sent(
    limits: list[Limit], holds: bool, timeless: bool, lease: int, is_one_rate: bool
) -> None:
    declared = Declaration(rules_of(limits))

    assert (declared.holds, declared.timeless, declared.lease) == (holds, timeless, lease)
    assert declared.is_one_rate == is_one_rate


def test_a_capacity_is_that_of_the_narrowest_rule_of_a_unit() -> None:
    """T7: a cost that one of several rules never holds can never pass."""
    declared = Declaration(rules_of([Rate(100, per=3600), Rate(10, per=60), Window(40, per=600)]))

    assert declared.capacity == {"requests": 10}


def test_a_concurrency_limit_becomes_a_rule_of_its_unit() -> None:
    rule = rule_of(Concurrency(5, lease=1.5, unit="mb"))

    assert isinstance(rule, ConcurrencyRule)
    assert (rule.unit, rule.capacity, rule.lease) == ("mb", 5, microseconds(1.5))


@pytest.mark.parametrize(
    "limit",
    [
        Concurrency(5, lease=1.5, unit="mb"),
        Rate(100, per=60),
        Rate(100, per=86_400),
        Rate(7, per=3, capacity=20, initial=0),
        Rate(2.5, per=1),
        Rate(10, per=60, capacity=3, steps=True),
        Rate(2.5, per=10, steps=True),
        Rate(3, per=0.000_001),
        Rate(7, per=349.999_997, capacity=500_000),
        Rate(1000, per=86_400, capacity=500, slack=1 / 3),
        Rate(5000, per=30 * 86_400, capacity=10_000, slack=0.000_5),
        Rate(10**13, per=86_400, steps=True, unit="bytes"),
        Rate(1, per=9 * YEAR, capacity=1000),
        Rate(1, per=0.000_001, capacity=EXACT - 1),
        Rate(0.5, per=1, capacity=20_000, steps=True),
        Window(100, per=60, slack=0.01),
        Window(100, per=5 * YEAR, slack=5 * YEAR - 1),
        Quota(50, per=3600, anchor=900, slack=0.5),
        Quota(50, per=3600),
    ],
    ids=repr,
)
def test_a_limit_that_is_read_from_its_rule_becomes_the_same_rule(limit: Limit) -> None:
    (rule,) = rules_of([limit])

    assert [again.text for again in rules_of([limit_of(rule)])] == [rule.text]


@given(
    st.sampled_from([0.5, 2.5, 12.25, 0.1, 1 / 3, 60, 5000, 90_000, 450_000])
    | st.integers(1, 10**7),
    st.sampled_from([1, 60, 3600, 86_400, 7 * 86_400, 30 * 86_400, 349.999_997]),
    st.none() | st.sampled_from([1000, 10_000, 500_000, 10**7]) | amounts,
    st.sampled_from([0, 0.000_5, 0.001, 0.05, 1 / 3]),
    st.booleans(),
)
def test_an_ordinary_rate_that_is_read_from_its_rule_becomes_the_same_rule(
    amount: float, per: float, capacity: int | None, slack: float, steps: bool
) -> None:
    """An attached limiter shows the limits by which the store decides."""
    assume(countable(amount, per, capacity))
    rule = bucket(Rate(amount, per, capacity, steps=steps, slack=slack))

    assert program(rules_of([limit_of(rule)])) == program([rule])


@pytest.mark.parametrize(
    ("rate", "shown"),
    [
        (Rate(10**13, per=100, steps=True), "10000000000000 every 100 seconds"),
        (Rate(2500.5, per=1, steps=True), "2500.5 every second"),
        (Rate(10**6, per=86_399.999_999), "1000000 per 86399.999999 seconds burst 1000000"),
        # As long as "1 every 5 seconds ...": the steady one.
        (Rate(1, per=5, capacity=239_721_546_953), "15 per 75 seconds burst 239721546953"),
    ],
    ids=str,
)
def test_a_rate_is_read_from_its_rule_in_the_form_with_the_shorter_text(
    rate: Rate, shown: str
) -> None:
    """A rule may come from a steady rate and from one in steps."""
    assert str(limit_of(rule_of(rate))) == shown


@pytest.mark.parametrize(
    "rate",
    [
        Rate(262.986, per=30 * 86_400, capacity=500_000, slack=0.071_312),
        Rate(2.5, per=9 * YEAR, capacity=59_313, slack=0.001),
    ],
    ids=str,
)
def test_a_rate_for_which_no_equal_one_is_found_is_read_as_a_slightly_slower_one(
    rate: Rate,
) -> None:
    declared, read = bucket(rate), limit_of(rule_of(rate))
    assert isinstance(read, Rate)

    again = bucket(read)

    assert declared.pace() * (1 - 1e-7) < again.pace() <= declared.pace()
    assert (again.capacity, again.start // again.price) == (rate.burst, rate.burst)


def test_a_rule_with_a_token_in_more_than_ten_years_is_read_as_the_slowest_rate() -> None:
    """No rate becomes such a rule, but a store may have one of another version."""
    parts = 18 * YEAR * 1_000_000
    read = limit_of(TokenBucketRule("requests", 1, parts, 1, 1, 1))

    assert read == Rate(1, per=TEN_YEARS - 0.000_001, capacity=1)


@pytest.mark.parametrize("initial", [None, 0, 5])
def test_a_rate_read_from_its_rule_names_its_initial_tokens_unless_it_was_full(
    initial: int | None,
) -> None:
    """The rate in a status is as short as a user would write it."""
    read = limit_of(rule_of(Rate(7, per=3, capacity=20, initial=initial)))

    assert isinstance(read, Rate)
    assert read.initial == initial
    assert limit_of(rule_of(Rate(7, per=3, capacity=20, initial=20))) == limit_of(
        rule_of(Rate(7, per=3, capacity=20))
    )
