"""What a server says of its limits, in one small value: `read(status, headers)`.

    answer = read(response.status_code, response.headers)
    answer.retry_after      # seconds, or None
    answer.permanent        # waiting would not help: a spend cap, a quota that was used up
    answer.budgets          # what it said of each of its limits

Pure: nothing is sent, stored or waited for, and what is malformed is as if it had not been said. Here live the headers and bodies
of the providers, as a table; how a number or a time is spelled is header_values.py's to know, structured fields are http_sf's.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import http_sf

from headgate.http import header_values

__all__ = ["Answer", "Budget", "read"]

Verdict: TypeAlias = Literal["passed", "throttled", "overloaded", "exhausted"]
Said: TypeAlias = dict[
    str, str
]  # header names in lower case; what came in several lines is one, with commas

OVERLOADED = {503, 529}
PAYMENT_REQUIRED = 402
EXHAUSTED = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "enforced_spend_limit_reached",
}
NO_CREDIT = "credit balance is too low"  # Anthropic: a 400 like any other, but for its words
NO_LIMIT = {"lock_timeout"}  # Stripe: another call has the object
SECONDARY = "secondary rate limit"  # GitHub: it says no more than that, and asks in its documents to wait at least
SECONDARY_WAIT = 60.0
LARGEST_BODY = 1_000_000  # bytes; a refusal is short


@dataclass(frozen=True, slots=True)
class Budget:
    """What a server says of one of its limits; None: it does not say.

    `name`: the server's own word for it: "requests", "input-tokens", the name of a policy, GitHub's resource; "" if it has none.
    `limit`, `remaining`: in `unit`. `reset`: seconds until it is full, or, by the word of some, until more may be used.
    `per`: the seconds of its window. `partition`: which of several of that name, if the server tells them apart.
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
    """`verdict`: "passed", "throttled" (a limit was met: wait), "overloaded" (no limit of yours: back off), or "exhausted" (a quota
    or a spend cap: do not wait). `retry_after`: seconds to wait before the next call, if it was refused and the server said so."""

    verdict: Verdict = "passed"
    retry_after: float | None = None
    budgets: tuple[Budget, ...] = ()

    @property
    def permanent(self) -> bool:
        """Whether it is of no use to wait."""
        return self.verdict == "exhausted"

    @property
    def tightest(self) -> Budget:
        """The budget of which the least is left, as a share; one that says nothing if none says what is left."""
        known = [budget for budget in self.budgets if budget.remaining is not None]
        return min(known, key=share_left, default=Budget())

    @property
    def remaining(self) -> int | None:
        """What is left of the tightest budget."""
        return self.tightest.remaining

    @property
    def limit(self) -> int | None:
        """The limit of the tightest budget."""
        return self.tightest.limit

    @property
    def reset(self) -> float | None:
        """Seconds until the tightest budget is full again."""
        return self.tightest.reset


