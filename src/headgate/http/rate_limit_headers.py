"""Reads a server's limits from a response, as one small value: `read(status, headers)`.

    answer = read(response.status_code, response.headers)
    answer.retry_after      # seconds, or None
    answer.permanent        # waiting would not help: a spend cap, a quota that is used up
    answer.budgets          # what it says about each of its limits

Pure: it sends, stores and waits for nothing. Malformed headers are ignored.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import http_sf

from headgate.http import header_values
from headgate.http.error_bodies import (
    Headers,
    find_codes,
    find_refill,
    has_no_credit,
    is_secondary_limit,
)
from headgate.http.json_values import find_number, parse_object

__all__ = ["Answer", "Budget", "read"]

Verdict: TypeAlias = Literal["passed", "throttled", "overloaded", "exhausted"]
# Header names in lower case; the values of a header that came several times are joined by commas.
Fields: TypeAlias = dict[str, str]
ParseReset: TypeAlias = Callable[[str, float], float | None]  # a header's text, and now

OVERLOADED = {503, 529}
PAYMENT_REQUIRED = 402
BUSY_CODES = {"lock_timeout"}  # of a 429. Stripe: another call holds the object
SECONDARY_WAIT = 60.0  # seconds, for GitHub's secondary rate limit
LARGEST_BODY = 1_000_000  # bytes; a refusal is short


@dataclass(frozen=True, slots=True)
class Budget:
    """One of a server's limits. A field is None if the server does not state it.

    `name`: the server's own word for it: "requests", "input-tokens", the name of a policy, GitHub's
    resource; "" if it has none. `limit`, `remaining`: in `unit`. `reset`: seconds until it is full
    or, for some servers, until more may be used. `per`: the seconds of its window. `partition`:
    the server's key, if it has several budgets of that name.
    """

    name: str = ""
    limit: int | None = None
    remaining: int | None = None
    reset: float | None = None
    per: float | None = None
    unit: str = "requests"
    partition: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """All limits of a server, as one response states them.

    `verdict`: "passed", "throttled" (a limit was met: wait), "overloaded" (the server is busy: back
    off) or "exhausted". The last means a quota or a spend cap: do not wait. `retry_after`: seconds
    to wait before the next call, if the server refused this one and said so.
    """

    verdict: Verdict = "passed"
    retry_after: float | None = None
    budgets: tuple[Budget, ...] = ()

    @property
    def permanent(self) -> bool:
        """Whether waiting does not help."""
        return self.verdict == "exhausted"

    @property
    def tightest(self) -> Budget:
        """The budget with the smallest share left; an empty one if none states a remainder."""
        known = [budget for budget in self.budgets if budget.remaining is not None]
        return min(known, key=share_left, default=Budget())

    @property
    def remaining(self) -> int | None:
        """The rest of the tightest budget."""
        return self.tightest.remaining

    @property
    def limit(self) -> int | None:
        """The limit of the tightest budget."""
        return self.tightest.limit

    @property
    def reset(self) -> float | None:
        """Seconds until the tightest budget is full again or, for some servers, allows more."""
        return self.tightest.reset


def read(
    status: int, headers: Headers, body: bytes | str = b"", *, now: float | None = None
) -> Answer:
    """Read the limits of a server from its response. Never raises for content that a server sent.

    `body`, if you have it, tells a spend cap from a rate, and holds the statements of GraphQL
    servers. Without it only the headers count. `now`: seconds since 1970, for moments in a response
    without a `Date` of its own; unsaid, the clock of this machine.
    """
    fields = join_fields(headers)
    parsed = parse_object(body) if len(body) <= LARGEST_BODY else {}
    date = header_values.parse_http_date(fields.get("date", ""))
    if date is not None:
        now = date
    elif now is None:
        now = time.time()
    budgets = (
        *budgets_by_table(fields, now),
        *budgets_by_draft(fields),
        *budgets_of_shopify(parsed),
    )
    verdict = judge(status, fields, parsed, budgets)
    refused = verdict in ("throttled", "overloaded")
    return Answer(verdict, find_wait(fields, parsed, budgets, now) if refused else None, budgets)


def share_left(budget: Budget) -> float:
    # Without a limit, the number left stands for the share.
    return (budget.remaining or 0) / (budget.limit or 1)


def join_fields(headers: Headers) -> Fields:
    fields: Fields = {}
    for name, value in headers.items():
        name, value = name.lower(), value.strip()
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


# Whether the call was refused, and for how long ------------------------------------------------


def judge(status: int, fields: Fields, body: Any, budgets: Iterable[Budget]) -> Verdict:
    if status in OVERLOADED:
        return "overloaded"
    if status == PAYMENT_REQUIRED or (400 <= status < 500 and has_no_credit(body)):
        return "exhausted"
    if status == 429:
        return judge_429(fields, body)
    if status == 403 and is_throttled_403(fields, body, budgets):
        return "throttled"
    return "throttled" if "THROTTLED" in find_codes(body) else "passed"


def judge_429(fields: Fields, body: Any) -> Verdict:
    if fields.get("x-should-retry", "").lower() == "false":
        return "exhausted"
    return "overloaded" if find_codes(body) & BUSY_CODES else "throttled"


def is_throttled_403(fields: Fields, body: Any, budgets: Iterable[Budget]) -> bool:
    """GitHub's 403 may mean a limit."""
    empty = any(budget.remaining == 0 for budget in budgets)
    return "retry-after" in fields or is_secondary_limit(body) or empty


