"""How servers write numbers and times, read strictly: what is not written so is None, and nothing raises.

Pure, and it knows no header. Numbers are ASCII digits: `float` and `int` would take "1_0", "nan", "1e400" and digits of other
scripts. Times become seconds from now, 0.0 for a moment that has passed.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 10 * 365 * 86_400  # seconds: who says more has said nonsense
EPOCH_FROM = 1_000_000_000  # more seconds than that are a date (of 2001 or later), and
EPOCH_MS_FROM = 1_000_000_000_000  # more than that one in milliseconds

WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
GO_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,15})?(?:h|ms|m|s|us|\u00b5s|ns))+", re.ASCII)
GO_PART = re.compile(r"([0-9.]+)(h|ms|m|s|us|\u00b5s|ns)", re.ASCII)
GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}
INSTANT = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
HTTP_DATE = re.compile(
    r"[A-Za-z]{3,9},? [A-Za-z0-9 :-]{15,30}", re.ASCII
)  # any of the three that RFC 9110 knows


def whole(text: str) -> int | None:
    """ "42"."""
    return int(text) if WHOLE.fullmatch(text) else None


def first_whole(text: str) -> int | None:
    """The first of "100, 100;w=60"."""
    return whole(re.split("[,;]", text, maxsplit=1)[0].strip())


def seconds(text: str) -> float | None:
    """ "42", "0.05"."""
    return bounded(float(text)) if NUMBER.fullmatch(text) else None


def milliseconds(text: str) -> float | None:
    """Of "1500", as 1.5."""
    return bounded(float(text) / 1000) if NUMBER.fullmatch(text) else None


def go_duration(text: str) -> float | None:
    """ "6m0s", "16m17.764s", "12ms", as Go writes them; a number alone is seconds."""
    if not GO_DURATION.fullmatch(text):
        return seconds(text)
    try:
        return bounded(
            sum(float(number) * GO_UNITS[unit] for number, unit in GO_PART.findall(text))
        )
    except ValueError:
        return None


def instant(text: str, now: float) -> float | None:
    """ "2026-11-21T18:30:00Z", as RFC 3339 writes it."""
    if not INSTANT.fullmatch(text):
        return None
    try:
        return until(datetime.fromisoformat(text.upper()).timestamp(), now)
    except (ValueError, OverflowError):
        return None


def epoch(text: str, now: float) -> float | None:
    """Seconds or milliseconds since 1970, such as "1795286400.5"; a small number is seconds from now."""
    if not NUMBER.fullmatch(text):
        return None
    number = float(text)
    if number < EPOCH_FROM:
        return bounded(number)
    return until(number / 1000 if number >= EPOCH_MS_FROM else number, now)


def http_date(text: str) -> float | None:
    """The moment of "Sat, 21 Nov 2026 18:30:00 GMT", in seconds since 1970; the two older spellings, too."""
    if not HTTP_DATE.fullmatch(text):
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):  # of the parser's many ways to fail
        return None


def until(moment: float, now: float) -> float | None:
    return bounded(max(0.0, moment - now))


def bounded(number: float) -> float | None:
    """Seconds that somebody could mean."""
    return number if math.isfinite(number) and 0 <= number < LONGEST else None
