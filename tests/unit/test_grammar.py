"""The text form of the limits: the possible texts, that they come back, and the position of a
mistake in a bad text.
"""

from __future__ import annotations

import string
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headgate import limit_parser, validation
from headgate.limit_parser import parse_limit
from headgate.limits import Concurrency, Limit, Quota, Rate, Window

# Texts of limits


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("100/minute", Window(100, 60)),
        ("100 per minute", Window(100, 60)),
        ("  100  /  minute  ", Window(100, 60)),
        ("100\tper\nminute", Window(100, 60)),
        ("10k tokens/min", Window(10_000, 60, unit="tokens")),
        ("10K tokens/min", Window(10_000, 60, unit="tokens")),
        ("10kilo tokens/min", Window(10_000, 60, unit="tokens")),
        ("1.5k/h", Window(1_500, 3_600)),
        ("1_000 requests per 2 hours", Window(1_000, 7_200)),
        ("1 request per second", Window(1, 1)),
        ("900tokens/min", Window(900, 60, unit="tokens")),
        ("5/10 seconds", Window(5, 10)),
        ("10/2hours", Window(10, 7_200)),
        ("100 seconds per day", Window(100, 86_400, unit="seconds")),
        ("10/s slack 10ms", Window(10, 1, slack=0.01)),
        ("10/s slack 0s", Window(10, 1)),
        ("100/minute burst 100", Rate(100, 60)),
        ("10 PER Second Burst 20", Rate(10, 1, 20)),
        ("10/second burst 1", Rate(10, 1, 1)),
        ("10 per second initial 0 burst 20", Rate(10, 1, 20, 0)),
        ("2m tokens/min burst 4M", Rate(2_000_000, 60, 4_000_000, unit="tokens")),
        ("2.5/second burst 3", Rate(2.5, 1, 3)),
        ("0.5 per second burst 1", Rate(0.5, 1)),
        ("1.5/s burst 1_000", Rate(1.5, 1, 1_000)),
        ("0.0025k tokens/s burst 1k", Rate(2.5, 1, 1_000, unit="tokens")),
        ("2.5 every 10s", Rate(2.5, 10, steps=True)),
        ("10/s slack 10ms burst 10", Rate(10, 1, slack=0.01)),
        ("5 every 10s", Rate(5, 10, steps=True)),
        ("5 tokens every minute burst 7", Rate(5, 60, 7, steps=True, unit="tokens")),
        ("100 in any minute", Window(100, 60)),
        ("100/minute sliding", Window(100, 60)),
        ("100 in any minute sliding", Window(100, 60)),
        ("100 tokens in any 90 s slack 0.5 sec", Window(100, 90, "tokens", 0.5)),
        ("1000/day from midnight", Quota(1_000, 86_400)),
        ("1000 per day fixed", Quota(1_000, 86_400)),
        ("1000/day quota", Quota(1_000, 86_400)),
        ("1000/day fixed from midnight slack 1s", Quota(1_000, 86_400, slack=1)),
        ("50/hour from 1970-01-01T00:00:00Z", Quota(50, 3_600, 0)),
        ("50/hour from 1970-01-01t02:00+01:00", Quota(50, 3_600, 3_600)),
        ("50/hour from 1969-12-31T23:59:59.5Z", Quota(50, 3_600, -0.5)),
        ("5 concurrent", Concurrency(5)),
        ("5 permits concurrent", Concurrency(5)),
        ("1 permit concurrent", Concurrency(1)),
        ("64 mb concurrent", Concurrency(64, unit="mb")),
        ("64mb concurrent lease 2m", Concurrency(64, 120, "mb")),
    ],
)
def test_usual_texts_are_parsed(text: str, limit: Limit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize(
    ("words", "length"),
    [
        ("ms millisecond milliseconds", 0.001),
        ("s sec secs second seconds", 1),
        ("m min mins minute minutes", 60),
        ("h hr hrs hour hours", 3_600),
        ("d day days", 86_400),
        ("week weeks", 604_800),
    ],
)
def test_every_unit_of_time_is_parsed_with_and_without_a_number(words: str, length: float) -> None:
    for word in words.split():
        assert parse_limit(f"7/{word}") == parse_limit(f"7 per {word.upper()}") == Window(7, length)
        assert (
            parse_limit(f"7 per 15{word}")
            == parse_limit(f"7 / 15 {word}")
            == Window(7, 15 * length)
        )


@pytest.mark.parametrize(
    "example",
    [text for texts in limit_parser._EXAMPLES.values() for text in texts.split("'")[1::2]],
)
def test_every_example_that_an_error_offers_works(example: str) -> None:
    assert parse_limit(example)


def test_every_example_of_the_documentation_works() -> None:
    paragraph = (limit_parser.__doc__ or "").split("\n\n")[-1]
    examples = [
        text for line in paragraph.splitlines() for text in line.split("    ") if text.strip()
    ]
    assert len(examples) == 9
    assert all(parse_limit(example) for example in examples)


# Written texts come back

counts = st.integers(1, 2**53 - 1)
lengths = st.one_of(
    st.integers(1, validation.TEN_YEARS - 1),
    st.floats(validation.MICROSECOND, validation.TEN_YEARS - validation.MICROSECOND),
    st.integers(1, 10**7).map(lambda thousandths: thousandths / 1_000),
    st.sampled_from([0.001, 1, 60, 900, 3_600, 86_400, 604_800]),
)
slacks = st.one_of(st.just(0), lengths)


@st.composite
def periods(draw: st.DrawFn) -> tuple[float, float]:
    """A period and its slack."""
    per, slack = draw(lengths), draw(slacks)
    assume(per + slack < validation.TEN_YEARS - 1)
    return per, slack


any_units = st.one_of(
    st.sampled_from(["requests", "permits", "tokens", "mb", "s", "minute", "second", "gpu2"]),
    st.text(string.ascii_lowercase, min_size=1, max_size=64),
    st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True),
).filter(lambda unit: not validation.unit_fault(unit) and unit not in validation.SINGULARS)
units = any_units.filter(lambda unit: unit not in limit_parser.WORDS)
anchors = st.one_of(
    st.none(),
    st.integers(-(2**32) + 1, 2**32 - 1),
    st.floats(-(2**32), 2**32, exclude_min=True, exclude_max=True).filter(
        lambda value: abs(value) < 2**32 - 1
    ),
    st.integers(-(2**32) * 10**6 + 1, 2**32 * 10**6 - 1).map(
        lambda moment: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=moment)
    ),
)


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    amount = draw(st.one_of(counts, st.floats(1e-6, 2**21 - 1), st.sampled_from([2.5, 0.1, 1 / 3])))
    capacity = draw(
        st.one_of(st.none(), counts if isinstance(amount, int) else st.integers(1, 2**21 - 1))
    )
    initial = draw(st.one_of(st.none(), st.integers(0, capacity or ceil(amount))))
    per, slack = draw(periods())
    assume((per + slack) / amount < validation.TEN_YEARS)
    return Rate(amount, per, capacity, initial, draw(st.booleans()), draw(units), slack)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    per, slack = draw(periods())
    return Window(draw(counts), per, draw(units), slack)


