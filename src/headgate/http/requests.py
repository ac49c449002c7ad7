"""requests: an adapter that passes limiters first, and `limit`, which puts it into a session.

A call ends when urllib3 gives the connection back. urllib3 retries within one call of an adapter,
and each of its tries passes the limiters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import ismethod
from ssl import SSLCertVerificationError
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit
from weakref import WeakMethod

from headgate.missing_extra import extra

with extra("requests"):
    from requests import PreparedRequest, Response, Session
    from requests.adapters import BaseAdapter, HTTPAdapter
    from requests.exceptions import ConnectTimeout, InvalidSchema, InvalidURL
    from urllib3.exceptions import ConnectTimeoutError, ProxyError, SSLError
    from urllib3.util.retry import Retry

    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.limiter_chain import (
        CallPermits,
        Exempt,
        Key,
        LimiterChain,
        Place,
        mark_unsent,
        reading_body,
    )
    from headgate.http.point_metering import PointChain

from headgate.limiter import Limiter
from headgate.validation import show

if TYPE_CHECKING:
    from urllib3.response import BaseHTTPResponse

__all__ = ["Adapter", "limit"]


class Adapter(BaseAdapter):
    """Limits each request that it sends: `session.mount("https://", Adapter(limiter))`.

    `inner`: the adapter that sends; unsaid, an `HTTPAdapter()`. Its `max_retries` is replaced by
    one that retries in the same way and passes the limiters. The other arguments are those of
    `limit`.
    """

    def __init__(
        self,
        *limiters: Limiter,
        inner: BaseAdapter | None = None,
        key: Key[PreparedRequest] = None,
        exempt: Exempt[PreparedRequest] = (),
        feedback: bool = True,
        adopt: Adopt = False,
        heed_at_most: float = HEED_AT_MOST,
        on_answer: OnAnswer | None = None,
    ) -> None:
        options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
        chain = PointChain[PreparedRequest]("Adapter", limiters, key, exempt, find_place, options)
        chain.check_beside(chains_in(inner))
        self._wrap(HTTPAdapter() if inner is None else inner, chain)

    @classmethod
    def around(cls, inner: BaseAdapter, chain: LimiterChain[PreparedRequest]) -> Adapter:
        adapter = cls.__new__(cls)
        adapter._wrap(inner, chain)
        return adapter

    def _wrap(self, inner: BaseAdapter, chain: LimiterChain[PreparedRequest]) -> None:
        super().__init__()
        self.inner = inner
        self.chain = chain
        if isinstance(inner, HTTPAdapter):
            inner.max_retries = limit_retries(inner.max_retries)

    def send(
        self, request: PreparedRequest, stream: bool = False, *arguments: Any, **options: Any
    ) -> Response:
        """Send one request, with urllib3's retries. The session calls this."""
        with Attempt(self.chain, request).in_progress() as attempt:
            response = self.inner.send(request, stream, *arguments, **options)
            if is_cached(response, self.inner):
                attempt.permits = attempt.permits.ignore_response(sent=attempt.sent)
        body = read_refusal(response, attempt.permits, stream)
        attempt.permits.apply_feedback(response.status_code, response.headers, body)
        hold(response.raw, attempt.permits)
        sender: Any = self
        response.connection = sender  # by which HTTPDigestAuth and others send again
        return response

    @property
    def max_retries(self) -> Any:
        """The retries of the inner adapter, which may be set at any time."""
        inner: Any = self.inner
        return inner.max_retries

    @max_retries.setter
    def max_retries(self, retries: Any) -> None:
        inner: Any = self.inner
        inner.max_retries = limit_retries(Retry.from_int(retries))

    def close(self) -> None:
        """Close the inner adapter."""
        self.inner.close()


def limit(
    session: Session,
    *limiters: Limiter,
    key: Key[PreparedRequest] = None,
    exempt: Exempt[PreparedRequest] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
) -> Session:
    """Limit a session in place, and return it: its adapters keep their pools, retries and TLS.

        session = limit(requests.Session(), Limiter("api", "100/minute", Concurrency(5)))

    Each request that goes out acquires from each limiter, in the order named: each redirect, and
    each retry of a urllib3 `Retry`. No permit is held while it sleeps. The permits are held
    until the body has been read or closed, and go back on errors. The wait counts in
    `response.elapsed`, and not towards the `timeout`. Called again, it adds limiters: a request
    passes the newest ones first. An adapter that is mounted afterwards is not limited.
    The other arguments and all errors: as in `headgate.http.httpx.limit`.
    """
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = PointChain[PreparedRequest]("limit", limiters, key, exempt, find_place, options)
    if not isinstance(session, Session):
        raise TypeError(f"limit({show(session)}): a session is a requests.Session.")
    for inner in session.adapters.values():
        chain.check_beside(chains_in(inner))
    for prefix, inner in session.adapters.items():
        session.adapters[prefix] = Adapter.around(inner, chain)
    return session


def is_cached(response: Response, adapter: BaseAdapter) -> bool:
    """Return whether a response comes from the cache of its adapter: CacheControl's or hishel's.

    hishel's adapter says so by a header, which any server could send to other adapters.
    """
    while isinstance(adapter, Adapter):
        adapter = adapter.inner
    kinds = {kind.__module__.partition(".")[0] for kind in type(adapter).__mro__}
    is_hishel = "hishel" in kinds and response.headers.get("X-Hishel-From-Cache") == "true"
    return is_hishel or bool(vars(response).get("from_cache"))


def chains_in(adapter: BaseAdapter | None) -> Iterator[LimiterChain[PreparedRequest]]:
    """The limiters that a request of `adapter` passes, down to the first adapter not ours."""
    while isinstance(adapter, Adapter):
        yield adapter.chain
        adapter = adapter.inner


