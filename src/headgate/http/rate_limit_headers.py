"""Reads what a response says about a server's limits, as one value: `read(status, headers)`.

    answer = read(response.status_code, response.headers)
    answer.retry_after      # seconds, or None
    answer.permanent        # waiting would not help: a spend cap, a quota that is used up
    answer.budgets          # what it says about each of its limits

It reads any response, and not its rate-limit headers alone: the status and the body count, too.
Here are the verdict, the wait, the scope, and the headers of the IETF's drafts. The headers of
providers are read by budget_headers.py, and bodies by budget_bodies.py and error_bodies.py.
Pure: it sends, stores and waits for nothing. Malformed headers are ignored.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, TypeAlias

import http_sf

from headgate.http import error_bodies, header_values
from headgate.http.budget_bodies import (
    budgets_by_body,
    find_cost,
    find_quota_names,
    find_refill,
    find_retry_info,
    period_of_quota,
)
from headgate.http.budget_headers import (
    DAY,
    Budget,
    Fields,
    budgets_by_table,
    budgets_of_shopify_rest,
    join_forms,
)
from headgate.http.error_bodies import Headers
from headgate.http.json_values import find_number, parse_first_object

__all__ = ["Answer", "Budget", "read"]

Verdict: TypeAlias = Literal["passed", "throttled", "overloaded", "exhausted"]
Scope: TypeAlias = Literal["service", "key", "endpoint"]
Items: TypeAlias = list[tuple[str | int, dict[str, Any]]]  # of a header, with their parameters

OVERLOADED = {503, 529}
PAYMENT_REQUIRED = 402
# These statuses are refusals only if a Retry-After comes with them: X's old 420, Shopify's 430.
THROTTLED_WITH_WAIT = {420, 430}
REQUEST_TIMEOUT = 408
BUSY_CODES = {"lock_timeout"}  # of a 429. Stripe: another call holds the object
SECONDARY_WAIT = 60.0  # seconds, for GitHub's secondary rate limit
MOST_FIELDS = 500  # headers that are read
LONGEST_NAME, LONGEST_FIELD = 100, 8192  # characters of a header
LARGEST_BODY = 1_000_000  # bytes; a refusal is short
# A Date that is further from our clock is wrong, or from a cache.
LARGEST_SKEW = DAY


@dataclass(frozen=True, slots=True)
class Answer:
    """All limits of a server, as one response states them.

    `verdict`: "passed", "throttled" (a limit was met: wait), "overloaded" (the server is busy: back
    off) or "exhausted". The last means a spend cap, or a quota of a day or longer that is used up:
    do not wait. `retry_after`: seconds to wait before the next call, if the server refused this one
    and said so. `scope`: which calls a refusal is about. "service": all calls to the service.
    "endpoint": those to one endpoint, resource or model. "key": the server does not say, so those
    with the key of this call.
    `cost`: the points that the call took, if the server counts points and states them.
    """

    verdict: Verdict = "passed"
    retry_after: float | None = None
    budgets: tuple[Budget, ...] = ()
    scope: Scope = "key"
    cost: int | None = None

    @property
    def permanent(self) -> bool:
        """Whether waiting does not help."""
        return self.verdict == "exhausted"

    @property
    def tightest(self) -> Budget:
        """The budget with the smallest share left; `Budget()` if none states a remainder."""
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
    status: int,
    headers: Headers,
    body: bytes | str = b"",
    *,
    now: float | None = None,
    host: str = "",
) -> Answer:
    """Read the limits of a server from its response. Never raises for content that a server sent.

    `body`, if you have it, tells a spend cap from a rate, and holds the statements of GraphQL
    servers, also with status 200. Without it only the headers count. `now`: the time for a response
    without a believable `Date`, in seconds since 1970; unsaid, that of this machine.
    `host`: the host that was called, in lower case. Some providers state the periods of their
    limits only in their documents, and the host shows which provider it is.
    """
    fields = join_fields(headers)
    body = body if len(body) <= LARGEST_BODY else b""
    parsed = parse_first_object(body)
    now = find_now(fields, now)
    budgets = join_forms(
        [
            *budgets_by_table(fields, now, host),
            *budgets_of_shopify_rest(fields),
            *budgets_by_draft(fields),
            *(budgets_by_body(parsed, now) if parsed else ()),
        ]
    )
    codes = find_codes(status, fields, parsed, body)
    verdict = judge(status, fields, parsed, codes, budgets, now)
    if verdict == "passed":
        return Answer(verdict, None, budgets, cost=find_cost(fields, parsed))
    wait = None if verdict == "exhausted" else find_wait(fields, parsed, codes, budgets, now)
    return Answer(verdict, wait, budgets, find_scope(fields, parsed), find_cost(fields, parsed))


def share_left(budget: Budget) -> float:
    # Without a limit, the number left stands for the share.
    return (budget.remaining or 0) / (budget.limit or 1)


def join_fields(headers: Headers) -> Fields:
    """Return headers by lower-case name. Equal values of a name are one; others become a list.

    A header that is too long counts as missing.
    """
    fields: dict[str, str] = {}
    for name, value in islice(headers.items(), MOST_FIELDS):
        if not 0 < len(name) <= LONGEST_NAME:
            continue
        name = name.lower()
        before = f"{fields[name]}, " if name in fields else ""
        too_long = len(before) + len(value) > LONGEST_FIELD
        fields[name] = "" if too_long else f"{before}{value.strip()}"
    return {
        name: header_values.merge_repeats(value) if "," in value else value
        for name, value in fields.items()
    }


def find_now(fields: Fields, now: float | None) -> float:
    """Return the server's own clock, unless it is far from ours."""
    ours = time.time() if now is None else now
    date = header_values.parse_http_date(fields.get("date", ""))
    return ours if date is None or abs(date - ours) > LARGEST_SKEW else date