@st.composite
def quotas(draw: st.DrawFn) -> Quota:
    per, slack = draw(lengths), draw(slacks)
    assume(validation.microseconds(slack) < validation.microseconds(per))
    return Quota(draw(counts), per, draw(anchors), draw(units), slack)


limits = st.one_of(
    st.builds(Concurrency, counts, lengths, units),
    rates(),
    windows(),
    quotas(),
)


@given(limits)
def test_the_canonical_text_of_a_limit_says_that_limit(limit: Limit) -> None:
    assert parse_limit(str(limit)) == limit


@given(limits)
def test_neither_case_nor_spaces_matter(limit: Limit) -> None:
    words = str(limit).upper().split()
    assert parse_limit(" " + "\n\t ".join(words) + " ") == limit


@pytest.mark.parametrize("unit", sorted(word for word in limit_parser.WORDS if word.isalpha()))
@pytest.mark.parametrize(
    "shape",
    ["10 {} per second", "10 {}/s", "10 {} every 5s", "10 {} in any minute", "10 {} concurrent"],
)
def test_a_word_of_the_grammar_as_a_unit_is_refused_and_never_misread(
    unit: str, shape: str
) -> None:
    """It can be a limit's unit, but not in a text: better no limit than another one."""
    with pytest.raises(ValueError, match=r"^parse_limit"):
        parse_limit(shape.format(unit))


