"""What the calls of an HTTP client pass, whichever client that is: limiters, one after another, and the permits of a call.

Here lives which limiters a request has to pass (by key, unless it is exempt) and that it gets all of their permits or none.
No client is known here: each tells how to read the host and the path off its requests. When a call is over is theirs to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from inspect import iscoroutinefunction
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from headgate.errors import CostExceedsCapacityError
from headgate.http.error_bodies import telling
from headgate.limiter import Limiter
from headgate.permit import Permit
from headgate.validation import show

R = TypeVar("R")  # a client's request

Key: TypeAlias = Literal["host"] | Callable[[R], str] | None
Exempt: TypeAlias = Iterable[str | Callable[[R], bool]]
Passed: TypeAlias = Sequence[tuple[Limiter, Permit]]
Heard: TypeAlias = Callable[
    [Passed, int, Any, bytes], None
]  # what is done with the status and headers of an answer, and a body

UNSENT = "headgate_unsent"  # is known of an error that came before anything was sent: limiters further out hear it, too


class Place(NamedTuple):
    """Where a request goes: `host` without port, in lower case; `path` from its first slash, without query."""

    host: str
    path: str


class Held:
    """The permits of one call. They go back by `release`, or when nobody knows of the call any more."""

    __slots__ = ("_heard", "_passed")

    def __init__(self, passed: Passed = (), heard: Heard | None = None) -> None:
        self._passed = passed
        self._heard = heard

    def answered(self, status: int, headers: Any, body: bytes = b"") -> None:
        """What the server has said; in the body too, where that was read. Never raises."""
        if self._heard is not None and self._passed:
            self._heard(self._passed, status, headers, body)

    def heeds(self, status: int, headers: Any) -> bool:
        """Whether the body of this answer may say what its headers do not."""
        return self._heard is not None and bool(self._passed) and telling(status, headers)

    def __bool__(self) -> bool:
        """Whether there is anything to give back."""
        return any(permit.held for _, permit in self._passed)

    def failed(self, error: BaseException) -> None:
        """It has ended so. What was never sent, because limiters further in have refused it, has used nothing up."""
        if UNSENT in vars(error):
            undo(permit for _, permit in self._passed)
        self.release()

    def opened(self, response: Any) -> None:
        """Its headers are there, its body may come: for who looks into it."""

    def release(self) -> None:
        """Never blocks, from any task or thread, and a second time is harmless."""
        for _, permit in self._passed:
            permit.release()


class Terms:
    """What a call asks of a limiter beyond one of each, and how what it gets is held."""

    def units(self, limiter: Limiter) -> dict[str, Any]:
        return {}

    def held(self, passed: Passed, heard: Heard | None) -> Held:
        return Held(passed, heard)


ONE_OF_EACH = Terms()


class Calls(Generic[R]):
    """Which limiters a client's calls pass: in the order in which they were named, each with all of its limits at once."""

    def __init__(
        self,
        call: str,
        limiters: tuple[Limiter, ...],
        key: Key[R],
        exempt: Exempt[R],
        place: Callable[[R], Place],
        heard: Heard | None = None,
    ) -> None:
        self._limiters = check_limiters(call, limiters)
        self._key = check_key(call, limiters, key)
        self.exempt = check_exempt(call, exempt)
        self._place = place
        self._heard = heard

    async def enter(self, request: R) -> Held:
        """The permits for one attempt; a failure on the way gives back those that are there."""
        terms = self._terms(request)
        passed: list[tuple[Limiter, Permit]] = []
        try:
            for limiter in self._passed_by(request):
                passed.append((limiter, await granted(limiter, terms)))  # noqa: PERF401 - each is to be known at once
        except BaseException as error:
            undo(permit for _, permit in passed)
            vars(error)[UNSENT] = True
            raise
        return terms.held(passed, self._heard)

    def enter_sync(self, request: R) -> Held:
        """`enter`, by blocking this thread."""
        terms = self._terms(request)
        passed: list[tuple[Limiter, Permit]] = []
        try:
            for limiter in self._passed_by(request):
                passed.append((limiter, granted_sync(limiter, terms)))  # noqa: PERF401 - each is to be known at once
        except BaseException as error:
            undo(permit for _, permit in passed)
            vars(error)[UNSENT] = True
            raise
        return terms.held(passed, self._heard)

    def _terms(self, request: R) -> Terms:
        return ONE_OF_EACH

    def _passed_by(self, request: R) -> Sequence[Limiter]:
        if self.exempt and self._is_exempt(request):
            return ()
        if self._key is None:
            return self._limiters
        key = self._place(request).host if self._key == "host" else self._key(request)
        return [limiter[key] for limiter in self._limiters]

    def _is_exempt(self, request: R) -> bool:
        place = self._place(request)
        return any(
            matches(rule, place) if isinstance(rule, str) else rule(request) for rule in self.exempt
        )


