"""The shared checks against hostile input: a value is taken as it is, or refused by a sentence."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headgate import validation

NAN, INF = math.nan, math.inf
NOT_NUMBERS = [
    None,
    True,
    False,
    "5",
    b"5",
    Decimal(5),
    Fraction(5),
    5j,
    [5],
    (5,),
    {},
    object(),
    timedelta(seconds=5),
]


class Hostile:
    """A value whose repr fails: a message must be possible all the same."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def is_a_sentence(error: BaseException) -> bool:
    """The call, the value, the rule and the way out, of a readable length."""
    text = str(error)
    return (
        "(" in text and "; " in text and text.endswith(".") and len(text) < 400 and "\n" not in text
    )


def test_a_message_shows_no_address_in_memory() -> None:
    """Two processes say the same of the same value; the tests' own ids depend on it."""
    assert validation.show(object()) == "<object object>"
    assert validation.show([Hostile()]) == "[<Hostile instance>]"


# Counts


@pytest.mark.parametrize("value", [1, 2, 2**53 - 1], ids=validation.show)
def test_a_count_of_one_or_more_is_taken(value: int) -> None:
    assert validation.positive_int("Rate", "amount", value) == value


def test_an_enum_of_ints_becomes_a_plain_int() -> None:
    class Plan(enum.IntEnum):
        FREE = 5

    assert type(validation.positive_int("Rate", "amount", Plan.FREE)) is int


@pytest.mark.parametrize("value", [0, -1, -(2**63), 2**53, 2**63, 10**5_000], ids=validation.show)
def test_a_count_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"^Rate\(amount=.*amount must be") as caught:
        validation.positive_int("Rate", "amount", value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize(
    "value", [*NOT_NUMBERS, 1.5, NAN, INF, -INF, 1e-320, -0.0, Hostile()], ids=validation.show
)
def test_a_count_that_is_no_int_is_refused_by_the_check(value: object) -> None:
    with pytest.raises(TypeError, match=r"^Rate\(amount=|^Rate\(") as caught:
        validation.positive_int("Rate", "amount", value)
    assert is_a_sentence(caught.value)


def test_the_error_for_a_whole_float_names_the_int_to_pass() -> None:
    with pytest.raises(TypeError) as caught:
        validation.positive_int("Rate", "amount", 20.0)
    assert (
        str(caught.value)
        == "Rate(amount=20.0): amount must be an int, not a float; pass an int: 20."
    )


@pytest.mark.parametrize("value", [None, 0, 1, 2**53 - 1], ids=validation.show)
def test_a_bound_may_be_none_or_zero(value: int | None) -> None:
    assert validation.check_count(value) == value


@pytest.mark.parametrize("value", [-1, 2**53, 2**63], ids=validation.show)
def test_a_bound_out_of_range_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match=r"^Limiter\(max_waiters=") as caught:
        validation.check_count(value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize(
    "value", [value for value in [*NOT_NUMBERS, 3.0, NAN] if value is not None], ids=validation.show
)
def test_a_bound_that_is_no_int_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^Semaphore\(max_position="):
        validation.check_count(value, "Semaphore", "max_position")


# Seconds


@pytest.mark.parametrize("value", [1, 60, 0.5, 1e-6, 315_359_999.999], ids=validation.show)
def test_seconds_are_taken_as_they_are(value: float) -> None:
    assert validation.seconds("Rate", "per", value) == value


@pytest.mark.parametrize(
    "value",
    [0, 0.0, -0.0, -1, -0.5, 1e-7, 1e-320, 315_360_000, 2**63, 1e300, 10**400, NAN, INF, -INF],
    ids=validation.show,
)
def test_seconds_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"^Rate\(per=.*per (must|is)") as caught:
        validation.seconds("Rate", "per", value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, Hostile()], ids=validation.show)
def test_seconds_that_are_no_number_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="per must be an int or a float") as caught:
        validation.seconds("Rate", "per", value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0], ids=validation.show)
def test_a_slack_of_zero_is_accepted_and_has_no_sign(value: float) -> None:
    assert math.copysign(1, validation.seconds("Rate", "slack", value, zero=True)) == 1


@pytest.mark.parametrize("value", [-1e-9, 1e-9, 1e-320], ids=validation.show)
def test_a_slack_below_a_microsecond_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=r"must be 0 or at least 0\.000001 seconds"):
        validation.seconds("Rate", "slack", value, zero=True)


def test_a_max_sleep_of_none_is_accepted() -> None:
    assert validation.check_max_sleep(None) is None


@pytest.mark.parametrize("value", [0, 0.0, -0.0], ids=validation.show)
def test_a_max_sleep_of_zero_is_zero(value: float) -> None:
    assert validation.check_max_sleep(value) == 0


