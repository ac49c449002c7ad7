"""Which refusals are to be read before they are heeded, and what they say in plain.

Pure: what they mean is rate_limit_headers.py's to know, and how a client's body is read its own module's.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Protocol

REFUSED = {403, 429}  # with which a limit that was met and an account that is spent are told alike
AHEAD = 65_536  # bytes of a refusal that are read; they are short
LONG = 5.0  # seconds; who drips it for longer is heeded by the headers
PLAIN = 1_000_000  # bytes that these may become
CODINGS = {"gzip", "x-gzip", "deflate"}  # what zlib reads
EITHER = zlib.MAX_WBITS | 32  # gzip or zlib, by their first bytes


class Headers(Protocol):
    """The headers of any client's response."""

    def items(self) -> Iterable[tuple[str, str]]: ...


def telling(status: int, headers: Headers) -> bool:
    """Whether the body of such an answer may say what its headers do not: that a limit was met, or that waiting would not help."""
    return status in REFUSED and "json" in said(headers, "content-type")


def decoded(headers: Headers, body: bytes) -> bytes:
    """A body as it came over the wire, in plain; nothing of one in a coding that is not known here."""
    coding = said(headers, "content-encoding") or "identity"
    if coding == "identity":
        return body
    try:
        return zlib.decompressobj(EITHER).decompress(body, PLAIN) if coding in CODINGS else b""
    except zlib.error:
        return b""


def said(headers: Headers, name: str) -> str:
    return next(
        (value.strip().lower() for header, value in headers.items() if header.lower() == name), ""
    )
