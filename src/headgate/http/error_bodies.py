"""The bodies of refusals: which of them are read, how they are decoded, and their statements.

Pure: the module of a client reads the body.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any, Protocol

from headgate.http.header_values import keep_plausible
from headgate.http.json_values import find, find_number, find_text

AMBIGUOUS = {403, 429}  # a limit that was met, or an account without credit
MOST_READ = 65_536  # bytes of a refusal that are read
LONGEST_READ = 5.0  # seconds; after that, only the headers count
MOST_DECODED = 1_000_000  # bytes that a compressed body may become
CODINGS = {"gzip", "x-gzip", "deflate"}  # codings that zlib reads
GZIP_OR_ZLIB = zlib.MAX_WBITS | 32  # zlib tells them apart by their first bytes

NO_CREDIT_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "billing_not_active",
    "billing_error",
    "enforced_spend_limit_reached",
}
NO_CREDIT = "credit balance is too low"  # Anthropic, in the message of an ordinary 400
# GitHub says no more than this, and its documents ask callers to wait at least a minute.
SECONDARY = "secondary rate limit"


class Headers(Protocol):
    def items(self) -> Iterable[tuple[str, str]]: ...


def says_more_than_headers(status: int, headers: Headers) -> bool:
    """Return whether the status is ambiguous, and a body in JSON may resolve it."""
    return status in AMBIGUOUS and "json" in find_header(headers, "content-type")


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


def find_codes(body: Any) -> set[str]:
    paths = [("code",), ("error", "code"), ("error", "type"), ("error", "details", "error_code")]
    codes = {find_text(body, *path) for path in paths}
    errors = find(body, "errors")
    if isinstance(errors, list):
        codes |= {find_text(error, "extensions", "code") for error in errors}
    return codes - {""}


def has_no_credit(body: Any) -> bool:
    message = find_text(body, "error", "message")
    return bool(find_codes(body) & NO_CREDIT_CODES) or NO_CREDIT in message.lower()


def is_secondary_limit(body: Any) -> bool:
    return SECONDARY in find_text(body, "message").lower()


def find_refill(body: Any) -> float | None:
    """Return the seconds until Shopify's GraphQL bucket holds the cost of the query."""
    cost = find_number(body, "extensions", "cost", "requestedQueryCost")
    left = find_number(body, "extensions", "cost", "throttleStatus", "currentlyAvailable")
    rate = find_number(body, "extensions", "cost", "throttleStatus", "restoreRate")
    if cost is None or left is None or not rate:
        return None
    return keep_plausible(max(0.0, cost - left) / rate)