@pytest.mark.parametrize("value", [1e-320, 1e-9, 0.25, 60, 86_400], ids=validation.show)
def test_a_max_sleep_may_be_as_short_as_the_rest_of_a_deadline(value: float) -> None:
    assert validation.check_max_sleep(value) == value


@pytest.mark.parametrize("value", [-1, -1e-9, NAN, INF, -INF, 2**63, 10**400], ids=validation.show)
def test_a_max_sleep_that_means_nothing_is_refused_with_the_two_ways_out(value: float) -> None:
    with pytest.raises(
        ValueError, match=r"^acquire\(max_sleep=.*pass None .* or call try_acquire"
    ) as caught:
        validation.check_max_sleep(value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize(
    "value", [value for value in NOT_NUMBERS if value is not None], ids=validation.show
)
def test_a_max_sleep_that_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"max_sleep must be an int or a float"):
        validation.check_max_sleep(value, "Limiter")


# Microseconds


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0),
        (0.0, 0),
        (1, 1_000_000),
        (0.25, 250_000),
        (1.0000005, 1_000_001),
        (2.5e-6, 3),
        (1e-7, 1),
        (1e-320, 1),
        (315_359_999.999999, 315_359_999_999_999),
        (1_755_900_000.123456, 1_755_900_000_123_456),
        (-1, -1_000_000),
        (-0.25, -250_000),
        (-1e-20, 0),
    ],
    ids=validation.show,
)
def test_seconds_become_whole_microseconds(value: float, expected: int) -> None:
    assert validation.microseconds(value) == expected


@given(st.integers(0, 10 * 365 * 86_400 * 1_000_000))
def test_microseconds_survive_the_way_through_a_float_of_seconds(moment: int) -> None:
    assert validation.microseconds(moment / 1_000_000) == moment


@given(st.floats(0, 315_360_000, exclude_max=True))
def test_rounding_is_never_off_by_more_than_half_a_microsecond(value: float) -> None:
    exact = Fraction(value) * 1_000_000
    result = validation.microseconds(value)
    assert abs(result - exact) <= Fraction(1, 2) or (result == 1 and exact > 0)


# Instants


def test_an_instant_is_a_number_of_seconds_or_an_aware_datetime() -> None:
    east = timezone(timedelta(hours=2))
    assert validation.instant("Quota", "anchor", 0) == 0
    assert (
        validation.instant("Quota", "anchor", datetime(2024, 1, 1, 2, tzinfo=east)) == 1_704_067_200
    )
    assert (
        validation.instant("Quota", "anchor", datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC))
        == -0.5
    )


@given(st.integers(-(2**32) * 10**6 + 1, 2**32 * 10**6 - 1))
def test_an_instant_keeps_its_microseconds(moment: int) -> None:
    kept = validation.instant(
        "Quota", "anchor", datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)
    )
    assert validation.microseconds(kept) == moment
    assert validation.instant("Quota", "anchor", kept) == kept


@pytest.mark.parametrize(
    "value",
    [NAN, INF, -INF, 2**63, 1e300, 10**400, 1_704_067_200_000, datetime.min.replace(tzinfo=UTC)],
    ids=validation.show,
)
def test_an_instant_far_away_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"^Quota\(anchor=") as caught:
        validation.instant("Quota", "anchor", value)
    assert is_a_sentence(caught.value)


def test_a_naive_datetime_is_refused_because_it_is_no_instant() -> None:
    with pytest.raises(
        ValueError, match="without a time zone, which is another moment on every machine"
    ) as caught:
        validation.instant("Quota", "anchor", datetime(2024, 1, 1))
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize("value", [*NOT_NUMBERS, date(2024, 1, 1)], ids=validation.show)
def test_an_instant_that_is_no_number_and_no_datetime_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match=r"^Quota\(anchor=") as caught:
        validation.instant("Quota", "anchor", value)
    assert is_a_sentence(caught.value)


# Flags and units


@pytest.mark.parametrize("value", [0, 1, None, "True", 1.0], ids=validation.show)
def test_a_flag_must_be_true_or_false(value: object) -> None:
    with pytest.raises(TypeError, match=r"^Rate\(steps=.*write True or False\.$"):
        validation.flag("Rate", "steps", value)
    assert validation.flag("Rate", "steps", True) is True


