"""The headers in which servers state their limits: the table of providers, and its reading.

Pure: headers come in and budgets go out. Malformed values are ignored. The structured fields of the
IETF are read by rate_limit_headers.py, and bodies by budget_bodies.py. docs/answers.md shows
the documented answers of each provider, with sources, and their reading.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from headgate.http import header_values

# Header names in lower case; the values of a header that came several times are joined by commas.
Fields: TypeAlias = Mapping[str, str]

MOST_BUDGETS = 100  # of an answer
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
# Of months and years, the longest: a shorter period would let calls pass too early.
PERIODS: Mapping[str, float] = {
    "second": 1.0,
    "secondly": 1.0,
    "minute": MINUTE,
    "hour": HOUR,
    "day": DAY,
    "daily": DAY,
    "month": 31 * DAY,
    "year": 366 * DAY,
}
COUNT = re.compile(r"[0-9]{1,4}", re.ASCII)
UNITS = {  # a word in the name of a budget, and its unit; others count requests
    "token": "tokens",
    "complexity": "points",
    "graphql": "points",
    "api-unit": "units",
    "image": "images",
    "audio": "seconds",
    "concurrent": "concurrent-requests",
    "unified": "usage",
}


@dataclass(frozen=True, slots=True)
class Budget:
    """One of a server's limits. A field is None if the server does not state it.

    `name`: the server's own word for it: "requests", "input-tokens", the name of a policy, GitHub's
    resource; "" if it has none. `limit`, `remaining`: in `unit`. `reset`: seconds until it is full
    or, for some servers, until more may be used. `per`: the seconds of its window, if the server
    states them or its documents do. `partition`: the server's key, if it has several budgets of
    that name. `gradual`: it fills up all the time until `reset`, and not at once.
    """

    name: str = ""
    limit: int | None = None
    remaining: int | None = None
    reset: float | None = None
    per: float | None = None
    unit: str = "requests"
    partition: bytes = b""
    gradual: bool = False

    @property
    def next(self) -> float | None:
        """Seconds until an empty budget allows the next call, as far as the server says."""
        if self.reset is None:
            return self.per
        if not self.gradual or not self.limit:
            return self.reset
        for_one = self.reset / self.limit
        # A call takes many tokens, and their number is unknown: let them gather for a second.
        return min(self.reset, for_one if self.unit == "requests" else max(1.0, for_one))


# The table -------------------------------------------------------------------------------------

WHAT = "(?P<what>limit|remaining|reset|reset-after|period)"
NAME = "(?P<name>[a-z0-9][a-z0-9_-]{0,63})"


class Row(NamedTuple):
    """A form of headers: a pattern with the group `what` and maybe a `name`, and its budgets."""

    pattern: str
    per: float | None = None  # if the provider's documents say it for all budgets of the form
    unit: str | None = None  # None: by the name
    gradual: bool = False


# The first row that fits counts. The comments name the providers, and the documents with the form.
TABLE = [
    # GitHub, Discord, Datadog (with a period), Reddit (floats), Jira (ISO dates) and many others:
    # docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api,
    # docs.discord.com/developers/topics/rate-limits, docs.datadoghq.com/api/latest/rate-limits,
    # developer.atlassian.com/cloud/jira/platform/rate-limiting. Reddit documents them in a post of
    # r/redditdev only ("Formal ratelimiting headers"). X (Twitter), Okta and Zendesk write
    # x-rate-limit: docs.x.com/fundamentals/rate-limits, developer.okta.com/docs/reference.
    Row(rf"x-rate-?limit-{WHAT}"),
    # OpenAI: resets are durations until the budget is full. Azure: whole seconds. Groq, Cerebras,
    # Mistral, DigitalOcean: developers.openai.com/api/docs/guides/rate-limits,
    # console.groq.com/docs/rate-limits, inference-docs.cerebras.ai/support/rate-limits,
    # docs.digitalocean.com/products/inference/reference/quota-specific-response-headers. Kong has
    # periods as names: developer.konghq.com/plugins/rate-limiting. Mistral's headers are in no
    # document; an issue of its SDK shows them: mistralai/client-ts, issue 169.
    Row(rf"x-ratelimit-{WHAT}-{NAME}", gradual=True),
    # Linear: linear.app/developers/rate-limiting. RapidAPI has the same form with seconds.
    Row(rf"x-ratelimit-{NAME}-{WHAT}"),
    # Anthropic: a token bucket per minute. platform.claude.com/docs/en/api/rate-limits
    Row(rf"anthropic-(?!ratelimit-unified)(?:ratelimit-)?{NAME}-{WHAT}", per=MINUTE, gradual=True),
    # Anthropic for subscriptions, an epoch. No document: anthropics/claude-code, issue 12829.
    Row(rf"anthropic-ratelimit-(?P<name>unified(?:-[a-z0-9]+)?)-{WHAT}"),
    # IETF, drafts up to 06, in seconds. Twitch and GitLab write epochs there:
    # dev.twitch.tv/docs/api/guide, docs.gitlab.com/administration/settings/user_and_ip_rate_limits.
    # Docker Hub adds the window: docs.docker.com/docker-hub/usage/pulls
    Row(rf"ratelimit-{WHAT}"),
    # Mistral, tokens. No document; its users' programs read them.
    Row(rf"x-ratelimitbysize-{WHAT}-{NAME}", unit="tokens"),
    # Together. No document was found that shows the form.
    Row(rf"x-tokenlimit-{WHAT}", unit="tokens"),
    # Sentry, an epoch: docs.sentry.io/api/ratelimits
    Row(rf"x-sentry-rate-limit-(?P<name>concurrent)?{WHAT}"),
    # HubSpot: developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines
    Row(rf"x-hubspot-ratelimit-(?:(?P<name>daily|secondly)-)?{WHAT}"),
]
ROWS = [(re.compile(row.pattern, re.ASCII), row) for row in TABLE]
# Headers whose own names fit no row. Zendesk: developer.zendesk.com/api-reference/introduction/
# rate-limits. Xero: developer.xero.com/faq/limits
RENAMED = {
    "x-minlimit-remaining": "x-ratelimit-remaining-minute",
    "x-daylimit-remaining": "x-ratelimit-remaining-day",
    "x-appminlimit-remaining": "x-ratelimit-remaining-app-minute",
    "x-rate-limit": "x-rate-limit-limit",
    "x-hubspot-ratelimit-max": "x-hubspot-ratelimit-limit",
    "x-hubspot-ratelimit-daily": "x-hubspot-ratelimit-daily-limit",
    "x-hubspot-ratelimit-secondly": "x-hubspot-ratelimit-secondly-limit",
    "x-hubspot-ratelimit-interval-milliseconds": "x-hubspot-ratelimit-period",
}
MILLISECONDS = {"x-hubspot-ratelimit-interval-milliseconds"}
# These name the budget that has no name: GitHub, Discord, Datadog, GitLab.
NAMED_BY = ("x-ratelimit-resource", "x-ratelimit-bucket", "x-ratelimit-name", "ratelimit-name")


class Provider(NamedTuple):
    """A provider whose headers do not state their periods, but whose documents do."""

    host: str  # or a host below it
    header: str  # that only this provider sends; or "", which no response has
    periods: Mapping[str, float]  # by the name of a budget; "*": all


PROVIDERS = [
    # docs.github.com/rest/rate-limit: 5,000 an hour, searches by the minute.
    Provider(
        "api.github.com",
        "x-github-request-id",
        {"core": HOUR, "graphql": HOUR, "search": MINUTE, "code_search": MINUTE},
    ),
    # console.groq.com/docs/rate-limits: "always refers to Requests Per Day (RPD)", and tokens to
    # Tokens Per Minute.
    Provider("api.groq.com", "", {"requests": DAY, "tokens": MINUTE}),
    # linear.app/developers/rate-limiting: all of them by the hour.
    Provider("api.linear.app", "x-complexity", {"requests": HOUR, "complexity": HOUR}),
    # dev.twitch.tv/docs/api/guide: points per minute.
    Provider("api.twitch.tv", "", {"*": MINUTE}),
    # docs.gitlab.com/administration/settings/user_and_ip_rate_limits: the quota for each minute.
    Provider("gitlab.com", "ratelimit-observed", {"*": MINUTE}),
    # r/redditdev, "Formal ratelimiting headers": a window of 10 minutes.
    Provider("oauth.reddit.com", "", {"*": 600.0}),
]


# Reading ---------------------------------------------------------------------------------------


def budgets_by_table(fields: Fields, now: float, host: str) -> list[Budget]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for header, text in fields.items():
        # No other header fits a row. Without this line the reading takes twice as long.
        if "limit" not in header and not header.startswith("anthropic-"):
            continue
        for number, (pattern, _) in enumerate(ROWS):
            match = pattern.fullmatch(RENAMED.get(header, header))
            if match is not None:
                values = found.setdefault((number, match.groupdict().get("name") or ""), {})
                values.update(read_value(header, match["what"], text, now))
                break
    periods = find_periods(fields, host)
    budgets = [
        make_budget(fields, ROWS[number][1], name, values, periods)
        for (number, name), values in found.items()
    ]
    return [budget for budget in budgets if budget is not None]


def read_value(header: str, what: str, text: str, now: float) -> dict[str, Any]:
    if what == "limit":
        limit, window = header_values.parse_limit(text)
        return {"limit": limit} if window is None else {"limit": limit, "window": window}
    if what == "remaining":
        return {what: header_values.parse_count(text)}
    if header in MILLISECONDS:
        return {what: header_values.parse_milliseconds(text)}
    time = header_values.parse_time(text, now)
    # OpenAI and its like state the reset of a window as a number, that of a bucket as "1m30s".
    return {what: time, "is_bucket": time is not None and not header_values.is_number(text)}


def make_budget(
    fields: Fields, row: Row, name: str, values: Mapping[str, Any], periods: Mapping[str, float]
) -> Budget | None:
    """Return None if all values are malformed."""
    limit, remaining = values.get("limit"), find_remaining(fields, name, values)
    after = values.get("reset-after")  # Discord: more exact than its reset
    reset = values.get("reset") if after is None else after
    if {limit, remaining, reset} == {None}:
        return None
    per = values.get("window") or values.get("period") or period_of(name) or row.per
    # A name from another header has no period in its words: Discord's bucket is a hash.
    name = name or find_name(fields)
    per = per or periods.get(name, periods.get("*"))
    gradual = row.gradual and values.get("is_bucket", False)
    unit = row.unit or unit_of(fields, name)
    return Budget(name, limit, remaining, reset, per, unit, gradual=gradual)


def find_name(fields: Fields) -> str:
    return next((fields[header] for header in NAMED_BY if header in fields), "")


def find_remaining(fields: Fields, name: str, values: Mapping[str, Any]) -> int | None:
    """Return the stated remainder. Anthropic's "rejected" in place of a number means 0."""
    if "remaining" not in values and fields.get(f"anthropic-ratelimit-{name}-status") == "rejected":
        return 0
    return values.get("remaining")