class Headers(Protocol):
    """The headers of any client's response, or a dict."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def read(
    status: int, headers: Headers, body: bytes | str = b"", *, now: float | None = None
) -> Answer:
    """What an answer says of its server's limits. Never raises for what a server sent.

    `body`, if it is at hand, tells a spend cap from a rate, and has what GraphQL servers say; without it the headers have to do.
    `now`: seconds since 1970, for moments in an answer that has no `Date` of its own; the clock of this machine if unsaid.
    """
    said = words_of(headers)
    told = json_of(body)
    date = header_values.http_date(said.get("date", ""))
    now = date if date is not None else time.time() if now is None else now
    budgets = (*by_table(said, now), *structured(said), *shopify_graphql(told))
    verdict = verdict_of(status, said, told, budgets)
    wait = wait_of(said, told, budgets, now) if verdict in ("throttled", "overloaded") else None
    return Answer(verdict, wait, budgets)


def share_left(budget: Budget) -> float:
    return (budget.remaining or 0) / budget.limit if budget.limit else float(budget.remaining or 0)


def words_of(headers: Headers) -> Said:
    said: Said = {}
    for name, value in headers.items():
        name, value = name.lower(), value.strip()
        said[name] = f"{said[name]}, {value}" if name in said else value
    return said


def json_of(body: bytes | str) -> Any:
    """The body, if it is an object in JSON; otherwise an empty one."""
    try:
        told = json.loads(body) if 0 < len(body) <= LARGEST_BODY else {}
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def at(told: Any, *path: str) -> Any:
    """What stands at a path of a JSON object, or None."""
    for name in path:
        told = told.get(name) if isinstance(told, dict) else None
    return told


def number_at(told: Any, *path: str) -> float | None:
    number = at(told, *path)
    usable = (
        isinstance(number, int | float)
        and not isinstance(number, bool)
        and abs(number) < header_values.LONGEST
    )
    return header_values.bounded(float(number)) if usable else None


# Whether it was refused, and for how long --------------------------------------------------------------------------------------


def verdict_of(status: int, said: Said, told: Any, budgets: Iterable[Budget]) -> Verdict:
    codes = codes_of(told)
    if status in OVERLOADED:
        return "overloaded"
    if status == PAYMENT_REQUIRED or (
        400 <= status < 500 and (codes & EXHAUSTED or has_no_credit(told))
    ):
        return "exhausted"
    if status == 429:
        if said.get("x-should-retry", "").lower() == "false":
            return "exhausted"
        return "overloaded" if codes & NO_LIMIT else "throttled"
    if status == 403 and (
        "retry-after" in said
        or is_secondary(told)
        or any(budget.remaining == 0 for budget in budgets)
    ):
        return "throttled"  # GitHub's way
    return "throttled" if "THROTTLED" in codes else "passed"


def codes_of(told: Any) -> set[str]:
    """The words by which bodies name an error."""
    paths = [("code",), ("error", "code"), ("error", "type"), ("error", "details", "error_code")]
    codes = [at(told, *path) for path in paths]
    errors = at(told, "errors")
    codes += (
        [at(error, "extensions", "code") for error in errors] if isinstance(errors, list) else []
    )
    return {code for code in codes if isinstance(code, str)}


def has_no_credit(told: Any) -> bool:
    message = at(told, "error", "message")
    return isinstance(message, str) and NO_CREDIT in message.lower()


def is_secondary(told: Any) -> bool:
    message = at(told, "message")
    return isinstance(message, str) and SECONDARY in message.lower()


def wait_of(said: Said, told: Any, budgets: Iterable[Budget], now: float) -> float | None:
    """The server's own word first; then what follows from its budgets."""
    wait = header_values.milliseconds(said.get("retry-after-ms", ""))
    if wait is None:
        words = [
            retry_after(said.get("retry-after", ""), now),
            number_at(told, "retry_after"),
            refilled(told),
        ]
        wait = max((word for word in words if word is not None), default=None)
    if wait is None:
        wait = max(
            (
                budget.reset
                for budget in budgets
                if budget.remaining == 0 and budget.reset is not None
            ),
            default=None,
        )
    return SECONDARY_WAIT if wait is None and is_secondary(told) else wait


def retry_after(text: str, now: float) -> float | None:
    wait = header_values.seconds(text)
    moment = header_values.http_date(text)
    return wait if moment is None else header_values.until(moment, now)


def refilled(told: Any) -> float | None:
    """Shopify's GraphQL: when the bucket will hold what the query asks for."""
    cost = number_at(told, "extensions", "cost", "requestedQueryCost")
    there = number_at(told, "extensions", "cost", "throttleStatus", "currentlyAvailable")
    rate = number_at(told, "extensions", "cost", "throttleStatus", "restoreRate")
    return (
        header_values.bounded(max(0.0, cost - there) / rate)
        if cost is not None and there is not None and rate
        else None
    )


# Headers of the providers ------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """Headers of one form. `header`: with a group `what` (limit, remaining, reset, reset-after) and maybe a `name`."""

    header: re.Pattern[str]
    reset: Callable[[str, float], float | None]


def row(header: str, reset: Callable[[str, float], float | None]) -> Row:
    return Row(
        re.compile(header.replace("WHAT", "(?P<what>limit|remaining|reset)"), re.ASCII), reset
    )


TABLE = [
    # GitHub, Discord (reset-after goes before reset) and many others; X writes it with one more hyphen.
    row(r"x-ratelimit-(?P<what>limit|remaining|reset|reset-after)", header_values.epoch),
    row(r"x-rate-limit-WHAT", header_values.epoch),
    # OpenAI; Azure the same, in whole seconds.
    row(
        r"x-ratelimit-WHAT-(?P<name>(?!after$)[a-z][a-z_-]*)",
        lambda text, now: header_values.go_duration(text),
    ),
    # Anthropic: the moment at which it is full.
    row(r"anthropic-(?:ratelimit-)?(?P<name>[a-z][a-z-]*)-WHAT", header_values.instant),
    # IETF, drafts up to 06.
    row(r"ratelimit-WHAT", lambda text, now: header_values.seconds(text)),
]
NAMED_BY = (
    "x-ratelimit-resource",
    "x-ratelimit-bucket",
)  # the budget of the first row: GitHub, Discord
SHOPIFY_REST = re.compile(r"([0-9]{1,9})/([0-9]{1,9})", re.ASCII)