# Whether the call was refused, and for how long ------------------------------------------------


def find_codes(status: int, fields: Fields, parsed: Any, body: bytes | str) -> set[str]:
    """Return the words by which a refusal states its kind.

    Below 400 only GraphQL's errors count: other words may be in the data that the caller asked for.
    """
    if status < 400:
        return error_bodies.find_graphql_codes(parsed)
    xml = set() if parsed else error_bodies.find_xml_code(body)
    return error_bodies.find_codes(fields, parsed) | xml


def judge(
    status: int,
    fields: Fields,
    parsed: Any,
    codes: set[str],
    budgets: Iterable[Budget],
    now: float,
) -> Verdict:
    if status in OVERLOADED:
        return "overloaded"
    if status == PAYMENT_REQUIRED or (400 <= status < 500 and is_used_up(parsed, codes)):
        return "exhausted"
    if status == 429:
        return judge_429(fields, codes)
    if codes & error_bodies.LIMIT_CODES:
        return "throttled"
    if status == 403 and is_throttled_403(fields, parsed, budgets):
        return "throttled"
    return "passed" if find_retry_after(fields, now) is None else judge_by_wait(status)


def judge_by_wait(status: int) -> Verdict:
    """Judge a status with a Retry-After. Redirects and accepted jobs have one, too."""
    if status in THROTTLED_WITH_WAIT:
        return "throttled"
    return "overloaded" if status >= 500 or status == REQUEST_TIMEOUT else "passed"


def judge_429(fields: Fields, codes: set[str]) -> Verdict:
    if fields.get("x-should-retry", "").lower() == "false":
        return "exhausted"
    return "overloaded" if codes & BUSY_CODES else "throttled"


def is_used_up(parsed: Any, codes: set[str]) -> bool:
    """Return whether the account has no credit, or a quota of a day or longer is used up."""
    periods = (period_of_quota(name) or 0.0 for name in find_quota_names(parsed))
    long = any(period >= DAY for period in periods)
    return long or bool(codes & error_bodies.USED_UP_CODES) or error_bodies.has_no_credit(parsed)


def is_throttled_403(fields: Fields, parsed: Any, budgets: Iterable[Budget]) -> bool:
    """GitHub's 403 may mean a limit."""
    empty = any(budget.remaining == 0 for budget in budgets)
    return "retry-after" in fields or error_bodies.is_secondary_limit(parsed) or empty


def find_wait(
    fields: Fields, parsed: Any, codes: set[str], budgets: Iterable[Budget], now: float
) -> float | None:
    """Return the server's own statement, or else the wait that follows from its budgets."""
    waits = [
        find_retry_after(fields, now),
        find_number(parsed, "retry_after"),  # Discord
        find_number(parsed, "parameters", "retry_after"),  # Telegram: core.telegram.org/bots/api
        find_retry_info(parsed),
        find_refill(parsed),
    ]
    by_code = [wait for code, wait in error_bodies.WAITS_BY_CODE.items() if code in codes]
    empty = [budget.next for budget in budgets if budget.remaining == 0]
    for found in (waits, by_code, empty):
        if known := [each for each in found if each is not None]:
            return max(known)
    return SECONDARY_WAIT if error_bodies.is_secondary_limit(parsed) else None


# In milliseconds: OpenAI and Azure; Cosmos (learn.microsoft.com/rest/api/cosmos-db/
# common-cosmosdb-rest-response-headers); AWS (botocore, module retries.standard).
RETRY_AFTER_MS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after")
RETRY_AFTER = ("retry-after", "x-retry-after")


