"""The four limits as values: the values they take, the values they refuse and by which sentence,
how they are written.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.limits import Concurrency, Limit, Quota, Rate, Window
from headgate.validation import TEN_YEARS, show

NAN, INF = math.nan, math.inf

VALID: dict[type[Any], dict[str, Any]] = {
    Concurrency: {"capacity": 5},
    Rate: {"amount": 10, "per": 1},
    Window: {"amount": 10, "per": 1},
    Quota: {"amount": 10, "per": 1},
}
COUNTS = [
    (Concurrency, "capacity"),
    (Rate, "capacity"),
    (Window, "amount"),
    (Quota, "amount"),
]
PERIODS = [(Concurrency, "lease"), (Rate, "per"), (Window, "per"), (Quota, "per")]
SLACKS = [(Rate, "slack"), (Window, "slack"), (Quota, "slack")]

NO_COUNT = [True, False, "5", b"5", Decimal(5), 5.0, 5.5, NAN, INF, -INF, -0.0, 1e-320, [5]]
BAD_COUNT = [0, -1, 2**53, 2**63, 10**5_000]
NO_SECONDS = [True, False, "5", b"5", Decimal(5), 5j, [5], timedelta(seconds=5)]
BAD_SECONDS = [-1, -0.5, NAN, INF, -INF, 1e-7, 1e-320, 315_360_000, 2**63, 10**400]
NO_TIME = [0, 0.0, -0.0]


def made(kind: type[Any], **changed: Any) -> Any:
    """A limit that is fine but for the `changed` arguments."""
    return kind(**{**VALID[kind], **changed})


# Accepted values


def test_limits_have_the_defaults_of_the_readme() -> None:
    assert Concurrency(100) == Concurrency(capacity=100, lease=30.0, unit="permits")
    assert Rate(5000, per=3600) == Rate(
        5000, 3600, capacity=5000, initial=None, steps=False, unit="requests", slack=0
    )
    assert Window(20, 1) == Window(amount=20, per=1.0, unit="requests", slack=0.0)
    assert Quota(1000, 86_400) == Quota(
        amount=1000, per=86_400, anchor=None, unit="requests", slack=0.0
    )


def test_a_bucket_holds_one_period_when_nothing_else_is_said() -> None:
    assert Rate(10, 1).capacity == Rate(10, 1).burst == 10
    assert Rate(10, 1, capacity=1).capacity == Rate(10, 1, capacity=1).burst == 1


@pytest.mark.parametrize(
    ("amount", "capacity"), [(2.5, 3), (0.5, 1), (0.1, 1), (7.0, 7), (10**6 + 0.5, 10**6 + 1)]
)
def test_a_rate_may_bring_parts_of_a_token_and_its_bucket_holds_them_rounded_up(
    amount: float, capacity: int
) -> None:
    assert Rate(amount, per=1).amount == amount
    assert Rate(amount, per=1).capacity == capacity


def test_an_amount_that_is_whole_is_kept_as_an_int() -> None:
    assert Rate(7.0, per=1) == Rate(7, per=1)
    assert type(Rate(7.0, per=1).amount) is int


@pytest.mark.parametrize("initial", [None, 0, 7, 20])
def test_a_bucket_starts_anywhere_between_empty_and_full(initial: int | None) -> None:
    assert Rate(10, 1, capacity=20, initial=initial).initial == initial


def test_an_anchor_is_kept_in_seconds() -> None:
    seven_in_berlin = datetime(2024, 1, 1, 7, tzinfo=timezone(timedelta(hours=1)))
    assert Quota(1000, 86_400, seven_in_berlin).anchor == 1_704_088_800
    assert Quota(1000, 86_400, 1_704_088_800).anchor == 1_704_088_800
    assert Quota(1000, 86_400, -0.5).anchor == -0.5
    assert Quota(1000, 86_400, seven_in_berlin) == Quota(1000, 86_400, 1_704_088_800.0)


def test_a_quota_without_an_anchor_begins_at_midnight_utc() -> None:
    assert Quota(1000, 86_400).anchor is None
    assert Quota(1000, 86_400).origin == 0
    assert Quota(1000, 86_400, 3600.5).origin == 3600.5


def test_limits_compare_hash_and_copy_by_value() -> None:
    """Equal, hashed, copied and sent to other processes by their values."""
    limits: list[Any] = [Concurrency(5), Rate(10, 1), Window(10, 1), Quota(10, 1)]
    assert len({*limits, *limits}) == 4
    for limit in limits:
        assert pickle.loads(pickle.dumps(limit)) == limit
        assert copy.deepcopy(limit) == limit
        assert dataclasses.replace(limit) == limit


@pytest.mark.parametrize("kind", VALID)
def test_limits_do_not_change(kind: type[Any]) -> None:
    limit = made(kind)
    with pytest.raises(dataclasses.FrozenInstanceError):
        limit.unit = "tokens"
    assert not hasattr(limit, "__dict__")


def test_isinstance_recognises_a_limit() -> None:
    assert all(isinstance(made(kind), Limit) for kind in VALID)
    assert not isinstance("5 concurrent", Limit)


# Refused values


def refused(error: type[Exception], kind: type[Any], **changed: Any) -> str:
    with pytest.raises(error) as caught:
        made(kind, **changed)
    text = str(caught.value)
    (field,) = changed
    assert text.startswith(f"{kind.__name__}({field}=")  # the call
    assert "; " in text  # the rule; the way out
    assert text.endswith(".")
    assert len(text) < 400
    return text


@pytest.mark.parametrize(("kind", "field"), COUNTS)
@pytest.mark.parametrize("value", NO_COUNT, ids=repr)
def test_a_limit_refuses_a_count_that_is_no_int(kind: type[Any], field: str, value: object) -> None:
    assert f"{field} must be an int" in refused(TypeError, kind, **{field: value})


@pytest.mark.parametrize(("kind", "field"), COUNTS)
@pytest.mark.parametrize("value", BAD_COUNT, ids=lambda value: f"{value.bit_length()} bits")
def test_a_limit_refuses_a_count_below_1_or_above_the_numbers_of_lua(
    kind: type[Any], field: str, value: int
) -> None:
    assert f"{field} must be" in refused(ValueError, kind, **{field: value})


@pytest.mark.parametrize(("kind", "field"), [pair for pair in COUNTS if pair != (Rate, "capacity")])
def test_a_limit_refuses_a_count_of_none(kind: type[Any], field: str) -> None:
    assert "not None" in refused(TypeError, kind, **{field: None})


@pytest.mark.parametrize("value", [True, False, "5", b"5", Decimal(5), [5], None], ids=repr)
def test_a_rate_refuses_an_amount_that_is_no_number(value: object) -> None:
    assert "amount must be an int or a float" in refused(TypeError, Rate, amount=value)


@pytest.mark.parametrize(
    "value", [*BAD_COUNT, -0.5, -0.0, NAN, INF, 1e-7, 1e-320, 2**21 + 0.5, 1e300], ids=show
)
def test_a_rate_is_finite_and_within_reason(value: float) -> None:
    refused(ValueError, Rate, amount=value)


@pytest.mark.parametrize(
    ("made", "way"),
    [
        (
            lambda: Rate(0.000_001, per=3600),
            "a token would come every 3600000000 seconds, .*; write a larger amount",
        ),
        (
            lambda: Rate(2.5, per=1, capacity=2**21),
            "a bucket of 2097152 tokens or more counts whole ones; write a whole amount",
        ),
        (
            lambda: Window(2.5, per=1),
            "amount must be an int, not a float; .* Window\\(5, per=2\\) .*Rate",
        ),
        (lambda: Quota(0.5, per=60), "amount must be an int, not a float"),
    ],
    ids=["seldom", "full", "window", "quota"],
)
def test_parts_of_a_token_that_cannot_be_counted_are_refused_with_a_way_out(
    made: Any, way: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=way):
        made()


@pytest.mark.parametrize("kind", [Rate, Window])
def test_a_period_and_its_slack_are_below_ten_years_together(kind: Any) -> None:
    way = rf"{kind.__name__}\(per=1, slack=315359999\): .*\(ten years\); write a shorter slack"
    with pytest.raises(ValueError, match=way):
        kind(5, per=1, slack=TEN_YEARS - 1)
    assert kind(5, per=1, slack=TEN_YEARS - 1.000_001).per == 1


def test_the_slack_counts_for_the_time_of_a_token() -> None:
    with pytest.raises(ValueError, match="a token would come every 400000000 seconds"):
        Rate(0.5, per=10**8, slack=10**8)


@pytest.mark.parametrize("kind", [Concurrency, Rate, Window, Quota])
def test_a_time_that_rounds_up_to_ten_years_is_too_long(kind: Any) -> None:
    """In whole microseconds, as a store counts."""
    field = "lease" if kind is Concurrency else "per"
    assert "must be below 315360000" in refused(ValueError, kind, **{field: TEN_YEARS - 1e-7})


@pytest.mark.parametrize(("kind", "field"), PERIODS + SLACKS)
@pytest.mark.parametrize("value", [*NO_SECONDS, None], ids=repr)
def test_a_limit_refuses_a_time_that_is_no_number(
    kind: type[Any], field: str, value: object
) -> None:
    assert f"{field} must be an int or a float" in refused(TypeError, kind, **{field: value})


@pytest.mark.parametrize(("kind", "field"), PERIODS + SLACKS)
@pytest.mark.parametrize(
    "value", BAD_SECONDS, ids=lambda value: f"{value:.3e}" if value < 1e300 else "huge"
)
def test_a_time_is_finite_and_within_reason(kind: type[Any], field: str, value: float) -> None:
    refused(ValueError, kind, **{field: value})


@pytest.mark.parametrize(("kind", "field"), PERIODS)
@pytest.mark.parametrize("value", NO_TIME)
def test_a_limit_refuses_a_period_of_zero(kind: type[Any], field: str, value: float) -> None:
    assert "at least 0.000001 seconds" in refused(ValueError, kind, **{field: value})


@pytest.mark.parametrize(("kind", "field"), SLACKS)
@pytest.mark.parametrize("value", NO_TIME)
def test_a_slack_may_be_zero(kind: type[Any], field: str, value: float) -> None:
    assert repr(made(kind, **{field: value}).slack) in {"0", "0.0"}


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize(
    "unit", ["", "Tokens", "to kens", "cost", "max_sleep", "x" * 65, "🎟", "request", "for"]
)
def test_a_unit_must_be_a_valid_argument_of_acquire(kind: type[Any], unit: str) -> None:
    refused(ValueError, kind, unit=unit)


@pytest.mark.parametrize("kind", VALID)
@pytest.mark.parametrize("unit", [None, 5, True, b"tokens"])
def test_a_unit_is_a_text(kind: type[Any], unit: object) -> None:
    assert "unit must be a str" in refused(TypeError, kind, unit=unit)


@pytest.mark.parametrize("value", [*NO_COUNT])
def test_initial_must_be_an_int(value: object) -> None:
    refused(TypeError, Rate, initial=value)


@pytest.mark.parametrize("value", [-1, 2**53, 2**63])
def test_initial_must_be_in_range(value: int) -> None:
    refused(ValueError, Rate, initial=value)


def test_a_bucket_cannot_start_fuller_than_full() -> None:
    with pytest.raises(
        ValueError, match=r"^Rate\(initial=21\): .* capacity of 20; write at most 20"
    ):
        Rate(10, 1, capacity=20, initial=21)


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
def test_steps_are_switched_by_a_bool_alone(value: object) -> None:
    refused(TypeError, Rate, steps=value)


@pytest.mark.parametrize("value", [NAN, INF, -INF, 2**63, 10**400, 1_704_067_200_000])
def test_an_anchor_must_be_a_moment_of_our_age(value: float) -> None:
    refused(ValueError, Quota, anchor=value)


@pytest.mark.parametrize("value", [True, "midnight", Decimal(0), date(2024, 1, 1)])
def test_an_anchor_is_a_number_or_a_datetime(value: object) -> None:
    refused(TypeError, Quota, anchor=value)


def test_a_naive_anchor_is_refused() -> None:
    assert "time zone" in refused(ValueError, Quota, anchor=datetime(2024, 1, 1))


@pytest.mark.parametrize("slack", [1, 1.5, 0.9999999])
def test_slack_leaves_something_of_a_quotas_window(slack: float) -> None:
    assert "shorter than the window of 1 seconds" in refused(ValueError, Quota, slack=slack)
    assert Quota(10, 1, slack=0.5).slack == 0.5


@given(
    st.sampled_from(COUNTS),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
)
def test_a_count_is_kept_unchanged_or_refused(where: tuple[type[Any], str], value: Any) -> None:
    """Nothing in between: no value is bent into another, no other error comes out."""
    kind, field = where
    try:
        kept = getattr(made(kind, **{field: value}), field)
    except (TypeError, ValueError):
        return
    assert kept == value or (value is None and field == "capacity")
    assert type(kept) is int


# How they are written


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (Concurrency(5), "5 concurrent"),
        (Concurrency(64, 60, "mb"), "64 mb concurrent lease 60s"),
        (Concurrency(5, 0.25), "5 concurrent lease 250ms"),
        (Rate(100, 60), "100 per minute burst 100"),
        (Rate(10, 1, 20), "10 per second burst 20"),
        (Rate(10, 1.0, 10), "10 per second burst 10"),
        (Rate(10_000, 60, unit="tokens"), "10000 tokens per minute burst 10000"),
        (Rate(5, 10, initial=0, steps=True), "5 every 10 seconds initial 0"),
        (Rate(10, 1, slack=0.01), "10 per second burst 10 slack 10ms"),
        (Rate(1000, 7200), "1000 per 2 hours burst 1000"),
        (Rate(1, 0.5), "1 per 500 ms burst 1"),
        (Rate(1, 1.5), "1 per 1.5 seconds burst 1"),
        (Rate(1, 1e-6), "1 per 0.000001 seconds burst 1"),
        (Rate(1, 90), "1 per 90 seconds burst 1"),
        (Rate(2.5, 1), "2.5 per second burst 3"),
        (Rate(0.5, 60, 4, unit="tokens"), "0.5 tokens per minute burst 4"),
        (Rate(1e-5, 60, steps=True), "0.00001 every minute"),
        (Window(100, 60), "100 in any minute"),
        (Window(10, 900, "tokens", 1.5), "10 tokens in any 15 minutes slack 1.5s"),
        (Quota(1000, 86_400), "1000 per day from midnight"),
        (Quota(1000, 604_800, 0), "1000 per week from 1970-01-01T00:00:00Z"),
        (Quota(50, 3_600, -0.5), "50 per hour from 1969-12-31T23:59:59.500000Z"),
        (
            Quota(50, 3_600, datetime(2024, 1, 1, 7, 30, tzinfo=UTC)),
            "50 per hour from 2024-01-01T07:30:00Z",
        ),
    ],
)
def test_a_limit_is_written_as_readable_text(limit: Limit, text: str) -> None:
    assert str(limit) == text