@pytest.mark.parametrize(
    "value", ["requests", "tokens", "mb", "a", "input_tokens_2", "m" * 64], ids=validation.show
)
def test_a_unit_is_a_word_that_acquire_can_take(value: str) -> None:
    assert validation.check_unit("Rate", value) == value


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "a letter a-z"),
        ("Tokens", "a letter a-z"),
        ("2nd", "a letter a-z"),
        ("_tokens", "a letter a-z"),
        ("to kens", "a letter a-z"),
        ("tokens\n", "a letter a-z"),
        ("tökens", "a letter a-z"),
        ("t\u0660", "a letter a-z"),
        ("🎟", "a letter a-z"),
        ("m" * 65, "at most 64 characters"),
        ("m" * 10_000_000, "at most 64 characters"),
        ("cost", "acquire has an argument 'cost'"),
        ("max_sleep", "acquire has an argument 'max_sleep'"),
        ("self", "acquire has an argument 'self'"),
        ("in", "a word of Python's own"),
        ("request", "write 'requests'"),
        ("permit", "write 'permits'"),
    ],
    ids=validation.show,
)
def test_a_unit_that_acquire_could_not_take_is_refused(value: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        validation.check_unit("Rate", value)
    assert is_a_sentence(caught.value)


@pytest.mark.parametrize(
    "value", [None, 5, True, b"tokens", ["tokens"], Hostile()], ids=validation.show
)
def test_a_unit_that_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="unit must be a str") as caught:
        validation.check_unit("Rate", value)
    assert is_a_sentence(caught.value)


# Names

FINE_NAMES = [
    "a",
    " ",
    "a:b",
    "{a}",
    "}",
    "a b",
    "100%",
    "a\x00b",
    "a\r\nb",
    "ü",
    "🎟️",
    "x" * 256,
    "ü" * 128,
    "\ufffe",
]


@pytest.mark.parametrize("name", FINE_NAMES, ids=validation.show)
def test_the_check_returns_a_name_unchanged(name: str) -> None:
    assert validation.check_name(name) == name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "at least one character"),
        ("x" * 257, "at most 256 bytes"),
        ("ü" * 129, "at most 256 bytes"),
        ("🎟" * 65, "at most 256 bytes"),
        ("x" * 10_000_000, "at most 256 bytes"),
        ("a\ud800b", "index 1 is half of a surrogate pair"),
        ("\udfff", "index 0 is half of a surrogate pair"),
    ],
    ids=validation.show,
)
def test_a_name_that_no_key_could_hold_is_refused(name: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        validation.check_name(name)
    assert is_a_sentence(caught.value)
    str(caught.value).encode()  # the message itself can be logged


@pytest.mark.parametrize(
    "name", [None, 5, True, NAN, b"api", ["api"], Hostile()], ids=validation.show
)
def test_a_name_that_is_no_text_is_refused(name: object) -> None:
    with pytest.raises(TypeError, match=r"^Semaphore\(name=.*a name must be a str") as caught:
        validation.check_name(name, "Semaphore")
    assert is_a_sentence(caught.value)


@given(st.text())
def test_a_name_is_taken_exactly_when_it_has_1_to_256_bytes(name: str) -> None:
    try:
        fits = 1 <= len(name.encode()) <= 256
    except UnicodeEncodeError:
        fits = False
    try:
        assert validation.check_name(name) == name
    except ValueError:
        assert not fits
    else:
        assert fits


# The parts of messages


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=1e-300, max_value=1e15))
def test_plain_digits_have_the_value_of_the_number(value: float) -> None:
    text = validation.plain(value)
    assert "e" not in text
    assert float(text) == value


@example([-(10**26)] * 5)
@given(
    st.one_of(
        st.text(),
        st.binary(),
        st.integers(),
        st.floats(),
        st.lists(st.integers()),
        st.just(10**5_000),
    )
)
def test_a_shown_value_is_at_most_100_characters_long(value: Any) -> None:
    assert len(validation.show(value)) <= 100


def test_a_value_that_cannot_be_shown_is_named_by_its_type() -> None:
    assert validation.show([10**5_000]) == "a list"
    assert "Hostile" in validation.show(Hostile())


LONG = "x" * 60


@pytest.mark.parametrize(
    "wrap",
    [
        str,
        str.encode,
        lambda url: [url],
        lambda url: LONG + url,
        lambda url: f"{LONG}{url}".encode(),
        lambda url: [LONG + url],
        lambda url: [SimpleNamespace(region=LONG, store=url)],
        lambda url: SimpleNamespace(region=LONG, store=url),
        PurePosixPath,  # a path writes "//" as "/"
        PureWindowsPath,
        urlsplit,  # its parts
        lambda url: urlsplit(url).netloc,
    ],
)
def test_a_shown_value_has_no_part_of_a_url(wrap: Callable[[str], object]) -> None:
    value = wrap("redis://user:password@redis.a-service.example")
    assert validation.show(value) == f"a {type(value).__name__} with a URL"