def find_retry_after(fields: Fields, now: float) -> float | None:
    """Read a header that states the wait. Milliseconds are more exact than seconds."""
    exact = (header_values.parse_milliseconds(fields.get(name, "")) for name in RETRY_AFTER_MS)
    others = (header_values.parse_time(fields.get(name, ""), now) for name in RETRY_AFTER)
    return next((wait for wait in (*exact, *others) if wait is not None), None)


# Headers that name the limit of a refusal, and the beginnings of their values. "": any value.
SCOPES: dict[str, dict[str, Scope]] = {
    # docs.discord.com/developers/topics/rate-limits
    "x-ratelimit-global": {"true": "service"},
    "x-ratelimit-scope": {"global": "service", "user": "endpoint", "shared": "endpoint"},
    # docs.stripe.com/rate-limits
    "stripe-rate-limited-reason": {
        "global-": "service",
        "endpoint-": "endpoint",
        "resource-": "endpoint",
    },
    # developer.atlassian.com/cloud/jira/platform/build-an-app-that-respects-rate-limits
    "ratelimit-reason": {
        "jira-quota-global-": "service",
        "jira-burst-": "endpoint",
        "jira-per-issue-": "endpoint",
    },
    # developer.xero.com/faq/limits: the calls of an app to all organisations
    "x-rate-limit-problem": {"appminute": "service"},
    # linear.app/developers/rate-limiting
    "x-ratelimit-endpoint-name": {"": "endpoint"},
    # docs.sentry.io/api/ratelimits: for each caller and endpoint
    "x-sentry-rate-limit-limit": {"": "endpoint"},
}


def find_scope(fields: Fields, parsed: Any) -> Scope:
    if error_bodies.is_global(parsed):
        return "service"
    for header, scopes in SCOPES.items():
        value = fields.get(header, "").lower()
        for start, scope in scopes.items():
            if value and value.startswith(start):
                return scope
    return "key"


# IETF: draft-ietf-httpapi-ratelimit-headers ----------------------------------------------------


def budgets_by_draft(fields: Fields) -> list[Budget]:
    """Read `RateLimit-Policy` and `RateLimit`, joined by policy and partition.

    `q`: quota, `qu`: its unit, `w`: window, `r`: rest, `t`: time to the reset, `pk`: partition.
    Draft 07 had one dictionary of numbers instead. Jira has a prefix, and counts points.
    """
    states = fields.get("ratelimit", "")
    return [
        *budgets_by_policies(fields.get("ratelimit-policy", ""), states, "requests"),
        *budgets_by_draft_07(states),
        *budgets_by_policies(
            fields.get("beta-ratelimit-policy", ""), fields.get("beta-ratelimit", ""), "points"
        ),
    ]


def budgets_by_policies(policies: str, states: str, unit: str) -> list[Budget]:
    """Join each quota of `policies` with its rest in `states`.

    `unit`: the unit of the quotas that state none.
    """
    found: dict[tuple[str, bytes], dict[str, Any]] = {}
    quotas = parse_items(policies)
    for name, stated in quotas:
        if isinstance(name, str) and keep_natural(stated.get("q")) is not None:
            values = {"limit": stated["q"], "per": keep_span(stated.get("w"))}
            values["unit"] = str(stated.get("qu", unit))
            found.setdefault((name, partition_of(stated)), {}).update(values)
    for name, stated in parse_items(states):
        if isinstance(name, str) and keep_natural(stated.get("r")) is not None:
            values = {"remaining": stated["r"], "reset": keep_span(stated.get("t"))}
            found.setdefault((name, partition_of(stated)), {"unit": unit}).update(values)
    budgets = [Budget(name, partition=key, **values) for (name, key), values in found.items()]
    return [*budgets, *budgets_without_names(quotas, unit)]


def budgets_without_names(quotas: Items, unit: str) -> list[Budget]:
    """Read "100;w=60" of drafts up to 07: the quota stands in place of the name."""
    return [
        Budget(limit=quota, per=keep_span(stated.get("w")), unit=unit)
        for quota, stated in quotas
        if not isinstance(quota, str) and keep_natural(quota) is not None
    ]


def parse_items(text: str) -> Items:
    items: Items = []
    for value, parameters in parse_field(text, "list") or []:
        if isinstance(value, str | int | http_sf.Token):
            items.append((value if isinstance(value, int) else str(value), parameters))
    return items


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


def partition_of(parameters: Mapping[str, Any]) -> bytes:
    key = parameters.get("pk")
    return key if isinstance(key, bytes) else b""
