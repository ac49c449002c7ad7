"""The limiters that each request of an HTTP client passes, and the permits of one call.

A request gets the permits of all its limiters or none. This module knows no client. The module of a
client reads the host and the path of a request, and knows when a call is over.
"""

from __future__ import annotations

import re
from asyncio import get_running_loop
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import iscoroutinefunction
from threading import Timer
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from headgate.http.error_bodies import says_more_than_headers
from headgate.http.feedback import HEED_AT_MOST, Feedback, FeedbackOptions
from headgate.http.rate_limit_headers import Answer, read
from headgate.http.redirects import Departure, depart
from headgate.internals import (
    acquire_estimated,
    acquire_estimated_sync,
    refund,
    settle_stated,
    state_of,
)
from headgate.limiter import Limiter
from headgate.permit import Permit
from headgate.validation import show

R = TypeVar("R")  # a client's request

Key: TypeAlias = Literal["host"] | Callable[[R], str] | None
Exempt: TypeAlias = Iterable[str | Callable[[R], bool]]

UNSENT_MARK = "headgate_unsent"  # an attribute of an error that came before the sending
HOST_RULE = re.compile(r"(?:\*\.)?(?!\.)[^*:@\s]+")  # a star stands only for all below a host
# Seconds. If the body of a refusal comes later than that, the headers are applied without it.
LATE = 0.1


class Place(NamedTuple):
    """Where a request goes.

    `host`: in lower case, without port. `path`: decoded, without query.
    """

    host: str
    path: str


class CallPermits:
    """The permits of one call. `release`, or dropping the object, gives them back."""

    __slots__ = ("_feedback", "departure", "granted", "heed_at_most")

    def __init__(self, feedback: Feedback | None = None) -> None:
        self.granted: list[tuple[Limiter, Permit]] = []
        self.departure = Departure()  # the chain sets it when the call leaves
        self.heed_at_most = HEED_AT_MOST  # a chain sets its own
        self._feedback = feedback

    def units(self, limiter: Limiter) -> dict[str, Any]:
        """For subclasses: the units to ask `limiter` for; none: one request."""
        return {}

    def apply_feedback(self, status: int, headers: Any, body: bytes = b"") -> Answer | None:
        """Apply a response to the limiters of the call, once. Return it as read. Never raises."""
        feedback, self._feedback = self._feedback, None
        if feedback is None or not self.granted:
            return None
        return feedback.apply(self.granted, self.departure, status, headers, body)

    def apply_headers(self, response: Any) -> None:
        """Apply a refusal by its headers alone, because its body is late.

        If the headers state no refusal, the body may still state one, so nothing is applied yet.
        """
        if read(response.status_code, response.headers).verdict != "passed":
            self.apply_feedback(response.status_code, response.headers)

    def settle_stated(self, amounts: Mapping[str, int]) -> None:
        """Settle what a response says that the call took, with all limiters of the call."""
        for _, permit in self.granted:
            settle_stated(permit, amounts, self.heed_at_most)

    @property
    def is_applied(self) -> bool:
        """Whether the response was applied, or none is to be applied."""
        return self._feedback is None

    def needs_body(self, response: Any) -> bool:
        """Return whether `apply_feedback` needs the body of this response."""
        if self._feedback is None or not self.granted:
            return False
        return self._feedback.wants_body(response.status_code) or says_more_than_headers(
            response.status_code, response.headers
        )

    def needs_end(self) -> bool:
        """Return whether the end of the response matters: a permit still holds capacity."""
        return any(permit.held for _, permit in self.granted)

    def cancel(self) -> None:
        """End a call that was never sent: all that was charged goes back."""
        give_back(permit for _, permit in self.granted)
        self.granted = []

    def ignore_response(self, *, sent: bool) -> CallPermits:
        """Return permits that only hold: a response from a cache is old, so nothing in it counts.

        `sent`: the cache has asked the server whether its response still holds. That is a call, so
        it keeps its cost.
        """
        if not sent:
            self.cancel()
        permits = CallPermits()
        permits.granted = self.granted
        return permits

    def fail(self, error: BaseException, *, sent: bool) -> None:
        """End the call with `error`. It costs nothing if the error is marked as unsent.

        `sent`: the call has its cost whatever the mark says. A retry below may have sent one
        attempt, and ended with the error of another that was not sent.
        """
        if UNSENT_MARK in vars(error) and not sent:
            self.cancel()
        else:
            self.release()

    def watch_body(self, response: Any) -> None:
        """For subclasses: the headers have come, and the body is not read yet."""

    def read_chunk(self, chunk: bytes) -> None:
        """For subclasses: a chunk of the body has come."""

    def release(self) -> None:
        """Release all permits. Never blocks; any task or thread may call it, and call it again."""
        for _, permit in self.granted:
            permit.release()