def by_table(said: Said, now: float) -> list[Budget]:
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for header, text in said.items():
        for number, (pattern, reset) in enumerate(TABLE):
            match = pattern.fullmatch(header)
            if match:
                name, what = match.groupdict().get("name") or "", match["what"]
                value = (
                    reset(text, now)
                    if what.startswith("reset")
                    else header_values.first_whole(text)
                )
                found.setdefault((number, name), {})[what] = value
                break
    budgets = [budget_of(said, name, values) for (_, name), values in found.items()]
    return [*filter(None, budgets), *shopify_rest(said)]


def budget_of(said: Said, name: str, values: Mapping[str, Any]) -> Budget | None:
    """None if all that was said of it is malformed."""
    limit, remaining = values.get("limit"), values.get("remaining")
    after = values.get("reset-after")
    reset = values.get("reset") if after is None else after
    if limit is remaining is reset is None:
        return None
    name = name or next((said[header] for header in NAMED_BY if header in said), "")
    return Budget(name, limit, remaining, reset, unit="tokens" if "tokens" in name else "requests")


def shopify_rest(said: Said) -> list[Budget]:
    match = SHOPIFY_REST.fullmatch(said.get("x-shopify-shop-api-call-limit", ""))
    if match is None:
        return []
    used, size = int(match[1]), int(match[2])
    return [Budget(limit=size, remaining=max(0, size - used))]


def shopify_graphql(told: Any) -> list[Budget]:
    status = ("extensions", "cost", "throttleStatus")
    size, there = (
        number_at(told, *status, "maximumAvailable"),
        number_at(told, *status, "currentlyAvailable"),
    )
    rate = number_at(told, *status, "restoreRate")
    if size is None or there is None or not rate:
        return []
    reset, per = (
        header_values.bounded(max(0.0, size - there) / rate),
        header_values.bounded(size / rate),
    )
    return [Budget("cost", int(size), int(there), reset, per, unit="points")]


# IETF: draft-ietf-httpapi-ratelimit-headers ------------------------------------------------------------------------------------


def structured(said: Said) -> list[Budget]:
    """`RateLimit-Policy` and `RateLimit`, joined by policy and partition; draft 07 had one dictionary of numbers."""
    found: dict[tuple[str, bytes], dict[str, Any]] = {}
    for name, words in items_of(said.get("ratelimit-policy", "")):
        if natural(words.get("q")) is not None:
            values = {
                "limit": words["q"],
                "per": span(words.get("w")),
                "unit": str(words.get("qu", "requests")),
            }
            found.setdefault((name, partition(words)), {}).update(values)
    for name, words in items_of(said.get("ratelimit", "")):
        if natural(words.get("r")) is not None:
            values = {"remaining": words["r"], "reset": span(words.get("t"))}
            found.setdefault((name, partition(words)), {}).update(values)
    budgets = [
        Budget(name=name, partition=part, **values) for (name, part), values in found.items()
    ]
    return budgets or draft_07(said.get("ratelimit", ""))


def items_of(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The named items of a structured list with their parameters."""
    parsed = parse(text, "list")
    return [
        (str(item[0]), item[1]) for item in parsed or [] if isinstance(item[0], str | http_sf.Token)
    ]


def draft_07(text: str) -> list[Budget]:
    """`limit=100, remaining=50, reset=5`."""
    parsed = parse(text, "dictionary") or {}
    limit, remaining, reset = (
        parsed.get(word, (None,))[0] for word in ("limit", "remaining", "reset")
    )
    budget = Budget("", natural(limit), natural(remaining), span(reset))
    return [] if budget == Budget() else [budget]


def parse(text: str, kind: Literal["list", "dictionary"]) -> Any:
    try:
        return http_sf.parse(text.encode(), tltype=kind) if text else None
    except (
        Exception
    ):  # whatever it stumbles over: a field that cannot be read is ignored, says the draft
        return None


def natural(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def span(value: object) -> float | None:
    seconds = natural(value)
    return None if seconds is None else header_values.bounded(float(seconds))


def partition(words: Mapping[str, Any]) -> bytes:
    key = words.get("pk")
    return key if isinstance(key, bytes) else b""