def find_wait(fields: Fields, body: Any, budgets: Iterable[Budget], now: float) -> float | None:
    """Return the server's own statement, or else the wait that follows from its budgets."""
    wait = header_values.parse_milliseconds(fields.get("retry-after-ms", ""))
    if wait is not None:
        return wait
    waits = [
        parse_retry_after(fields.get("retry-after", ""), now),
        find_number(body, "retry_after"),
        find_refill(body),
    ]
    resets = [budget.reset for budget in budgets if budget.remaining == 0]
    for found in (waits, resets):
        if known := [each for each in found if each is not None]:
            return max(known)
    return SECONDARY_WAIT if is_secondary_limit(body) else None


def parse_retry_after(text: str, now: float) -> float | None:
    moment = header_values.parse_http_date(text)
    if moment is None:
        return header_values.parse_seconds(text)
    return header_values.seconds_until(moment, now)


# Headers of the providers ----------------------------------------------------------------------


WHAT = "(?P<what>limit|remaining|reset)"
# Each row: a pattern of headers, with a group `what` and maybe a `name`, and a parser of resets.
TABLE: list[tuple[str, ParseReset]] = [
    # GitHub, Discord and many others. `make_budget` prefers Discord's reset-after to reset.
    # X (Twitter) writes x-rate-limit.
    (r"x-ratelimit-(?P<what>limit|remaining|reset|reset-after)", header_values.parse_epoch),
    (rf"x-rate-limit-{WHAT}", header_values.parse_epoch),
    # OpenAI; Azure the same, in whole seconds.
    (
        rf"x-ratelimit-{WHAT}-(?P<name>(?!after$)[a-z][a-z_-]*)",
        lambda text, now: header_values.parse_go_duration(text),
    ),
    # Anthropic: the moment at which it is full.
    (rf"anthropic-(?:ratelimit-)?(?P<name>[a-z][a-z-]*)-{WHAT}", header_values.parse_instant),
    # IETF, drafts up to 06.
    (rf"ratelimit-{WHAT}", lambda text, now: header_values.parse_seconds(text)),
]
ROWS = [(re.compile(header, re.ASCII), parse_reset) for header, parse_reset in TABLE]
# These name the budget of the first row: GitHub, Discord.
NAMED_BY = ("x-ratelimit-resource", "x-ratelimit-bucket")
SHOPIFY_REST = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


def budgets_by_table(fields: Fields, now: float) -> list[Budget]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for header, text in fields.items():
        for number, (pattern, parse_reset) in enumerate(ROWS):
            match = pattern.fullmatch(header)
            if match is None:
                continue
            name, what = match.groupdict().get("name") or "", match["what"]
            found.setdefault((number, name), {})[what] = (
                parse_reset(text, now)
                if what.startswith("reset")
                else header_values.parse_first_whole(text)
            )
            break
    budgets = [make_budget(fields, name, values) for (_, name), values in found.items()]
    return [*filter(None, budgets), *budgets_of_shopify_rest(fields)]


