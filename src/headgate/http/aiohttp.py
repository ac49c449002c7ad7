"""aiohttp: a client middleware that passes limiters first, `limit`, which puts it into a session, and the classic `RateLimiter`.

Here lives what is aiohttp's own: when one of its calls is over. A call lasts as long as it has its connection.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from headgate.extras import extra

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

    from headgate.http.feedback import heeding
    from headgate.http.limiter_chain import Calls, Exempt, Held, Key, Place, undo

from headgate.limiter import Limiter
from headgate.limits import Rate
from headgate.permit import Permit
from headgate.stores.memory.queue import MemoryStore
from headgate.stores.registry import StoreLike
from headgate.validation import positive_int, show

__all__ = ["RateLimiter", "limit", "middleware"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


def middleware(
    *limiters: Limiter,
    key: Key[ClientRequest] = None,
    exempt: Exempt[ClientRequest] = (),
    heed: bool = True,
    adopt: bool = False,
) -> ClientMiddlewareType:
    """A middleware that limits what comes by: `ClientSession(middlewares=(middleware(Limiter("api", "100/minute")),))`.

    One acquire of each limiter, in the order named, for each request that goes out: for redirects, and for what aiohttp or a
    middleware before this one sends again, too; so name it last. What is held is held until the body has been read or the
    response closed, of a websocket until it is closed, and comes back on errors.
    The wait counts towards `ClientTimeout(total=...)`, 300 s if unsaid, and towards no other time-out: where it may take long,
    write `ClientTimeout(total=None, sock_connect=..., sock_read=...)`. `middlewares=` of a single request replaces those of
    the session, this one included.
    `key`: "host", or a function of the request that returns a text: a state for each host, or for each such text.
    `exempt`: what is not limited: hosts ("localhost", "*.host"), paths with all below them ("/health"), both ("host/health"),
    or functions of the request.
    `heed`: what the server answers holds all who use these limiters: a refusal for a time (429 or 503 with Retry-After, and its
    like) pauses them, less left than they reckon with drains them, see docs/http.md. False: nothing is made of answers.
    `adopt`: a limit that the server tells takes the place of the one that counts requests, as by `Limiter.update`.

    Raises ValueError or TypeError for what can never work; a request raises what `Limiter.acquire` does, before it is sent.
    """
    return of(Calls("middleware", limiters, key, exempt, place, heeding("middleware", heed, adopt)))


def limit(
    session: ClientSession,
    *limiters: Limiter,
    key: Key[ClientRequest] = None,
    exempt: Exempt[ClientRequest] = (),
    heed: bool = True,
    adopt: bool = False,
) -> ClientSession:
    """Limit a session in place, and return it: its connector, proxies, TLS, cookies and time-outs stay as they are.

        session = limit(aiohttp.ClientSession(), Limiter("api", "100/minute", Concurrency(5)))

    The arguments are those of `middleware`. Called again, it adds limiters: those that were added last are passed last.
    """
    limited = of(Calls("limit", limiters, key, exempt, place, heeding("limit", heed, adopt)))
    add(check_session("limit", session), limited)
    return session


def of(calls: Calls[ClientRequest]) -> ClientMiddlewareType:
    async def limited(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
        held = await calls.enter(request)
        try:
            response = await handler(request)
        except BaseException as error:
            held.failed(error)
            raise
        held.answered(response.status, response.headers)
        hold(response, held)
        return response

    return limited


def hold(response: ClientResponse, held: Held) -> None:
    """Keep the permits as long as the response has its connection: without one it has been read, or was never to be."""
    if response.connection is None:
        held.release()
    elif held:
        response.connection.add_callback(held.release)


def place(request: ClientRequest) -> Place:
    return Place((request.url.host or "").lower(), request.url.path)


def add(session: ClientSession, last: ClientMiddlewareType) -> None:
    session._middlewares = (*session._middlewares, last)


def check_session(call: str, session: object) -> ClientSession:
    if not isinstance(session, ClientSession):
        raise TypeError(f"{call}({show(session)}): a session is an aiohttp.ClientSession.")
    return session


# The classic wrapper -----------------------------------------------------------------------------------------------------------


class RateLimiter:
    """The classic wrapper around a session: at most `rate` requests a second, and bursts of `max_tokens`.

        client = RateLimiter(session, rate=10, max_tokens=10)
        async with client.get(...) as resp: ...

    A token bucket that starts full. Each request that goes out takes a token, in order of arrival: redirects, what aiohttp sends
    again, and the request that opens a websocket. The wait for the first is no part of the session's time-outs; what waits
    for a redirect's token counts towards `ClientTimeout(total=...)`. What is sent by the session itself is not limited.
    `rate`: tokens a second, an int or a float above 0; `max_tokens`: what the bucket holds, an int from 1.
    `name`, `store`: where the bucket is, as of a `Limiter`; all of one name share it. Unsaid, this object has one of its own.
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
        bucket = bucket_of(rate, positive_int("RateLimiter", "max_tokens", max_tokens))
        if name is None and store is not None:
            raise TypeError(
                "RateLimiter(store=...) has no name: name what the bucket belongs to, for all who share it."
            )
        self._limiter = (
            Limiter("RateLimiter", bucket, store=MemoryStore())
            if name is None
            else Limiter(name, bucket, store=store)
        )
        if by_turn not in session._middlewares:
            add(session, by_turn)

    def request(self, method: str, url: StrOrURL, **options: Any) -> Call[ClientResponse]:
        """`session.request`, limited: to be awaited, or entered with `async with`."""
        if "middlewares" in options:  # they replace those of the session
            options["middlewares"] = (*(options["middlewares"] or ()), by_turn)
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
        """`session.ws_connect`, limited: the request that opens the websocket takes a token, its messages take none."""
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


