"""aiohttp: a client middleware that passes limiters first, `limit`, and the classic `RateLimiter`.

A call ends when its response gives the connection back.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from headgate.missing_extra import extra

with extra("aiohttp"):
    from aiohttp import (
        ClientHandlerType,
        ClientMiddlewareType,
        ClientRequest,
        ClientResponse,
        ClientSession,
        ClientWebSocketResponse,
    )
    from aiohttp.typedefs import StrOrURL

    from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
    from headgate.http.limiter_chain import (
        CallPermits,
        Exempt,
        Key,
        LimiterChain,
        Place,
        give_back,
    )
    from headgate.http.point_metering import PointChain

from headgate.limiter import Limiter
from headgate.limits import Rate
from headgate.permit import Permit
from headgate.stores.memory.store import MemoryStore
from headgate.stores.registry import StoreLike
from headgate.validation import positive_int, show

if TYPE_CHECKING:
    from aiohttp.connector import Connection

__all__ = ["RateLimiter", "limit", "middleware"]

T = TypeVar("T")


def middleware(
    *limiters: Limiter,
    key: Key[ClientRequest] = None,
    exempt: Exempt[ClientRequest] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
) -> ClientMiddlewareType:
    """Return a middleware that limits the requests which pass it.

        ClientSession(middlewares=(middleware(Limiter("api", "100/minute")),))

    Each request that goes out acquires from each limiter, in the order named. Each redirect counts,
    and each retry by aiohttp or by a middleware before this one. So name this one last. The permits
    are held until the body has been read or the response closed. A websocket holds them until it is
    closed. They go back on errors. The wait counts towards `ClientTimeout(total=...)`, 300 s if
    unsaid, and towards no other time-out. For long waits, write `ClientTimeout(total=None,
    sock_connect=..., sock_read=...)`. `middlewares=` of a single request replaces those of the
    session, also this one.
    The other arguments and all errors: as in `headgate.http.httpx.limit`.
    """
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    return Limiting(PointChain("middleware", limiters, key, exempt, find_place, options))


def limit(
    session: ClientSession,
    *limiters: Limiter,
    key: Key[ClientRequest] = None,
    exempt: Exempt[ClientRequest] = (),
    feedback: bool = True,
    adopt: Adopt = False,
    heed_at_most: float = HEED_AT_MOST,
    on_answer: OnAnswer | None = None,
) -> ClientSession:
    """Limit a session in place, and return it: it keeps its connector, TLS, cookies and time-outs.

        session = limit(aiohttp.ClientSession(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `middleware`. Called again, it adds limiters behind the earlier ones.
    """
    options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
    chain = PointChain[ClientRequest]("limit", limiters, key, exempt, find_place, options)
    before = check_session("limit", session)._middlewares
    chain.check_beside(each.chain for each in before if isinstance(each, Limiting))
    add_middleware(session, Limiting(chain))
    return session


class Limiting:
    """The middleware of one chain."""

    def __init__(self, chain: LimiterChain[ClientRequest]) -> None:
        self.chain = chain

    async def __call__(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        permits = await self.chain.enter(request)
        before = request.response  # of an earlier attempt
        try:
            response = await handler(request)
        except BaseException:
            # aiohttp makes the response when it has written the request.
            if request.response is before:
                permits.cancel()
            else:
                permits.release()
            raise
        permits.apply_feedback(response.status, response.headers)
        if response.connection is None:  # the body has been read, or there is none
            permits.release()
        elif permits.needs_end():
            release_with(response.connection, permits)
        return response


class ConnectionPermits:
    """The permits of the calls on one connection. When the connection is lost, they are released.

    aiohttp's own callback comes later: when the caller reads the response on, closes or drops it.
    For the server, the call has ended with the connection.
    """

    def __init__(self, closed: Future[None]) -> None:
        self.permits: set[CallPermits] = set()
        closed.add_done_callback(self._release_all)

    def _release_all(self, closed: Future[None]) -> None:
        if not closed.cancelled():
            closed.exception()  # otherwise asyncio would log it as never retrieved
        for permits in self.permits.copy():
            permits.release()


# By the protocols of connections, which serve one request after the other.
BY_PROTOCOL: WeakKeyDictionary[object, ConnectionPermits] = WeakKeyDictionary()


def release_with(connection: Connection, permits: CallPermits) -> None:
    """Release `permits` when the connection is given back, closed or lost."""
    closed = None if connection.protocol is None else connection.protocol.closed
    if closed is None:  # it is lost already
        permits.release()
        return
    on_connection = BY_PROTOCOL.get(connection.protocol)
    if on_connection is None:
        on_connection = BY_PROTOCOL[connection.protocol] = ConnectionPermits(closed)
    on_connection.permits.add(permits)

    def end() -> None:
        on_connection.permits.discard(permits)
        permits.release()

    connection.add_callback(end)


def find_place(request: ClientRequest) -> Place:
    return Place((request.url.host or "").lower(), request.url.path)


def add_middleware(session: ClientSession, last: ClientMiddlewareType) -> None:
    session._middlewares = (*session._middlewares, last)


def check_session(call: str, session: object) -> ClientSession:
    if not isinstance(session, ClientSession):
        raise TypeError(f"{call}({show(session)}): a session is an aiohttp.ClientSession.")
    return session


# The classic wrapper ---------------------------------------------------------------------------


class RateLimiter:
    """The classic wrapper around a session: at most `rate` requests a second, with bursts.

        client = RateLimiter(session, rate=10, max_tokens=10)
        async with client.get(...) as resp: ...

    A token bucket that starts full. In order of arrival, each request that goes out takes a token:
    also redirects, requests that aiohttp sends again, and the opening of a websocket. The wait
    for the first token is no part of the session's time-outs; the wait for a redirect's token
    counts towards `ClientTimeout(total=...)`. Requests of the session itself are not limited.
    `rate`: tokens a second, an int or a float above 0; `max_tokens`: the capacity, an int from 1.
    `name`, `store`: where the bucket is, as in `Limiter`; all objects of one name share it. Unsaid,
    this object has a bucket of its own.
    """

    def __init__(
        self,
        session: ClientSession,
        rate: float = 10,
        max_tokens: int = 10,
        *,
        name: str | None = None,
        store: StoreLike = None,
    ) -> None:
        self.session = check_session("RateLimiter", session)
        bucket = make_bucket(rate, positive_int("RateLimiter", "max_tokens", max_tokens))
        if name is None and store is not None:
            raise TypeError(
                "RateLimiter(store=...) has no name: name what the bucket belongs to, for all that "
                "share it."
            )
        self._limiter = (
            Limiter("RateLimiter", bucket, store=MemoryStore())
            if name is None
            else Limiter(name, bucket, store=store)
        )
        if limit_by_call not in session._middlewares:
            add_middleware(session, limit_by_call)

    def request(self, method: str, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.request`, limited: await it, or enter it with `async with`."""
        if options.get("middlewares") is not None:  # they replace those of the session
            options["middlewares"] = (*options["middlewares"], limit_by_call)
        return Call(self._limiter, lambda: self.session.request(method, url, **options))

    def get(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.get`, limited."""
        return self.request("GET", url, **options)

    def options(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.options`, limited."""
        return self.request("OPTIONS", url, **options)

    def head(
        self, url: StrOrURL, *, allow_redirects: bool = False, **options: Any
    ) -> Call[ClientResponse]:
        """`session.head`, limited."""
        return self.request("HEAD", url, allow_redirects=allow_redirects, **options)

    def post(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.post`, limited."""
        return self.request("POST", url, **options)

    def put(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.put`, limited."""
        return self.request("PUT", url, **options)

    def patch(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.patch`, limited."""
        return self.request("PATCH", url, **options)

    def delete(self, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.delete`, limited."""
        return self.request("DELETE", url, **options)

    def ws_connect(self, url: StrOrURL, **options: Any) -> Call[ClientWebSocketResponse[bool]]:
        """`session.ws_connect`, limited: its opening request takes a token, its messages none."""
        return Call(self._limiter, lambda: self.session.ws_connect(url, **options))

    @property
    def closed(self) -> bool:
        """Whether the session is closed."""
        return self.session.closed

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()

    async def __aenter__(self) -> RateLimiter:
        return self

    async def __aexit__(self, *outcome: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<RateLimiter of {self.session!r}: {self._limiter!r}>"


class Call(Generic[T]):
    """A limited call of a session: await it, or enter it with `async with`, once."""

    __slots__ = ("_begin", "_first", "_limiter", "_opening")

    def __init__(self, limiter: Limiter, begin: Callable[[], Any]) -> None:
        self._limiter = limiter
        self._begin = begin

    def __await__(self) -> Generator[Any, None, T]:
        return self._run().__await__()

    async def __aenter__(self) -> T:
        return await self._run(entered=True)

    async def __aexit__(self, *outcome: object) -> None:
        await self._opening.__aexit__(*outcome)

    async def _run(self, *, entered: bool = False) -> T:
        # The first `attempt` takes this permit.
        self._first: Permit | None = await self._limiter.acquire()
        before = CURRENT_CALL.set(self)
        try:
            self._opening = self._begin()
            result: T = await (self._opening.__aenter__() if entered else self._opening)
            return result
        finally:
            CURRENT_CALL.reset(before)
            if self._first is not None:  # nothing was sent
                give_back([self._first])

    async def attempt(self, request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        """Take a permit for one attempt; the first attempt has one already.

        A permit of a rate holds nothing, so it needs no release.
        """
        first, self._first = self._first, None
        permit = first or await self._limiter.acquire()
        before = request.response
        try:
            return await handler(request)
        except BaseException:
            if request.response is before:  # it was not sent
                give_back([permit])
            raise


# The call that sends in this context. None: the request is not a wrapper's.
CURRENT_CALL: ContextVar[Call[Any] | None] = ContextVar(
    "headgate.http.aiohttp.CURRENT_CALL", default=None
)


async def limit_by_call(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """The middleware in the session of every wrapper: it limits only requests of wrappers."""
    call = CURRENT_CALL.get()
    return await (handler(request) if call is None else call.attempt(request, handler))


def make_bucket(rate: object, max_tokens: int) -> Rate:
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(
            f"RateLimiter(rate={show(rate)}): a rate is an int or a float, tokens a second; "
            "write a number such as 10."
        )
    if not 0.000_001 <= rate <= 1_000_000:
        raise ValueError(
            f"RateLimiter(rate={show(rate)}): a rate is from 0.000001 to 1000000 tokens a second."
        )
    return Rate(rate, per=1, capacity=max_tokens)