# Refused texts


@pytest.mark.parametrize(
    ("text", "at", "fault"),
    [
        ("", 1, "expected a number, such as 100, but the text ends"),
        ("   ", 4, "expected a number, such as 100, but the text ends"),
        ("minute", 1, "expected a number, such as 100, but found 'minute'"),
        ("100", 4, "expected '/', 'per', 'every', 'in any' or 'concurrent', but the text ends"),
        ("100/", 5, "expected a unit of time"),
        (
            "100 per per minute",
            9,
            "expected a unit of time, such as 's', 'minute' or 'hours', but found 'per'",
        ),
        ("100 pre minute", 5, "'pre' is not a word of the grammar; did you mean 'per'?"),
        ("100 minute", 11, "expected '/', 'per'"),
        ("100/minut", 5, "did you mean 'minute'?"),
        ("100/5", 6, "expected a unit of time"),
        ("100/month", 5, "a month has no fixed length; write it in days"),
        ("100/2 years", 7, "a year has no fixed length; write it in days"),
        ("0/minute", 1, "'0' is out of range; write a number above 0"),
        ("9007199254740992/s", 1, "out of range"),
        ("9" * 200 + "/s", 1, "out of range"),
        ("10000000000000k/s", 1, "out of range"),
        (
            "1.5/s",
            1,
            "'1.5' is not whole, and a sliding window counts whole ones; write a longer period, or "
            "a burst",
        ),
        ("1.2345k/s", 1, "'1.2345' is not whole"),
        (
            "2.5/day from midnight",
            1,
            "'2.5' is not whole, and a quota counts whole ones; write a longer period",
        ),
        (
            "2.5 concurrent",
            1,
            "'2.5' is not whole, and a limit of concurrency counts whole ones; write a whole "
            "number",
        ),
        ("2.5/s burst 2.5", 13, "'2.5' is not whole"),
        ("0.0/s burst 1", 1, "'0.0' is out of range"),
        ("-5/min", 1, "'-' has no meaning here"),
        ("+5/min", 1, "'+' has no meaning here"),
        (".5/min", 1, "'.' has no meaning here"),
        ("5./min", 1, "'5.' is not a number"),
        ("1__0/min", 1, "'1__0' is not a number"),
        ("1_/min", 1, "'1_' is not a number"),
        ("1.2.3/min", 1, "'1.2.3' is not a number"),
        ("1,000/min", 2, "thousands are written 1_000"),
        ("100/minute; 5 concurrent", 11, "a text holds one limit"),
        ("1e3/min", 2, "write the number in full"),
        ("0x10/min", 2, "write the number in full"),
        ("10 per 1h30m", 9, "write the number in full"),
        ("nan/min", 1, "expected a number"),
        ("inf/min", 1, "expected a number"),
        ("٣/min", 1, "has no meaning here"),
        ("100\x00/min", 4, "has no meaning here"),
        ("100/min🎟", 8, "has no meaning here"),
        ("10 k tokens/min", 4, "'k' stands alone; join it to its number, as in '10k'"),
        ("10 m/min", 4, "'m' stands alone"),
        ("10 cost/min", 4, "acquire has an argument 'cost' already"),
        ("10 for/min", 4, "a word of Python's own"),
        (f"10 {'x' * 65}/min", 4, "at most 64 characters"),
        ("10/0s", 4, "out of range; write a time of a microsecond or more"),
        ("10/0.0001ms", 4, "out of range"),
        ("10/3650 days", 4, "below ten years"),
        ("10/s burst", 11, "expected a number"),
        ("10/s burst 0", 12, "'0' is out of range"),
        ("10/s burst 5 burst 6", 14, "'burst' is there twice; write it once"),
        ("10/s brust 5", 6, "did you mean 'burst'?"),
        (
            "10/s slack minute",
            12,
            "expected a length of time, such as 10s or 500 ms, but found 'minute'",
        ),
        ("10/s slack 5", 13, "expected a unit of time"),
        ("10/s lease 5s", 6, "'lease' does not go with a sliding window"),
        ("10/s burst 5 lease 5s", 14, "'lease' does not go with a rate"),
        ("10/s initial 0", 6, "'initial' goes with a burst; write both"),
        ("100/minute sliding burst 20", 20, "'burst' does not go with a sliding window"),
        ("100 in any minute burst 20", 19, "'burst' does not go with a sliding window"),
        ("100/minute burst 20 sliding", 21, "'sliding' does not go with a rate"),
        ("100/minute sliding from midnight", 20, "'from' does not go with a sliding window"),
        ("100/minute fixed sliding", 18, "'sliding' does not go with a quota"),
        ("5 every 10s sliding", 13, "'sliding' does not go with a rate in steps"),
        ("5 concurrent slack 1s", 14, "'slack' does not go with a limit of concurrency"),
        (
            "5 concurrent requests",
            14,
            "expected the end or an option ('lease'), but found 'requests'",
        ),
        ("100 in 5 minutes", 8, "expected 'any'"),
        ("1000/day from", 14, "expected 'midnight' or a moment"),
        ("1000/day from noon", 15, "expected 'midnight' or a moment"),
        ("1000/day from 2024-01-01", 15, "has no offset; write it like 2024-01-01T00:00:00Z"),
        ("1000/day from 2024-13-01T00:00Z", 15, "is not a moment"),
        ("1000/day from 0001-01-01T00:00+14:00", 15, "is too far away"),
        ("1000/day from 2024-01-01T00:00Z tomorrow", 33, "expected the end"),
    ],
)
def test_the_error_for_a_bad_text_names_the_fault_its_position_and_an_example(
    text: str, at: int, fault: str
) -> None:
    with pytest.raises(ValueError, match=r"^parse_limit") as caught:
        parse_limit(text)
    lines = str(caught.value).splitlines()
    assert fault in lines[0]
    assert f"at character {at}, " in lines[0]
    assert lines[2].index("^") == 4 + at - 1  # the mark below the text stands under that character
    assert lines[3].startswith("Write it like '")
    assert lines[3].count("'") in {4, 6}  # two or three examples


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "10/s burst 5 initial 9",
            "Rate(initial=9): a bucket cannot start with more than its capacity of 5",
        ),
        (
            "10/s fixed slack 1s",
            "Quota(slack=1): slack must be shorter than the window of 1 seconds",
        ),
    ],
)
def test_the_error_for_numbers_that_conflict_is_that_of_the_limit(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=r"^parse_limit") as caught:
        parse_limit(text)
    assert fault in str(caught.value)
    assert "Write it like '" in str(caught.value)