def make_budget(fields: Fields, name: str, values: Mapping[str, Any]) -> Budget | None:
    """Return None if all values are malformed."""
    limit, remaining = values.get("limit"), values.get("remaining")
    after = values.get("reset-after")
    reset = values.get("reset") if after is None else after
    if limit is None and remaining is None and reset is None:
        return None
    name = name or next((fields[header] for header in NAMED_BY if header in fields), "")
    return Budget(name, limit, remaining, reset, unit="tokens" if "tokens" in name else "requests")


def budgets_of_shopify_rest(fields: Fields) -> list[Budget]:
    match = SHOPIFY_REST.fullmatch(fields.get("x-shopify-shop-api-call-limit", ""))
    if match is None:
        return []
    used, size = int(match[1]), int(match[2])
    return [Budget(limit=size, remaining=max(0, size - used))]


def budgets_of_shopify(body: Any) -> list[Budget]:
    """Read Shopify's GraphQL bucket."""
    status = ("extensions", "cost", "throttleStatus")
    size = find_number(body, *status, "maximumAvailable")
    left = find_number(body, *status, "currentlyAvailable")
    rate = find_number(body, *status, "restoreRate")
    if size is None or left is None or not rate:
        return []
    reset = header_values.keep_plausible(max(0.0, size - left) / rate)
    per = header_values.keep_plausible(size / rate)
    return [Budget("cost", int(size), int(left), reset, per, unit="points")]


# IETF: draft-ietf-httpapi-ratelimit-headers ----------------------------------------------------


def budgets_by_draft(fields: Fields) -> list[Budget]:
    """Read `RateLimit-Policy` and `RateLimit`, joined by policy and partition.

    `q`: quota, `qu`: its unit, `w`: window, `r`: rest, `t`: time to the reset, `pk`: partition.
    Draft 07 had one dictionary of numbers instead.
    """
    found: dict[tuple[str, bytes], dict[str, Any]] = {}
    for name, words in parse_items(fields.get("ratelimit-policy", "")):
        if keep_natural(words.get("q")) is not None:
            unit = str(words.get("qu", "requests"))
            values = {"limit": words["q"], "per": keep_span(words.get("w")), "unit": unit}
            found.setdefault((name, partition_of(words)), {}).update(values)
    for name, words in parse_items(fields.get("ratelimit", "")):
        if keep_natural(words.get("r")) is not None:
            values = {"remaining": words["r"], "reset": keep_span(words.get("t"))}
            found.setdefault((name, partition_of(words)), {}).update(values)
    budgets = [Budget(name, partition=key, **values) for (name, key), values in found.items()]
    return budgets or budgets_by_draft_07(fields.get("ratelimit", ""))


def parse_items(text: str) -> list[tuple[str, dict[str, Any]]]:
    parsed = parse_field(text, "list") or []
    return [(str(item[0]), item[1]) for item in parsed if isinstance(item[0], str | http_sf.Token)]


def budgets_by_draft_07(text: str) -> list[Budget]:
    """Read `limit=100, remaining=50, reset=5`."""
    parsed = parse_field(text, "dictionary") or {}
    words = ("limit", "remaining", "reset")
    limit, remaining, reset = (parsed.get(word, (None,))[0] for word in words)
    budget = Budget("", keep_natural(limit), keep_natural(remaining), keep_span(reset))
    return [] if budget == Budget() else [budget]


def parse_field(text: str, kind: Literal["list", "dictionary"]) -> Any:
    """Return None for a field that cannot be parsed: the draft says to ignore it."""
    try:
        return http_sf.parse(text.encode(), tltype=kind) if text else None
    except Exception:  # http_sf raises errors of many types
        return None


def keep_natural(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def keep_span(value: object) -> float | None:
    seconds = keep_natural(value)
    return None if seconds is None else header_values.keep_plausible(float(seconds))


def partition_of(words: Mapping[str, Any]) -> bytes:
    key = words.get("pk")
    return key if isinstance(key, bytes) else b""
