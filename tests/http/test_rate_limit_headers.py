"""How servers' responses are read: the headers of each provider, and malformed ones.

Time is an argument: NOW is the moment at which the responses come.
"""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

import httpx
import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict
from requests.structures import CaseInsensitiveDict

from headgate.http import header_values
from headgate.http.rate_limit_headers import Answer, Budget, read

NOW = datetime(2026, 11, 21, 18, 30, tzinfo=UTC).timestamp()


def read_headers(status: int = 200, body: Any = None, **headers: str) -> Answer:
    """Read a response with these headers; underscores stand for hyphens."""
    text = json.dumps(body) if body is not None else ""
    return read(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, text, now=NOW
    )


# Retry-After -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("2.0", 2.0),
        ("0.05", 0.05),
        ("Sat, 21 Nov 2026 18:31:00 GMT", 60.0),
        ("Saturday, 21-Nov-26 18:31:00 GMT", 60.0),
        ("Sat Nov 21 18:31:00 2026", 60.0),
        ("Sat, 21 Nov 2026 18:00:00 GMT", 0.0),
        *[
            (text, None)
            for text in (
                "",
                "-1",
                "1, 2",
                "1_0",
                "nan",
                "inf",
                "1e400",
                "1e3",
                "٣",
                "+5",
                ".5",
                "5.",
                "0x10",
                "soon",
            )
        ],
        *[
            (text, None)
            for text in (
                "9" * 30,
                "999999999999",
                "Sat, 99 Nov 2026 18:31:00 GMT",
                "Sat, 21 Nov 9999 18:31:00 GMT",
            )
        ],
    ],
)
def test_retry_after_is_read_in_every_form(text: str, wait: float | None) -> None:
    assert read_headers(429, Retry_After=text) == Answer("throttled", wait)
    assert read_headers(503, Retry_After=text) == Answer("overloaded", wait)


def test_the_date_of_a_response_is_preferred_to_our_clock() -> None:
    """The server's clock is an hour slow; the wait is the one that the server meant."""
    answer = read_headers(
        429, Date="Sat, 21 Nov 2026 17:30:00 GMT", Retry_After="Sat, 21 Nov 2026 17:30:30 GMT"
    )
    assert answer.retry_after == 30.0