async def granted(limiter: Limiter, terms: Terms) -> Permit:
    """What was asked for may be more than the limiter holds by now, if it was cut: then as much as that."""
    units = terms.units(limiter)
    try:
        return await limiter.acquire(**units)
    except CostExceedsCapacityError:
        if terms.units(limiter) == units:
            raise
    return await granted(limiter, terms)


def granted_sync(limiter: Limiter, terms: Terms) -> Permit:
    """`granted`, by blocking this thread."""
    units = terms.units(limiter)
    try:
        return limiter.acquire_sync(**units)
    except CostExceedsCapacityError:
        if terms.units(limiter) == units:
            raise
    return granted_sync(limiter, terms)


def undo(permits: Iterable[Permit]) -> None:
    """Nothing was sent: what is held goes back, and so does what the rates have counted."""
    for permit in permits:
        permit.settle(
            **dict.fromkeys(permit._queue.declared.rated & {"requests", *permit.units}, 0)
        )
        permit.release()


def matches(rule: str, place: Place) -> bool:
    """Whether a text of an exempt list means `place`: "host", "*.host", "/path" or "host/path", a path with all below it."""
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
                f"{call} got {show(limiter)} as a limiter: write a Limiter, such as Limiter('api', '100/minute')."
            )
    return limiters


def check_key(call: str, limiters: tuple[Limiter, ...], key: Key[R]) -> Key[R]:
    if key is None or key == "host" or answers(key):
        keyed = [limiter for limiter in limiters if limiter.key is not None]
        if key is not None and keyed:
            raise TypeError(
                f"{call} takes keys of its limiters, and {keyed[0]!r} is one key's already: give it the whole."
            )
        return key
    raise TypeError(
        f"{call}(key={show(key)}): a key is 'host', or a function of the request that returns a text."
    )


def check_exempt(call: str, exempt: Exempt[R]) -> tuple[str | Callable[[R], bool], ...]:
    if isinstance(exempt, str) or not isinstance(exempt, Iterable):
        raise TypeError(f"{call}(exempt={show(exempt)}): exempt is a list; write [{show(exempt)}].")
    rules = tuple(exempt)
    for rule in rules:
        if isinstance(rule, str):
            check_rule(call, rule)
        elif not answers(rule):
            raise TypeError(
                f"{call}(exempt=[{show(rule)}]): what is exempt is a text such as 'localhost' or '/health', "
                "or a function of the request that returns True or False."
            )
    return rules


def answers(function: object) -> bool:
    """Whether it says something when it is called: what a coroutine function returns would be true of every request."""
    return callable(function) and not iscoroutinefunction(function)


def check_rule(call: str, rule: str) -> None:
    """A text that could match nothing is a mistake: a URL, a port, a query, capitals in a host."""
    host, _, _ = rule.partition("/")
    if not rule or "://" in rule or "?" in rule or ":" in host or host != host.lower():
        raise ValueError(
            f"{call}(exempt=[{show(rule)}]): write a host in lower case without its port ('localhost', '*.host'), "
            "a path ('/health'), or both ('host/health'); for anything else a function of the request."
        )
