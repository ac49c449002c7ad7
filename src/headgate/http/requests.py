"""requests: an adapter that passes limiters first, and `limit`, which puts it into a session that is there.

Here lives what is of requests and urllib3: when one of their calls is over, and that urllib3 sends again by itself, inside of what
is one call to an adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import ismethod
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakMethod

from headgate.extras import extra

with extra("requests"):
    from requests import PreparedRequest, Response, Session
    from requests.adapters import BaseAdapter, HTTPAdapter
    from urllib3.util.retry import Retry

    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Calls, Exempt, Held, Key, Place

from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

__all__ = ["Adapter", "limit"]


class Adapter(BaseAdapter):
    """Limits whatever goes through it: `session.mount("https://", Adapter(Limiter("api", "100/minute")))`.

    One acquire of each limiter, in the order named, for each request that goes out: for redirects, and for what a urllib3 `Retry`
    sends again; nothing is held while that waits to retry. What is held is held until the body has been read or closed, and comes
    back on errors. The wait is no part of a request's `timeout`; it is part of `response.elapsed`.
    `inner`: the adapter that sends; unsaid, an `HTTPAdapter()`. To count its retries its `max_retries` is replaced by its like.
    `key`: "host", or a function of the request that returns a text: a state for each host, or for each such text.
    `exempt`: what is not limited: hosts ("localhost", "*.host"), paths with all below them ("/health"), both ("host/health"),
    or functions of the request.
    `heed`: what the server answers holds all who use these limiters: a refusal for a time (429 or 503 with Retry-After, and its
    like) pauses them, less left than they reckon with drains them, see docs/http.md. False: nothing is made of answers.
    `adopt`: a limit that the server tells takes the place of the one that counts requests, as by `Limiter.update`.

    Raises ValueError or TypeError for what can never work; a request raises what `Limiter.acquire` does, before it is sent.
    """

    def __init__(
        self,
        *limiters: Limiter,
        inner: BaseAdapter | None = None,
        key: Key[PreparedRequest] = None,
        exempt: Exempt[PreparedRequest] = (),
        heed: bool = True,
        adopt: bool = False,
    ) -> None:
        super().__init__()
        self._calls = Calls(
            "Adapter", limiters, key, exempt, place, heeding("Adapter", heed, adopt)
        )
        self.inner = HTTPAdapter() if inner is None else inner
        count_retries(self.inner)

    def send(
        self, request: PreparedRequest, stream: bool = False, *arguments: Any, **options: Any
    ) -> Response:
        """For the session: one request, with what urllib3 makes of it."""
        with Attempt(self._calls, request).under_way() as attempt:
            response = self.inner.send(request, stream, *arguments, **options)
        attempt.held.answered(
            response.status_code, response.headers, said(response, attempt.held, stream)
        )
        hold(response.raw, attempt.held)
        return response

    def close(self) -> None:
        """Closes the adapter inside."""
        self.inner.close()


def limit(
    session: Session,
    *limiters: Limiter,
    key: Key[PreparedRequest] = None,
    exempt: Exempt[PreparedRequest] = (),
    heed: bool = True,
    adopt: bool = False,
) -> Session:
    """Limit a session in place, and return it: its adapters with their pools, retries, proxies and TLS stay as they are.

        session = limit(requests.Session(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `Adapter`. Called again, it adds limiters: those that were added last are passed first. An
    adapter that is mounted afterwards is not limited.
    """
    exempt = Calls("limit", limiters, key, exempt, place, heeding("limit", heed, adopt)).exempt
    if not isinstance(session, Session):
        raise TypeError(f"limit({show(session)}): a session is a requests.Session.")
    for prefix, inner in session.adapters.items():
        session.adapters[prefix] = Adapter(
            *limiters, inner=inner, key=key, exempt=exempt, heed=heed, adopt=adopt
        )
    return session


def place(request: PreparedRequest) -> Place:
    url = urlsplit(request.url or "")
    return Place(url.hostname or "", url.path)


def said(response: Response, held: Held, stream: bool) -> bytes:
    """The body of a refusal, before anybody is held: the session would read it next, unless its user reads it himself."""
    if stream or not held.heeds(response.status_code, response.headers):
        return b""
    try:
        return response.content or b""
    except BaseException:
        held.answered(response.status_code, response.headers)
        held.release()
        raise


# When a call is over -----------------------------------------------------------------------------------------------------------


def hold(raw: Any, held: Held) -> None:
    """Keep the permits until urllib3 lets go of the connection. It does so at the end of the body, on errors, and when closed."""
    if getattr(raw, "connection", None) is None:  # nothing is on the wire any more, or never was
        held.release()
    elif held:
        for name in ("release_conn", "close"):
            setattr(raw, name, and_then(getattr(raw, name), held))


def and_then(method: Callable[[], None], held: Held) -> Callable[[], None]:
    """The method, and a release. It does not keep its object: a response that is dropped goes at once, and its permits with it."""
    weak = (
        WeakMethod(method) if ismethod(method) else lambda: method
    )  # a function is ours, from an adapter inside

    def called() -> None:
        alive = weak()
        try:
            if alive is not None:
                alive()
        finally:
            held.release()

    return called


# What urllib3 sends again ------------------------------------------------------------------------------------------------------


class Attempt:
    """A request on its way through an adapter, with the permits of what is being sent."""

    __slots__ = ("_calls", "_request", "held")

    def __init__(self, calls: Calls[PreparedRequest], request: PreparedRequest) -> None:
        self._calls = calls
        self._request = request
        self.held = calls.enter_sync(request)

    def over(self) -> None:
        """What was sent is answered."""
        self.held.release()
        self.held = Held()

    def again(self) -> None:
        self.held = self._calls.enter_sync(self._request)

    @contextmanager
    def under_way(self) -> Iterator[Attempt]:
        """While this thread sends it; one adapter inside of another has the same request."""
        others = tuple(attempt for attempt in UNDER_WAY.get() if attempt._request is self._request)
        before = UNDER_WAY.set((*others, self))
        try:
            yield self
        except BaseException as error:
            self.held.failed(error)
            raise
        finally:
            UNDER_WAY.reset(before)


UNDER_WAY: ContextVar[tuple[Attempt, ...]] = ContextVar(
    "headgate.http.requests.UNDER_WAY", default=()
)


def count_retries(adapter: BaseAdapter) -> None:
    """Have what the adapter sends again pass the limiters again."""
    if isinstance(adapter, HTTPAdapter):
        adapter.max_retries = counted(adapter.max_retries)


def counted(retry: Retry) -> Retry:
    if getattr(retry, "passes_limiters", False):
        return retry
    like: Retry = object.__new__(counting(type(retry)))  # whatever its constructor wants
    like.__dict__.update(retry.__dict__)
    return like


def counting(kind: type[Retry]) -> type[Retry]:
    """A `Retry` like `kind`. urllib3 makes a new one for each attempt, of the same class and with nothing else of ours."""

    class Counting(kind):  # type: ignore[misc, valid-type]  # the user's own class of them
        passes_limiters = True

        def increment(self, *arguments: Any, **said: Any) -> Retry:
            """Called for each attempt that will not do, also for the last, of which urllib3 makes an error."""
            response: BaseHTTPResponse | None = said.get("response")
            if response is not None:
                for attempt in UNDER_WAY.get():
                    attempt.held.answered(response.status, response.headers)
            rest: Retry = super().increment(*arguments, **said)
            return rest

        def sleep(self, response: BaseHTTPResponse | None = None) -> None:
            """Called between two attempts."""
            attempts = UNDER_WAY.get()
            for attempt in attempts:
                attempt.over()
            super().sleep(response)
            for attempt in attempts:
                attempt.again()

    return Counting
