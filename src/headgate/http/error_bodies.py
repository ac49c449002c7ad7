"""The bodies of refusals: which of them are read, how they are decoded, and their statements.

Pure: the module of a client reads the body.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from headgate.http.json_values import find, find_list, find_text

# A limit, a lack of credit and a wrong request all have these: only the body tells which it is.
AMBIGUOUS = {400, 403, 429}
MOST_READ = 65_536  # bytes of a refusal that are read
LONGEST_READ = 5.0  # seconds; after that, the body counts as far as it was read
MOST_DECODED = 1_000_000  # bytes that a compressed body may become
ACCEPTED_CODINGS = "gzip, deflate"  # codings that zlib reads
CODINGS = {"gzip", "x-gzip", "deflate"}  # the names of these codings in a response
GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # zlib tells them apart by their first bytes

# No wait helps soon: the account has no credit, or a quota of a day or longer is used up.
USED_UP_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "enforced_spend_limit_reached",
    # Google: developers.google.com/bid-manager/quotas, developers.google.com/youtube/v3/docs/errors
    "dailyLimitExceeded",
    "quotaExceeded",
    # HubSpot: developers.hubspot.com/docs/developer-tooling/platform/usage-guidelines
    "DAILY",
}
NO_CREDIT = "credit balance is too low"  # Anthropic, in the message of an ordinary 400
# The caller has met a limit, whatever else the status may mean.
LIMIT_CODES = {
    # GraphQL of Shopify, GitHub and Linear, with status 200 or 400.
    "THROTTLED",
    "RATE_LIMITED",
    "RATELIMITED",
    # Google: developers.google.com/workspace/drive/api/guides/limits, and the reason of ErrorInfo
    "rateLimitExceeded",
    "userRateLimitExceeded",
    "RATE_LIMIT_EXCEEDED",
    # AWS: the codes that botocore retries as throttled (its module retries.standard)
    "BandwidthLimitExceeded",
    "EC2ThrottledException",
    "LimitExceededException",
    "PriorRequestNotComplete",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "RequestThrottledException",
    "SlowDown",
    "ThrottledException",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "TransactionInProgressException",
}
# HubSpot states no wait. These are the waits of its SDK: hubspot-api-nodejs, RetryDecorator
WAITS_BY_CODE = {"TEN_SECONDLY_ROLLING": 10.0, "SECONDLY": 1.0}
# GitHub states the refusal by this text alone. Its documents ask callers to wait at least a minute.
SECONDARY = "secondary rate limit"
# The code in the XML of AWS.
XML_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,64})</Code>")


class Headers(Protocol):
    def items(self) -> Iterable[tuple[str, str]]: ...


def says_more_than_headers(status: int, headers: Headers) -> bool:
    """Return whether the status is ambiguous, and a body in JSON or XML may resolve it."""
    kind = find_header(headers, "content-type") if status in AMBIGUOUS else ""
    return "json" in kind or "xml" in kind


def decode(headers: Headers, body: bytes) -> bytes:
    coding = find_header(headers, "content-encoding") or "identity"
    if coding == "identity":
        return body
    if coding not in CODINGS:
        return b""
    try:
        return zlib.decompressobj(GZIP_OR_ZLIB).decompress(body, MOST_DECODED)
    except zlib.error:
        return b""


def find_header(headers: Headers, name: str) -> str:
    values = (value.strip().lower() for key, value in headers.items() if key.lower() == name)
    return next(values, "")


# Reading a body --------------------------------------------------------------------------------


def find_codes(fields: Mapping[str, str], body: Any) -> set[str]:
    """Return all words by which a refusal states its kind."""
    paths = [
        ("code",),
        ("error", "code"),
        ("error", "type"),
        ("error", "details", "error_code"),  # Anthropic
        ("policyName",),  # HubSpot
    ]
    codes = {find_text(body, *path) for path in paths}
    for error in (*find_list(body, "error", "errors"), *find_list(body, "error", "details")):
        codes.add(find_text(error, "reason"))  # Google
    # AWS: "ThrottlingException:http://...", "com.amazonaws...#ThrottlingException"
    codes.add(fields.get("x-amzn-errortype", "").partition(":")[0])
    codes.add(find_text(body, "__type").rpartition("#")[2])
    return (codes | find_graphql_codes(body)) - {""}


def find_graphql_codes(body: Any) -> set[str]:
    """Return the codes of errors that may come with status 200."""
    errors = find_list(body, "errors")
    paths = [("extensions", "code"), ("type",)]  # Shopify and Linear; GitHub
    return {find_text(error, *path) for error in errors for path in paths} - {""}


def find_xml_code(body: bytes | str) -> set[str]:
    start = body[:MOST_READ]
    match = XML_CODE.search(start.encode(errors="replace") if isinstance(start, str) else start)
    return {match[1].decode()} if match else set()


def has_no_credit(body: Any) -> bool:
    return NO_CREDIT in find_text(body, "error", "message").lower()


def is_secondary_limit(body: Any) -> bool:
    return SECONDARY in find_text(body, "message").lower()


def is_global(body: Any) -> bool:
    """Return whether Discord says that the limit is of the whole service."""
    return find(body, "global") is True
