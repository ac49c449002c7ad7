"""How servers write numbers and times in headers, read strictly: any other text gives None.

Pure; nothing raises, and a long text costs no more than a short one. Numbers are ASCII digits,
because `float` and `int` accept "1_0", "nan", "1e400" and digits of other scripts. Times are
returned in seconds from now; a moment that has passed is 0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

T = TypeVar("T")

LONGEST = 10 * 365 * 86_400  # seconds: a longer time is taken for an error
LONGEST_TEXT = 64  # characters of a number or a time
EPOCH_FROM = 1_000_000_000  # seconds: a number from here on is a date, of 2001 or later
EPOCH_MS_FROM = 1_000_000_000_000  # a number from here on is a date in milliseconds

NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?", re.ASCII)
DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,15})?(?:d|h|ms|m|s|us|\u00b5s|ns))+", re.ASCII)
DURATION_PART = re.compile(r"([0-9.]+)(d|h|ms|m|s|us|\u00b5s|ns)", re.ASCII)
SECONDS: Mapping[str, float] = {
    "d": 86_400.0,
    "h": 3600.0,
    "m": 60.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "\u00b5s": 1e-6,
    "ns": 1e-9,
}
INSTANT = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)",
    re.ASCII | re.IGNORECASE,
)
# Any of the three forms of RFC 9110; some servers write an offset such as +0100 for GMT.
HTTP_DATE = re.compile(r"[A-Za-z]{3,9},? [A-Za-z0-9 :+-]{15,30}", re.ASCII)


def parse_time(text: str, now: float) -> float | None:
    """Read a time in any form: "42", "1m30s", an epoch, "2026-11-21T18:30Z" or an HTTP date."""
    if len(text) > LONGEST_TEXT:
        return None
    if NUMBER.fullmatch(text):
        return parse_numeric_time(text, now)
    moment = parse_instant(text)
    if moment is None:
        moment = parse_http_date(text)
    return parse_duration(text) if moment is None else seconds_until(moment, now)


def parse_count(text: str) -> int | None:
    """Read "99", "599.0" as Reddit writes it, or "99;w=60"."""
    number, _, _ = text.partition(";")
    return int(float(number)) if is_number(number.strip()) else None


def parse_limit(text: str) -> tuple[int | None, float | None]:
    """Read a limit and the seconds of its window: "100", "100;w=60" or "100, 100;w=60;burst=9".

    The limit is the item without parameters. If there is none, all items must have one number. The
    items with this number must agree on its window.
    """
    items = [item.strip().partition(";") for item in text.split(",")]
    without_parameters = {number for number, semicolon, _ in items if not semicolon}
    numbers = without_parameters or {number for number, _, _ in items}
    limit = parse_count(find_only(numbers) or "")
    if limit is None:
        return None, None
    windows = {find_window(rest) for number, _, rest in items if parse_count(number) == limit}
    return limit, find_only(windows - {None})


def find_only(values: set[T]) -> T | None:
    return next(iter(values)) if len(values) == 1 else None


def find_window(parameters: str) -> float | None:
    for parameter in parameters.split(";"):
        name, _, value = parameter.strip().partition("=")
        if name == "w":
            return parse_number(value)
    return None


def parse_number(text: str) -> float | None:
    """Read "42" or "0.05"."""
    return keep_plausible(float(text)) if is_number(text) else None


def parse_milliseconds(text: str) -> float | None:
    """Read "1500" as 1.5."""
    return keep_plausible(float(text) / 1000) if is_number(text) else None


def is_number(text: str) -> bool:
    return len(text) <= LONGEST_TEXT and NUMBER.fullmatch(text) is not None


def parse_duration(text: str) -> float | None:
    """Read "30s", "6m0s", "16m17.764s" or "12ms"."""
    if len(text) > LONGEST_TEXT or not DURATION.fullmatch(text):
        return None
    parts = DURATION_PART.findall(text)
    return keep_plausible(sum(float(number) * SECONDS[unit] for number, unit in parts))


def parse_numeric_time(text: str, now: float) -> float | None:
    """Read seconds or milliseconds since 1970, or a small number, which is seconds from now."""
    if not is_number(text):
        return None
    number = float(text)
    if number < EPOCH_FROM:
        return keep_plausible(number)
    return seconds_until(number / 1000 if number >= EPOCH_MS_FROM else number, now)


def parse_instant(text: str) -> float | None:
    """Read "2026-11-21T18:30:00Z" of RFC 3339, also without seconds, as seconds since 1970."""
    if not INSTANT.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text.upper()).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_http_date(text: str) -> float | None:
    """Read "Sat, 21 Nov 2026 18:30:00 GMT" or an older form, as seconds since 1970."""
    if not HTTP_DATE.fullmatch(text):
        return None
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):  # the parser raises all of these
        return None


def merge_repeats(text: str) -> str:
    """Return "30" for "30, 30": equal values of header lines, joined by commas, count once."""
    parts = [part.strip() for part in text.split(",")]
    for size in (1, 2):  # a date has a comma, so it has two parts
        if parts == parts[:size] * (len(parts) // size):
            return ", ".join(parts[:size])
    return text


def seconds_until(moment: float, now: float) -> float | None:
    return keep_plausible(max(0.0, moment - now))


def keep_plausible(number: float) -> float | None:
    """Keep a number that a server could mean, in seconds or as a size."""
    return number if math.isfinite(number) and 0 <= number < LONGEST else None
