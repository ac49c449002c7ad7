"""The bodies in which servers state their limits and the cost of a call: GraphQL, and Google.

Pure: parsed JSON comes in and budgets go out. budget_headers.py reads headers. error_bodies.py
reads the kind of a refusal.
"""

from __future__ import annotations

import re
from math import ceil
from typing import Any

from headgate.http import header_values
from headgate.http.budget_headers import HOUR, Budget, Fields, period_of, unit_of
from headgate.http.json_values import find, find_list, find_number, find_text

THROTTLE_STATUS = ("extensions", "cost", "throttleStatus")


def budgets_by_body(body: Any, now: float) -> list[Budget]:
    return [*budgets_of_shopify(body), *budgets_of_github(body, now), *budgets_of_google(body)]


def budgets_of_shopify(body: Any) -> list[Budget]:
    """Read Shopify's bucket: shopify.dev/docs/apps/build/apis/graphql-admin/rate-limits."""
    size = find_number(body, *THROTTLE_STATUS, "maximumAvailable")
    left = find_number(body, *THROTTLE_STATUS, "currentlyAvailable")
    rate = find_number(body, *THROTTLE_STATUS, "restoreRate")
    if size is None or left is None or not rate:
        return []
    reset = header_values.keep_plausible(max(0.0, size - left) / rate)
    per = header_values.keep_plausible(size / rate)
    return [Budget("cost", int(size), int(left), reset, per, unit="points", gradual=True)]


def budgets_of_github(body: Any, now: float) -> list[Budget]:
    """Read `rateLimit { limit remaining resetAt }`, which a query of GitHub may ask for.

    docs.github.com/graphql/overview/rate-limits-and-query-limits-for-the-graphql-api
    """
    limit = find_number(body, "data", "rateLimit", "limit")
    left = find_number(body, "data", "rateLimit", "remaining")
    if limit is None or left is None:
        return []
    reset = header_values.parse_time(find_text(body, "data", "rateLimit", "resetAt"), now)
    return [Budget("graphql", int(limit), int(left), reset, HOUR, unit="points")]


def budgets_of_google(body: Any) -> list[Budget]:
    """Read the quotas that a refusal of Google names: each is empty.

    cloud.google.com/apis/design/errors, `QuotaFailure`. Issues of google-gemini/gemini-cli show the
    values.
    """
    budgets = []
    for detail in find_list(body, "error", "details"):
        for violation in find_list(detail, "violations"):
            name = find_text(violation, "quotaId")[: header_values.LONGEST_TEXT]
            limit = header_values.parse_count(find_text(violation, "quotaValue"))
            if name and limit:
                unit = unit_of({}, name.lower())
                budgets.append(Budget(name, limit, 0, per=period_of_quota(name), unit=unit))
    return budgets


def period_of_quota(name: str) -> float | None:
    """Read the "Day" of "GenerateRequestsPerDayPerProjectPerModel-FreeTier"."""
    periods = (period_of(word.lower()) for word in re.split("Per|-", name))
    return next((period for period in periods if period is not None), None)


def find_refill(body: Any) -> float | None:
    """Return the seconds until Shopify's GraphQL bucket holds the cost of the query."""
    cost = find_number(body, "extensions", "cost", "requestedQueryCost")
    left = find_number(body, *THROTTLE_STATUS, "currentlyAvailable")
    rate = find_number(body, *THROTTLE_STATUS, "restoreRate")
    if cost is None or left is None or not rate:
        return None
    return header_values.keep_plausible(max(0.0, cost - left) / rate)


def find_cost(fields: Fields, body: Any) -> int | None:
    """Return the points that the call took, as the server states them.

    Shopify, GitHub: in the body. Linear: `X-Complexity`. Cosmos: `x-ms-request-charge`, see
    learn.microsoft.com/rest/api/cosmos-db/common-cosmosdb-rest-response-headers.
    """
    costs = [
        find_number(body, "extensions", "cost", "actualQueryCost"),
        find_number(body, "data", "rateLimit", "cost"),
        header_values.parse_number(fields.get("x-complexity", "")),
        header_values.parse_number(fields.get("x-ms-request-charge", "")),
    ]
    return next((ceil(cost) for cost in costs if cost is not None), None)


def find_quota_names(body: Any) -> set[str]:
    """Return the names of the quotas that a refusal of Google states."""
    details = find_list(body, "error", "details")
    names = {find_text(detail, "metadata", "quota_limit") for detail in details}
    for detail in details:
        violations = find_list(detail, "violations")
        names |= {find_text(violation, "quotaId") for violation in violations}
    return names - {""}


def find_retry_info(body: Any) -> float | None:
    """Read Google's `RetryInfo`, such as {"retryDelay": "34.07s"}."""
    for detail in find_list(body, "error", "details"):
        wait = header_values.parse_duration(find_text(detail, "retryDelay"))
        if wait is not None:
            return wait
        if find(detail, "retryDelay", "seconds") is not None:
            return find_number(detail, "retryDelay", "seconds")
    return None