class Turn:
    """A wrapper's call on its way: its first attempt has its permit already, each later one takes another."""

    __slots__ = ("_first", "_limiter")

    def __init__(self, limiter: Limiter, first: Permit) -> None:
        self._limiter = limiter
        self._first: Permit | None = first

    async def take(self) -> None:
        """A permit for one attempt. A bucket's is used up when it is taken, and nothing has to be released."""
        first, self._first = self._first, None
        if first is None:
            await self._limiter.acquire()

    def end(self) -> None:
        """Nothing else will be sent: a permit that was not used is given back."""
        if self._first is not None:
            undo([self._first])


TURN: ContextVar[Turn | None] = ContextVar("headgate.http.aiohttp.TURN", default=None)


async def by_turn(request: ClientRequest, handler: ClientHandlerType) -> ClientResponse:
    """In the session of every wrapper: it limits what a wrapper sends, and lets pass what is sent by the session itself."""
    turn = TURN.get()
    if turn is not None:
        await turn.take()
    return await handler(request)


class Opening(Protocol[T_co]):
    """What the methods of a session return."""

    def __await__(self) -> Generator[Any, None, T_co]: ...
    async def __aenter__(self) -> T_co: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Call(Generic[T]):
    """What the methods of a session return, limited: to be awaited, or entered with `async with`, once."""

    __slots__ = ("_begin", "_limiter", "_opening")

    def __init__(self, limiter: Limiter, begin: Callable[[], Opening[T]]) -> None:
        self._limiter = limiter
        self._begin = begin

    def __await__(self) -> Generator[Any, None, T]:
        return self._in_turn().__await__()

    async def __aenter__(self) -> T:
        return await self._in_turn(entered=True)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._opening.__aexit__(kind, error, trace)

    async def _in_turn(self, *, entered: bool = False) -> T:
        turn = Turn(self._limiter, await self._limiter.acquire())
        before = TURN.set(turn)
        try:
            self._opening = self._begin()
            return await (self._opening.__aenter__() if entered else self._opening)
        finally:
            TURN.reset(before)
            turn.end()


def bucket_of(rate: object, max_tokens: int) -> Rate:
    """`rate` tokens a second, into a bucket of `max_tokens`."""
    if isinstance(rate, bool) or not isinstance(rate, int | float):
        raise TypeError(
            f"RateLimiter(rate={show(rate)}): a rate is an int or a float, tokens a second; write a number such as 10."
        )
    if not 0.000_001 <= rate <= 1_000_000:
        raise ValueError(
            f"RateLimiter(rate={show(rate)}): a rate is from 0.000001 to 1000000 tokens a second."
        )
    return Rate(rate, per=1, capacity=max_tokens)