@contextmanager
def reading_body(permits: CallPermits, response: Any) -> Iterator[None]:
    """While a thread reads the body of a refusal, apply the headers if the body is late.

    If the caller is interrupted, it never gets the response, and the headers count alone.
    """
    timer = Timer(LATE, permits.apply_headers, (response,))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no more threads, as at the end of the interpreter
        permits.apply_headers(response)
        yield
        return
    try:
        yield
    except BaseException:
        permits.apply_headers(response)
        raise
    finally:
        timer.cancel()
        timer.join()  # no more than the time of `apply_headers`, which never blocks


@contextmanager
def areading_body(permits: CallPermits, response: Any) -> Iterator[None]:
    """`reading_body` for coroutines."""
    timer = get_running_loop().call_later(LATE, permits.apply_headers, response)
    try:
        yield
    except BaseException:
        permits.apply_headers(response)
        raise
    finally:
        timer.cancel()


class LimiterChain(Generic[R]):
    """The limiters of a client, in the order in which a request passes them."""

    def __init__(
        self,
        call: str,
        limiters: tuple[Limiter, ...],
        key: Key[R],
        exempt: Exempt[R],
        find_place: Callable[[R], Place],
        options: FeedbackOptions,
    ) -> None:
        """`call`: the user's call, for error messages."""
        self._call = call
        self._feedback = options.make_feedback(call)
        self._heed_at_most = options.heed_at_most
        self._limiters = check_limiters(call, limiters)
        self._key = check_key(call, limiters, key)
        self._exempt = check_exempt(call, exempt)
        self._find_place = find_place

    @property
    def all_limiters(self) -> Sequence[Limiter]:
        """The limiters that a request may pass."""
        return self._limiters

    def check_beside(self, others: Iterable[LimiterChain[Any]]) -> None:
        """Refuse a limiter that is in one of `others`, too: the same requests pass these chains."""
        taken = [limiter for other in others for limiter in other.all_limiters]
        check_repeats(self._call, taken, self.all_limiters)

    async def enter(self, request: R) -> CallPermits:
        """Get the permits for one attempt. On a failure, those that were granted go back."""
        permits = self._new_permits(request)
        permits.heed_at_most = self._heed_at_most
        try:
            for limiter in self._limiters_for(request):
                permit = await acquire_estimated(limiter, permits.units)
                permits.granted.append((limiter, permit))
            permits.departure = depart(self._find_place(request).host)
        except BaseException as error:
            permits.cancel()
            mark_unsent(error)
            raise
        return permits

    def enter_sync(self, request: R) -> CallPermits:
        """`enter` for threads."""
        permits = self._new_permits(request)
        permits.heed_at_most = self._heed_at_most
        try:
            for limiter in self._limiters_for(request):
                permit = acquire_estimated_sync(limiter, permits.units)
                permits.granted.append((limiter, permit))
            permits.departure = depart(self._find_place(request).host)
        except BaseException as error:
            permits.cancel()
            mark_unsent(error)
            raise
        return permits

    def _new_permits(self, request: R) -> CallPermits:
        return CallPermits(self._feedback)

    def _limiters_for(self, request: R) -> Sequence[Limiter]:
        if self._exempt and self._is_exempt(request):
            return ()
        if self._key is None:
            return self._limiters
        key = self._find_place(request).host if self._key == "host" else self._key(request)
        return [limiter[key] for limiter in self._limiters]

    def _is_exempt(self, request: R) -> bool:
        place = self._find_place(request)
        return any(
            matches(rule, place) if isinstance(rule, str) else rule(request)
            for rule in self._exempt
        )


