"""Which requests the page answers: its users, and actions that come from the page itself.

A message never shows a password.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64decode
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from headgate.web.asgi import Response, Scope, headers_of

# The argument `auth` of `app`.
Auth: TypeAlias = "str | tuple[str, str] | Callable[[Scope], Any] | None"
# Returns the refusal of a request, or None if it may pass.
Guard: TypeAlias = Callable[[Scope], Awaitable[Response | None]]

CHALLENGE = (("WWW-Authenticate", 'Basic realm="headgate", charset="UTF-8"'),)
FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
WAYS = (
    "write auth='user:password', a pair of both, a function of the ASGI scope, or auth=None for "
    "the loopback alone"
)


def guard_of(auth: Auth) -> Guard:
    """Raises TypeError and ValueError for a bad `auth`."""
    if auth is None:
        return loopback_only
    if callable(auth):
        return function_guard(auth)
    return password_guard(*parts_of(auth))


def parts_of(auth: object) -> tuple[str, str]:
    if isinstance(auth, str):
        user, colon, password = auth.partition(":")
        if not colon:
            raise ValueError(f"web.app(auth=...) is a text without a colon: {WAYS}.")
    elif isinstance(auth, tuple) and len(auth) == 2 and all(isinstance(x, str) for x in auth):
        user, password = auth
        if ":" in user:
            raise ValueError("web.app(auth=...) has a user with a colon: browsers cannot send it.")
    else:
        raise TypeError(f"web.app(auth=...) is a {type(auth).__name__}: {WAYS}.")
    if not (user and password):
        raise ValueError(f"web.app(auth=...) has an empty user or password: {WAYS}.")
    return user, password


def password_guard(user: str, password: str) -> Guard:
    key = secrets.token_bytes(32)

    def digest(text: bytes) -> bytes:
        """All digests have one length, so a comparison does not show the length of a password."""
        return hmac.digest(key, text, "sha256")

    expected = digest(f"{user}:{password}".encode())

    async def guard(scope: Scope) -> Response | None:
        given = credentials_of(headers_of(scope).get("authorization", ""))
        if hmac.compare_digest(digest(given), expected):
            return None
        return Response(401, "This page needs a user and a password.", headers=CHALLENGE)

    return guard


def credentials_of(header: str) -> bytes:
    """The `user:password` of a header for Basic authentication; empty if it is malformed."""
    scheme, _, text = header.partition(" ")
    try:
        return b64decode(text.strip(), validate=True) if scheme.lower() == "basic" else b""
    except ValueError:
        return b""


def function_guard(function: Callable[[Scope], Any]) -> Guard:
    """Only True itself lets a request pass: a coroutine that was not awaited is truthy."""
    is_coroutine = iscoroutinefunction(function)

    async def guard(scope: Scope) -> Response | None:
        verdict = function(scope)
        if is_coroutine:
            verdict = await verdict
        return None if verdict is True else Response(403, "This page is not open to you.")

    return guard


async def loopback_only(scope: Scope) -> Response | None:
    """Without users, only programs of this machine may look.

    By DNS rebinding, a foreign web page can send its reader's browser to the loopback, with the
    page's host in the request. So that host must be the loopback, too. A proxy of this machine
    sends requests of other machines, so the headers of a proxy are refused.
    """
    headers, client = headers_of(scope), scope.get("client")
    host = host_in(f"//{headers.get('host', '')}")
    direct = not any(name in headers for name in FORWARDED)
    if direct and client and is_loopback(client[0]) and (host == "localhost" or is_loopback(host)):
        return None
    return Response(
        403,
        "Without auth=... this page answers only requests from this machine to the loopback. "
        "Give headgate.web.app an auth.",
    )


def host_in(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def comes_from_the_page(scope: Scope) -> bool:
    """Whether a browser says that a page of this very origin made the request.

    Browsers send Sec-Fetch-Site over TLS and to the loopback, and Origin everywhere.
    """
    headers = headers_of(scope)
    if "sec-fetch-site" in headers:
        return headers["sec-fetch-site"] == "same-origin"
    scheme, _, origin = headers.get("origin", "").partition("://")
    return scheme in ("http", "https") and bool(origin) and origin == headers.get("host")
