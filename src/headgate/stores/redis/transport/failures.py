"""Builds the StoreError for a failure of a server: its reason, its text and its cause.

No error shows a password.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator
from errno import ECONNREFUSED, ENOENT
from socket import gaierror

import redis.exceptions
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from headgate.errors import Reason, StoreError
from headgate.keys import title

# A server that knows no AUTH repeats the command behind these words, with the password.
REPEATED = ", with args"
# With these words a server wants a login first.
NO_LOGIN = (
    "NOAUTH",
    "Authentication required",
    "Protocol error: unauthenticated",
    "ERR Protocol error: unauthenticated",
)
WANTS_LOGIN = (
    "it wants a password, and headgate has none: write user and password into the URL, as in "
    "redis://user:password@host:6379/0"
)
# Texts in place of those that may hold secrets.
WORDS: dict[Reason, str] = {
    "refused": "nothing listens there",
    "unresolvable": "its host name cannot be resolved",
    "timeout": "it did not answer in time",
    "password": "it does not accept this user and password",
    "tls": "TLS failed",
}


class NotThereError(RedisError):
    """A server cannot be reached. The text is headgate's own and holds no secret."""


# The first class that fits gives the reason.
REASONS: dict[type[BaseException], Reason] = {
    AuthenticationError: "password",
    ssl.SSLError: "tls",
    gaierror: "unresolvable",
    TimeoutError: "timeout",
    redis.exceptions.TimeoutError: "timeout",
    ResponseError: "reply",
    redis.exceptions.InvalidResponse: "reply",
}
# When a chain has several reasons, the error names the first of these. The user can act on it.
FIRST: tuple[Reason, ...] = ("password", "tls", "unresolvable", "refused", "timeout", "reply")


def reason_of(lost: BaseException) -> Reason:
    """The reason of `lost`, by all errors that it came from."""
    found = {reason for each in chain(lost) if (reason := own_reason_of(each))}
    return next((reason for reason in FIRST if reason in found), "lost")


def own_reason_of(lost: BaseException) -> Reason | None:
    if wants_login(f"{lost}"):
        return "password"
    for kind, reason in REASONS.items():
        if isinstance(lost, kind):
            return reason
    if isinstance(lost, OSError):
        # asyncio joins the errors of all addresses of a host into one text.
        numbers = {int(number) for number in re.findall(r"\[Errno (\d+)]", f"{lost}")}
        if (numbers or {lost.errno or 0}) <= {ECONNREFUSED, ENOENT}:
            return "refused"
    return None


def wants_login(refusal: str) -> bool:
    return refusal.startswith(NO_LOGIN)


def chain(lost: BaseException | None) -> Iterator[BaseException]:
    while lost is not None:
        yield lost
        lost = lost.__cause__ or lost.__context__


def failure_text(lost: BaseException) -> str:
    """The failure in the server's words or in headgate's."""
    if any(wants_login(f"{each}") for each in chain(lost)):
        return WANTS_LOGIN
    if isinstance(lost, (ResponseError, StoreError, NotThereError)):
        return str(lost).partition(REPEATED)[0]
    parts = [type(lost).__name__, WORDS.get(reason_of(lost))]
    refusals = (each for each in chain(lost) if isinstance(each, ssl.SSLCertVerificationError))
    parts += [refusal.verify_message for refusal in refusals][:1]
    return ": ".join(filter(None, parts))


def shown_cause(lost: BaseException) -> BaseException:
    """`lost`, or a substitute if its text repeats a login."""
    repeats = any(REPEATED in f"{each}" for each in chain(lost))
    return NotThereError(failure_text(lost)) if repeats else lost


def cannot(topology: object, lost: BaseException) -> StoreError:
    error = StoreError(
        f"The Redis server at {topology} cannot be asked ({failure_text(lost)}). It may have run "
        "the last call; headgate returns the permits of that call as soon as it answers. Check "
        "that it runs, can be reached and accepts the login.",
        reason_of(lost),
    )
    error.__cause__ = shown_cause(lost)
    return error


def refused(topology: object, name: str, refusal: str, lost: Exception) -> StoreError:
    """The error for calls that a server answered with an error or a malformed reply."""
    reason: Reason = "reply"
    if wants_login(refusal):
        reason, refusal = "password", WANTS_LOGIN
    error = StoreError(
        f"The Redis server at {topology} refused a call of {title(name)}: {refusal}", reason
    )
    error.__cause__ = shown_cause(lost)
    return error