def find_place(request: PreparedRequest) -> Place:
    url = urlsplit(request.url or "")
    return Place(url.hostname or "", unquote(url.path))


def read_refusal(response: Response, permits: CallPermits, stream: bool) -> bytes:
    """Read the body of a refusal, as the session does next. With `stream`, the user reads it."""
    if stream or not permits.needs_body(response):
        return b""
    try:
        with reading_body(permits, response):
            return response.content or b""
    except BaseException:
        permits.apply_feedback(response.status_code, response.headers)
        permits.release()
        raise


# When a call is over ---------------------------------------------------------------------------


def hold(raw: Any, permits: CallPermits) -> None:
    """Keep the permits until urllib3 lets go of the connection.

    It does so at the end of the body, on errors, and when the response is closed.
    """
    if getattr(raw, "connection", None) is None:  # the body is complete, or there is none
        permits.release()
    elif permits.needs_end():
        for name in ("release_conn", "close"):
            setattr(raw, name, then_release(getattr(raw, name), permits))


def then_release(method: Callable[[], None], permits: CallPermits) -> Callable[[], None]:
    """Return a function that calls `method` and releases the permits.

    It refers to the object of `method` weakly, so a dropped response goes at once, and its permits
    with it. If `method` is a plain function, an inner adapter has made it here. It refers to the
    object weakly, too.
    """
    weak = WeakMethod(method) if ismethod(method) else lambda: method

    def call_and_release() -> None:
        alive = weak()
        try:
            if alive is not None:
                alive()
        finally:
            permits.release()

    return call_and_release


# The retries of urllib3 ------------------------------------------------------------------------


class Attempt:
    """A request that an adapter sends, with the permits of the present try.

    `sent`: urllib3 has sent the present try. It has not when a cache answers.
    """

    __slots__ = ("_chain", "_request", "permits", "sent")

    def __init__(self, chain: LimiterChain[PreparedRequest], request: PreparedRequest) -> None:
        self._chain = chain
        self._request = request
        self.begin_try()

    def begin_try(self) -> None:
        self.sent = False
        self.permits = self._chain.enter_sync(self._request)

    def end_try(self) -> None:
        self.permits.release()
        self.permits = CallPermits()

    @contextmanager
    def in_progress(self) -> Iterator[Attempt]:
        # If an adapter is around this one, it has an attempt at the same request, and each retry
        # concerns both. Attempts at other requests are left out: this one may be sent while they
        # are in progress.
        others = tuple(each for each in IN_PROGRESS.get() if each._request is self._request)
        before = IN_PROGRESS.set((*others, self))
        try:
            yield self
        except BaseException as error:
            if isinstance(error, UNSENT):
                mark_unsent(error)
            # `error` and the permits are those of the last try, and the earlier ones have ended. So
            # the mark on `error` decides alone.
            self.permits.fail(error, sent=False)
            raise
        finally:
            IN_PROGRESS.reset(before)


# Errors of requests: nothing was sent, whichever adapter raises them. `came_before_sending` reads
# those of urllib3.
UNSENT = (ConnectTimeout, InvalidSchema, InvalidURL)


def came_before_sending(error: Exception | None) -> bool:
    """Return whether a try ended before the request was sent, from an error of urllib3.

    With a ProxyError, the proxy was not reached. A certificate is checked before the sending.
    """
    if isinstance(error, SSLError):
        return bool(error.args) and isinstance(error.args[0], SSLCertVerificationError)
    return isinstance(error, ConnectTimeoutError | ProxyError)


IN_PROGRESS: ContextVar[tuple[Attempt, ...]] = ContextVar(
    "headgate.http.requests.IN_PROGRESS", default=()
)


def limit_retries(retry: Retry) -> Retry:
    if getattr(retry, "passes_limiters", False):
        return retry
    # A constructor of the user's class may need arguments that are unknown here.
    copy: Retry = object.__new__(limit_retry_class(type(retry)))
    copy.__dict__.update(retry.__dict__)
    return copy


def limit_retry_class(kind: type[Retry]) -> type[Retry]:
    # urllib3 makes a new object of the class for each retry, and copies no attribute of ours.

    class LimitedRetry(kind):  # type: ignore[misc, valid-type]  # the user's class
        passes_limiters = True

        def __reduce__(self) -> tuple[Any, ...]:
            plain: Retry = object.__new__(kind)  # pickle cannot find a function's class
            plain.__dict__.update(self.__dict__)
            return limit_retries, (plain,)

        def is_retry(self, *arguments: Any, **options: Any) -> bool:
            """Note that a response has come. urllib3 calls this for each."""
            for attempt in IN_PROGRESS.get():
                attempt.sent = True
            return bool(super().is_retry(*arguments, **options))

        def increment(self, *arguments: Any, **options: Any) -> Retry:
            """Apply the response, or refund a try that was not sent.

            urllib3 calls this for each failed try, the last included.
            """
            response: BaseHTTPResponse | None = options.get("response")
            unsent = came_before_sending(options.get("error"))
            for attempt in IN_PROGRESS.get():
                if response is not None:
                    attempt.permits.apply_feedback(response.status, response.headers)
                if unsent:
                    attempt.permits.cancel()
            rest: Retry = super().increment(*arguments, **options)
            return rest

        def sleep(self, response: BaseHTTPResponse | None = None) -> None:
            """Hold no permits while it sleeps. urllib3 calls this between two tries."""
            attempts = IN_PROGRESS.get()
            for attempt in attempts:
                attempt.end_try()
            super().sleep(response)
            for attempt in attempts:
                attempt.begin_try()

    return LimitedRetry