def period_of(name: str) -> float | None:
    """Read the last words of "requests-day", "tokens-per-minute", "5-minute" or "unified-5h"."""
    before, _, last = name.rpartition("-")
    if last not in PERIODS:
        return header_values.parse_duration(last) or None
    count = before.rpartition("-")[2]
    return PERIODS[last] * (int(count) if COUNT.fullmatch(count) else 1) or None


def unit_of(fields: Fields, name: str) -> str:
    # developer.atlassian.com/cloud/jira/platform/rate-limiting: the quotas of Jira are points.
    if "-quota-" in fields.get("ratelimit-reason", ""):
        return "points"
    return next((unit for word, unit in UNITS.items() if word in name), "requests")


def find_periods(fields: Fields, host: str) -> Mapping[str, float]:
    for provider in PROVIDERS:
        if host == provider.host or host.endswith(f".{provider.host}"):
            return provider.periods
        if provider.header in fields:
            return provider.periods
    return {}


SHOPIFY_REST = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


def budgets_of_shopify_rest(fields: Fields) -> list[Budget]:
    """Read a leaky bucket, "32/40": shopify.dev/docs/api/usage/limits."""
    match = SHOPIFY_REST.fullmatch(fields.get("x-shopify-shop-api-call-limit", ""))
    if match is None:
        return []
    used, size = int(match[1]), int(match[2])
    return [Budget(limit=size, remaining=max(0, size - used))]


# One budget in two forms -----------------------------------------------------------------------


def join_forms(budgets: Iterable[Budget]) -> tuple[Budget, ...]:
    """Join budgets that an answer states twice, as Kong does: by the minute, and without a name.

    It reads the first MOST_BUDGETS, as each is compared with those before it.
    """
    joined: list[Budget] = []
    for budget in islice(budgets, MOST_BUDGETS):
        index = next((i for i, other in enumerate(joined) if are_one(other, budget)), None)
        if index is None:
            joined.append(budget)
        else:
            joined[index] = fill(joined[index], budget)
    return tuple(joined)


def are_one(one: Budget, other: Budget) -> bool:
    return (
        one.limit is not None
        and (one.limit, one.unit, one.partition) == (other.limit, other.unit, other.partition)
        and agree(one.remaining, other.remaining)
        and agree(one.per, other.per)
        and agree(one.name or None, other.name or None)
    )


def agree(one: object, other: object) -> bool:
    return one is None or other is None or one == other


def fill(one: Budget, other: Budget) -> Budget:
    return replace(
        one,
        name=one.name or other.name,
        remaining=other.remaining if one.remaining is None else one.remaining,
        reset=other.reset if one.reset is None else one.reset,
        per=one.per or other.per,
    )