def test_a_date_without_a_zone_is_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the oldest of the three forms."""
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        assert read_headers(429, retry_after="Sat Nov 21 18:31:00 2026").retry_after == 60.0
    finally:
        monkeypatch.undo()
        time.tzset()


def test_our_clock_is_used_without_a_date() -> None:
    soon = format_datetime(
        datetime.fromtimestamp(int(datetime.now(UTC).timestamp()) + 100, UTC), usegmt=True
    )
    assert read(429, {"Retry-After": soon}).retry_after == pytest.approx(100, abs=30)


def test_retry_after_ms_is_preferred() -> None:
    assert read_headers(429, retry_after="1", retry_after_ms="350").retry_after == 0.35
    assert read_headers(429, retry_after="1", retry_after_ms="soon").retry_after == 1.0


@pytest.mark.parametrize("status", [200, 201, 202, 301, 401, 404, 422])
def test_a_response_that_is_no_refusal_has_no_wait(status: int) -> None:
    """Retry-After also stands on redirects and on accepted jobs."""
    assert read_headers(status, retry_after="10") == Answer()


@pytest.mark.parametrize(
    "kind", [httpx.Headers, httpx2.Headers, CIMultiDict, CaseInsensitiveDict, dict]
)
def test_the_headers_of_every_client_are_read(kind: Any) -> None:
    assert read(429, kind({"Retry-After": "7"})).retry_after == 7.0


def test_a_header_that_came_twice_is_malformed_unless_it_is_a_list() -> None:
    lines = CIMultiDict(
        [
            ("Retry-After", "1"),
            ("Retry-After", "2"),
            ("RateLimit", '"a";r=1'),
            ("RateLimit", '"b";r=2'),
        ]
    )
    assert read(429, lines) == Answer(
        "throttled", None, (Budget("a", remaining=1), Budget("b", remaining=2))
    )


# Providers -------------------------------------------------------------------------------------
# answers.py has the documented answers of each.


def test_the_tightest_budget_has_the_smallest_share_left() -> None:
    answer = read_headers(
        x_ratelimit_limit_requests="60",
        x_ratelimit_remaining_requests="59",
        x_ratelimit_limit_tokens="150000",
        x_ratelimit_remaining_tokens="1500",
        x_ratelimit_reset_tokens="6m0s",
    )
    tokens = Budget("tokens", 150_000, 1500, 360.0, unit="tokens", gradual=True)
    assert (answer.tightest, answer.limit, answer.remaining, answer.reset) == (
        tokens,
        150_000,
        1500,
        360.0,
    )


def test_a_spent_account_has_nothing_to_wait_for() -> None:
    """With any status, and any headers."""
    assert read_headers(403, {"error": {"code": "billing_not_active"}}, retry_after="3") == Answer(
        "exhausted"
    )
    assert not read_headers(400, {"error": {"message": "Too low."}}).permanent
    assert not read_headers(429, x_should_retry="true").permanent
    assert read_headers(403, {"error": "no object"}, retry_after="3") == Answer("throttled", 3.0)


def test_malformed_buckets_of_shopify_are_ignored() -> None:
    for text in ("32", "a/b", "-1/40", "32/40/1"):
        assert read_headers(x_shopify_shop_api_call_limit=text) == Answer()
    assert read_headers(x_shopify_shop_api_call_limit="45/40").remaining == 0


def test_the_data_of_a_call_that_passed_is_no_refusal() -> None:
    """Only errors of GraphQL come with status 200."""
    assert read_headers(200, {"code": "Throttling", "global": True}) == Answer()
    assert read_headers(200, {"error": {"code": "insufficient_quota"}}) == Answer()


def test_an_empty_budget_allows_the_next_call_when_one_unit_is_back() -> None:
    """A budget that fills up gradually has a unit long before it is full."""
    assert Budget("requests", 60, 0, 30.0).next == 30.0
    assert Budget("requests", 60, 0, 30.0, gradual=True).next == 0.5
    assert Budget("tokens", 60_000, 0, 30.0, unit="tokens", gradual=True).next == 1.0
    assert Budget("tokens", 60_000, 0, 0.5, unit="tokens", gradual=True).next == 0.5
    assert Budget("requests", None, 0, 30.0, gradual=True).next == 30.0
    assert Budget("requests", 60, 0, per=60.0).next == 60.0
    assert Budget("requests", 60, 0).next is None


def test_one_limit_in_two_forms_is_one_budget() -> None:
    """Two names, two windows or two remainders are two budgets."""
    forms = {"RateLimit_Limit": "10", "RateLimit_Remaining": "9", "RateLimit_Reset": "7"}
    minute = {"X_RateLimit_Limit_Minute": "10", "X_RateLimit_Remaining_Minute": "9"}
    assert read_headers(**forms, **minute).budgets == (Budget("minute", 10, 9, 7.0, 60.0),)
    assert (
        len(read_headers(**forms, **{**minute, "X_RateLimit_Remaining_Minute": "8"}).budgets) == 2
    )
    policies = '"a";q=10;w=60, "b";q=10;w=60'
    assert len(read_headers(RateLimit_Policy=policies).budgets) == 2
    policies = "10;w=60, 10;w=3600"
    assert len(read_headers(RateLimit_Policy=policies).budgets) == 2


@pytest.mark.parametrize(
    ("host", "header", "per"),
    [
        ("api.github.com", {}, 3600.0),
        ("github.example", {"x-github-request-id": "1"}, 3600.0),
        ("api.github.com.example", {}, None),
        ("notapi.github.com", {}, None),
        ("", {}, None),
    ],
)
def test_a_period_is_known_by_the_host_or_by_a_header(
    host: str, header: dict[str, str], per: float | None
) -> None:
    headers = {"x-ratelimit-limit": "5000", "x-ratelimit-resource": "core", **header}
    assert read(200, headers, now=NOW, host=host).budgets == (Budget("core", 5000, per=per),)


@pytest.mark.parametrize(
    ("name", "per"),
    [
        ("requests-day", 86_400.0),
        ("tokens-per-minute", 60.0),
        ("tokens-5-minute", 300.0),
        ("second", 1.0),
        ("holiday", None),
        ("audio-seconds", None),
        ("requests-0-minute", None),
    ],
)
def test_the_name_of_a_budget_states_its_period(name: str, per: float | None) -> None:
    answer = read(200, {f"x-ratelimit-limit-{name}": "7"}, now=NOW)
    assert [budget.per for budget in answer.budgets] == [per]


# IETF ------------------------------------------------------------------------------------------


def test_policies_and_their_remainders_are_read_together() -> None:
    answer = read_headers(
        RateLimit_Policy='"burst";q=100;w=60,"daily";q=1000;w=86400', RateLimit='"burst";r=50;t=30'
    )
    assert answer.budgets == (
        Budget("burst", 100, 50, 30.0, 60.0),
        Budget("daily", 1000, per=86_400.0),
    )


def test_names_without_quotes_units_and_partitions_are_read() -> None:
    answer = read_headers(
        RateLimit_Policy='bytes;q=9;w=60;qu="content-bytes";pk=:YWJj:, '
        "bytes;q=8;w=60;qu=content-bytes;pk=:ZGVm:",
        RateLimit="bytes;r=4;pk=:ZGVm:",
    )
    assert answer.budgets == (
        Budget("bytes", 9, None, None, 60.0, "content-bytes", b"abc"),
        Budget("bytes", 8, 4, None, 60.0, "content-bytes", b"def"),
    )


def test_the_headers_of_older_drafts_are_read() -> None:
    assert read_headers(RateLimit="limit=100, remaining=50, reset=5").budgets == (
        Budget("", 100, 50, 5.0),
    )
    older = read_headers(
        RateLimit_Limit="100, 100;w=60", RateLimit_Remaining="50", RateLimit_Reset="5"
    )
    assert older.budgets == (Budget("", 100, 50, 5.0, 60.0),)


def test_retry_after_is_preferred_to_the_reset_of_an_empty_budget() -> None:
    state = '"a";r=0;t=30, "b";r=5;t=90'
    assert read_headers(429, RateLimit=state, retry_after="7").retry_after == 7.0
    assert read_headers(429, RateLimit=state).retry_after == 30.0


@pytest.mark.parametrize(
    "text",
    [
        '"a"',
        '"a";r=-1',
        '"a";r=1.5',
        '"a";r="1"',
        '"a";r',
        '("a");r=1',
        '"a";r=1,',
        '"a;r=1',
        "r=1",
        "?1",
        "\udc80",
        "é",
    ],
)
def test_a_malformed_field_is_ignored(text: str) -> None:
    assert read_headers(RateLimit=text) == Answer()
    assert read_headers(RateLimit_Policy=text.replace("r", "q")) == Answer()


# Malformed responses --------------------------------------------------------------------------

NAMES = [
    *(
        "retry-after",
        "retry-after-ms",
        "date",
        "ratelimit",
        "ratelimit-policy",
        "ratelimit-limit",
        "ratelimit-reset",
    ),
    *(
        "x-ratelimit-limit",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-ratelimit-reset-after",
        "x-ratelimit-bucket",
    ),
    *(
        "x-rate-limit-reset",
        "x-ratelimit-reset-tokens",
        "x-ratelimit-remaining-tokens",
        "x-shopify-shop-api-call-limit",
    ),
    *("anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining", "x-should-retry"),
]
NUMBERS = st.one_of(
    st.integers().map(str), st.floats().map(str), st.from_regex(r"[0-9.hmsn]{0,40}", fullmatch=True)
)
FIELDS = st.from_regex(
    r'("?[a-z]{0,3}"?;(r|t|q|w|pk)=[-0-9.:"@a-z]{0,17},? ?){0,3}', fullmatch=True
)
DATES = st.from_regex(
    r"[A-Z][a-z]{2,8},? [0-9]{0,4}[ -][A-Z][a-z]{2}[ -][0-9]{0,5} [0-9:]{0,9}( GMT| [0-9]{4}|)",
    fullmatch=True,
)
INSTANTS = st.from_regex(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})",
    fullmatch=True,
)
VALUES = st.one_of(st.text(), NUMBERS, FIELDS, DATES, INSTANTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["error", "errors", "code", "message", "extensions"]), inner
        )
    ),
)
COSTS = st.fixed_dictionaries({
    "extensions": st.fixed_dictionaries({
        "cost": st.fixed_dictionaries({
            "requestedQueryCost": JSON,
            "throttleStatus": st.dictionaries(
                st.sampled_from(["maximumAvailable", "currentlyAvailable", "restoreRate"]), JSON
            ),
        })
    }),
    "retry_after": JSON,
})  # fmt: skip


@given(
    st.sampled_from([200, 403, 429, 503]),
    st.dictionaries(st.sampled_from(NAMES), VALUES),
    st.one_of(JSON, COSTS),
)
@example(429, {}, {"retry_after": 10**400})
@example(429, {"retry-after": "Mon, 31 Feb 2026 00:00:00 GMT"}, [])
def test_no_response_raises_or_gives_absurd_values(
    status: int, headers: dict[str, str], body: Any
) -> None:
    answer = read(status, headers, json.dumps(body), now=NOW)

    waits = [
        answer.retry_after,
        *(wait for budget in answer.budgets for wait in (budget.reset, budget.per)),
    ]
    assert all(
        wait is None or (math.isfinite(wait) and 0 <= wait < header_values.LONGEST)
        for wait in waits
    )
    counts = [count for budget in answer.budgets for count in (budget.limit, budget.remaining)]
    assert all(count is None or (type(count) is int and count >= 0) for count in counts)
    assert answer.retry_after is None or answer.verdict in ("throttled", "overloaded")
    assert hash(answer) == hash(read(status, headers, json.dumps(body), now=NOW))


@pytest.mark.parametrize(
    "body",
    ["[" * 100_000, "{", "null", "\ud800", b"\xff\xfe", b"[NaN]", "9" * 10_000, "x" * 2_000_000],
)
def test_a_body_without_json_is_ignored(body: str | bytes) -> None:
    assert read(429, {"retry-after": "1"}, body) == Answer("throttled", 1.0)


def test_a_body_that_is_too_long_is_ignored() -> None:
    spent = json.dumps({"error": {"code": "insufficient_quota", "message": "x" * 1_000_000}})
    assert read(429, {}, spent).verdict == "throttled"


@given(st.binary())
def test_no_bytes_of_a_body_raise(body: bytes) -> None:
    assert read(429, {}, body).verdict == "throttled"


@given(st.integers(0, 10**8))
def test_whole_seconds_are_read_exactly(wait: int) -> None:
    assert read_headers(429, retry_after=str(wait)).retry_after == wait


@given(st.integers(0, 10**8))
def test_all_forms_of_a_moment_give_the_same_wait(wait: int) -> None:
    moment = datetime.fromtimestamp(NOW + wait, UTC)
    spelled = ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"]
    assert {
        read_headers(429, retry_after=moment.strftime(form)).retry_after for form in spelled
    } == {wait}
    assert (
        header_values.parse_time(moment.isoformat(), NOW)
        == header_values.parse_numeric_time(str(int(moment.timestamp())), NOW)
        == wait
    )


@given(st.integers(0, 999), st.integers(0, 59), st.integers(0, 59_999))
def test_durations_in_the_form_of_go_are_read(hours: int, minutes: int, milliseconds: int) -> None:
    text = f"{hours}h{minutes}m{milliseconds / 1000}s"
    assert header_values.parse_duration(text) == pytest.approx(
        hours * 3600 + minutes * 60 + milliseconds / 1000
    )


@pytest.mark.parametrize(
    ("text", "wait"),
    [("12ms", 0.012), ("16m17.764s", 977.764), ("1h", 3600.0), ("5µs", 5e-6)],
)
def test_durations_from_the_documents_are_read(text: str, wait: float) -> None:
    assert header_values.parse_duration(text) == pytest.approx(wait)


@pytest.mark.parametrize(
    "text", ["", "s", "1x", "1m-1s", "-1s", "1 s", "1.2.3s", "7", "9" * 70 + "s"]
)
def test_other_texts_are_no_durations(text: str) -> None:
    assert header_values.parse_duration(text) is None
