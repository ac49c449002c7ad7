"""How servers write numbers and times in headers, read strictly: any other text gives None.

Pure; nothing raises. Numbers are ASCII digits, because `float` and `int` accept "1_0", "nan",
"1e400" and digits of other scripts. Times are returned in seconds from now; a moment that has
passed is 0.0.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 10 * 365 * 86_400  # seconds: a longer time is taken for an error
EPOCH_FROM = 1_000_000_000  # seconds: a number from here on is a date, of 2001 or later
EPOCH_MS_FROM = 1_000_000_000_000  # a number from here on is a date in milliseconds

WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
GO_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,15})?(?:h|ms|m|s|us|\u00b5s|ns))+", re.ASCII)
GO_PART = re.compile(r"([0-9.]+)(h|ms|m|s|us|\u00b5s|ns)", re.ASCII)
GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "ns": 1e-9}
INSTANT = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE
)
# Any of the three forms of RFC 9110.
HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9 :-]{15,30}", re.ASCII)


def parse_first_whole(text: str) -> int | None:
    """Read the first number of "100, 100;w=60"."""
    first = re.split("[,;]", text, maxsplit=1)[0].strip()
    return int(first) if WHOLE.fullmatch(first) else None


def parse_seconds(text: str) -> float | None:
    """Read "42" or "0.05"."""
    return keep_plausible(float(text)) if NUMBER.fullmatch(text) else None


def parse_milliseconds(text: str) -> float | None:
    """Read "1500" as 1.5."""
    return keep_plausible(float(text) / 1000) if NUMBER.fullmatch(text) else None


def parse_go_duration(text: str) -> float | None:
    """Read "6m0s", "16m17.764s" or "12ms", as Go writes them; a number alone is seconds."""
    if not GO_DURATION.fullmatch(text):
        return parse_seconds(text)
    try:
        parts = GO_PART.findall(text)
        return keep_plausible(sum(float(number) * GO_UNITS[unit] for number, unit in parts))
    except ValueError:
        return None


def parse_instant(text: str, now: float) -> float | None:
    """Read "2026-11-21T18:30:00Z", as RFC 3339 writes it."""
    if not INSTANT.fullmatch(text):
        return None
    try:
        return seconds_until(datetime.fromisoformat(text.upper()).timestamp(), now)
    except (ValueError, OverflowError):
        return None


def parse_epoch(text: str, now: float) -> float | None:
    """Read seconds or milliseconds since 1970, or a small number, which is seconds from now."""
    if not NUMBER.fullmatch(text):
        return None
    number = float(text)
    if number < EPOCH_FROM:
        return keep_plausible(number)
    return seconds_until(number / 1000 if number >= EPOCH_MS_FROM else number, now)


def parse_http_date(text: str) -> float | None:
    """Read "Sat, 21 Nov 2026 18:30:00 GMT" or an older form, as seconds since 1970."""
    if not HTTP_DATE.fullmatch(text):
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):  # the parser raises all of these
        return None


def seconds_until(moment: float, now: float) -> float | None:
    return keep_plausible(max(0.0, moment - now))


def keep_plausible(number: float) -> float | None:
    """Keep a number that a server could mean, in seconds or as a size."""
    return number if math.isfinite(number) and 0 <= number < LONGEST else None