@pytest.mark.parametrize("text", [None, 5, True, b"5 concurrent", Rate(5, 1), ["5/s"]])
def test_parse_limit_refuses_an_object_that_is_no_text(text: Any) -> None:
    with pytest.raises(TypeError, match="a limit is written as a str, such as '100/minute'"):
        parse_limit(text)


@pytest.mark.parametrize("text", ["redis://user:password@host", "redis:/user:password@host"])
def test_the_error_for_a_url_shows_no_password(text: str) -> None:
    with pytest.raises(ValueError, match="a URL is no limit") as refused:
        parse_limit(text)
    assert "password" not in str(refused.value)


def test_a_huge_text_is_refused_without_being_read() -> None:
    with pytest.raises(
        ValueError, match="at most 256 characters, and this text has 10000000"
    ) as caught:
        parse_limit("9" * 10_000_000)
    assert len(str(caught.value)) < 400


@given(st.one_of(st.text(), st.text(string.digits + string.ascii_letters + " /_.-+:")))
def test_parse_limit_returns_a_limit_or_raises_a_value_error(text: str) -> None:
    try:
        assert isinstance(parse_limit(text), Limit)
    except ValueError as error:
        assert str(error).startswith("parse_limit(")  # noqa: PT017 - either outcome is fine


@given(
    st.lists(
        st.sampled_from(
            [
                *sorted(limit_parser.WORDS),
                *limit_parser.TIMES,
                "10",
                "0",
                "1.5",
                "tokens",
                "1970-01-01T00:00Z",
            ]
        )
    )
)
def test_parse_limit_handles_its_own_words_in_any_order(words: list[str]) -> None:
    try:
        limit = parse_limit(" ".join(words))
    except ValueError as error:
        assert str(error).startswith("parse_limit(")  # noqa: PT017 - either outcome is fine
    else:
        assert parse_limit(str(limit)) == limit
