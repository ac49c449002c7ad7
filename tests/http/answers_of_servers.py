"""The documented answers of any server: the forms of the IETF, and those seen in the wild."""

from __future__ import annotations

from headgate.http.rate_limit_headers import Answer, Budget
from tests.http.answer_rows import DAY, MINUTE, Row, at, passed, throttled

X = "docs.x.com/fundamentals/rate-limits"
IETF = "draft-ietf-httpapi-ratelimit-headers-11"
OLD_IETF = "drafts of the IETF up to 07, as express-rate-limit writes them"
RFC = "RFC 9110, section 10.2.3"
SEEN = "no document; seen in the wild"

FORMS = [
    Row(
        "IETF",
        "policies and states",
        IETF,
        429,
        throttled(
            30.0,
            Budget("burst", 100, 0, 30.0, MINUTE),
            Budget("daily", 1000, None, None, DAY),
        ),
        {
            "RateLimit-Policy": '"burst";q=100;w=60,"daily";q=1000;w=86400',
            "RateLimit": '"burst";r=0;t=30',
        },
    ),
    Row(
        "IETF",
        "draft 06",
        OLD_IETF,
        200,
        passed(Budget("", 100, 99, 900.0, 900.0)),
        {
            "RateLimit-Policy": "100;w=900",
            "RateLimit-Limit": "100",
            "RateLimit-Remaining": "99",
            "RateLimit-Reset": "900",
        },
    ),
    Row(
        "IETF",
        "draft 07",
        OLD_IETF,
        200,
        passed(Budget("", 100, 50, 5.0, 900.0)),
        {"RateLimit-Policy": "100;w=900", "RateLimit": "limit=100, remaining=50, reset=5"},
    ),
    Row(
        "IETF",
        "draft 03, the window in a list",
        OLD_IETF,
        200,
        passed(Budget("", 100, 50, 5.0, 60.0)),
        {
            "RateLimit-Limit": "100, 100;w=60;burst=1000, 5000;w=3600",
            "RateLimit-Remaining": "50",
            "RateLimit-Reset": "5",
        },
    ),
    *[
        Row(
            "Any server",
            f"Retry-After: {text}",
            RFC if rfc else SEEN,
            429,
            throttled(wait),
            {"Retry-After": text},
        )
        for text, wait, rfc in [
            ("120", 120.0, True),
            ("Sat, 21 Nov 2026 18:31:00 GMT", 60.0, True),
            ("Sat, 21 Nov 2026 19:31:00 +0100", 60.0, False),
            ("2.5", 2.5, False),
            ("30s", 30.0, False),
            ("1m30s", 90.0, False),
            ("30, 30", 30.0, False),
            ("30, 60", None, False),
            ("2026-11-21T18:31:00Z", 60.0, False),
        ]
    ],
    Row("Any server", "X-Retry-After", SEEN, 429, throttled(30.0), {"X-Retry-After": "30"}),
    *[
        Row(
            "Any server",
            f"a {status} with Retry-After",
            RFC,
            status,
            Answer("overloaded", 20.0),
            {"Retry-After": "20"},
        )
        for status in (408, 500, 502, 503, 504)
    ],
    *[
        Row("Any server", f"a {status} without Retry-After", RFC, status, Answer("passed"))
        for status in (408, 420, 430, 500, 504)
    ],
    Row("Any server", "a 429 without a word", RFC, 429, throttled()),
    Row("Any server", "a 402", RFC, 402, Answer("exhausted"), {"Retry-After": "3"}),
    Row(
        "Any server",
        "a Date of years ago",
        SEEN,
        429,
        throttled(5.0, Budget(remaining=0, reset=5.0)),
        {
            "Date": "Wed, 21 Nov 2018 18:30:00 GMT",
            "X-RateLimit-Remaining": "0",
            "X-RateLimit-Reset": at(5),
        },
    ),
]