def mark_unsent(error: BaseException) -> None:
    """Note that the request was not sent, for all chains that `error` passes."""
    vars(error)[UNSENT_MARK] = True


def give_back(permits: Iterable[Permit]) -> None:
    """Release the permits of a call that was not sent, and refund their rates."""
    for permit in permits:
        refund(permit)
        permit.release()


def matches(rule: str, place: Place) -> bool:
    """Return whether `rule`, such as "*.host/path", covers `place`. A path covers all below it."""
    host, slash, path = rule.partition("/")
    if host and not (
        place.host == host or (host.startswith("*.") and place.host.endswith(host[1:]))
    ):
        return False
    path = slash + path.rstrip("/")
    return path in ("", "/") or place.path == path or place.path.startswith(f"{path}/")


def check_limiters(call: str, limiters: tuple[Limiter, ...]) -> tuple[Limiter, ...]:
    if not limiters:
        raise ValueError(
            f"{call} has no limiters: give it at least one, such as Limiter('api', '100/minute')."
        )
    for limiter in limiters:
        if not isinstance(limiter, Limiter):
            raise TypeError(
                f"{call} got {show(limiter)} as a limiter: write a Limiter, such as "
                "Limiter('api', '100/minute')."
            )
    for number, limiter in enumerate(limiters):
        check_repeats(call, limiters[:number], [limiter])
    return limiters


def check_repeats(call: str, taken: Sequence[Limiter], limiters: Sequence[Limiter]) -> None:
    """Refuse one of `limiters` that shares its state with one of `taken`."""
    states = [state_of(limiter) for limiter in taken]
    for limiter in limiters:
        if state_of(limiter) in states:
            raise ValueError(
                f"{call} got {limiter!r} twice for the same requests: each of them would be "
                "charged twice, and could wait for its own permit; name the limiter once."
            )


def check_key(call: str, limiters: tuple[Limiter, ...], key: Key[R]) -> Key[R]:
    if key is not None and key != "host" and not is_plain_function(key):
        raise TypeError(
            f"{call}(key={show(key)}): a key is 'host', or a function of the request that "
            "returns a text."
        )
    keyed = [limiter for limiter in limiters if limiter.key is not None]
    if key is not None and keyed:
        raise TypeError(
            f"{call}(key={show(key)}): {keyed[0]!r} already has a key; pass the limiter without "
            "one."
        )
    return key


def check_exempt(call: str, exempt: Exempt[R]) -> tuple[str | Callable[[R], bool], ...]:
    if isinstance(exempt, str) or not isinstance(exempt, Iterable):
        raise TypeError(f"{call}(exempt={show(exempt)}): exempt is a list; write [{show(exempt)}].")
    rules = tuple(exempt)
    for rule in rules:
        if isinstance(rule, str):
            check_rule(call, rule)
        elif not is_plain_function(rule):
            raise TypeError(
                f"{call}(exempt=[{show(rule)}]): what is exempt is a text such as 'localhost' or "
                "'/health', or a function of the request that returns True or False."
            )
    return rules


def is_plain_function(function: object) -> bool:
    # A coroutine function would return a coroutine, which is always truthy.
    return callable(function) and not iscoroutinefunction(function)


def check_rule(call: str, rule: str) -> None:
    """Refuse a text that could match no request."""
    host = rule.partition("/")[0]
    is_host = not host or (HOST_RULE.fullmatch(host) and host == host.lower())
    if not rule or "://" in rule or "?" in rule or not is_host:
        raise ValueError(
            f"{call}(exempt=[{show(rule)}]): write a host in lower case without its port "
            "('localhost', '*.host'), a path ('/health'), or both ('host/health'); for anything "
            "else a function of the request."
        )
