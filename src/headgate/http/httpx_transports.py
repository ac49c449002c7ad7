"""The common part of httpx and httpx2: limited transports, and bodies that hold permits.

Both clients have the same interface with different types. This module imports neither: the module
of each client, httpx.py and httpx2.py, adds the types that its client checks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from headgate.http.error_bodies import LONGEST_READ, MOST_READ, decode
from headgate.http.feedback import choose_feedback
from headgate.http.limiter_chain import CallPermits, Exempt, Key, LimiterChain, Place
from headgate.limiter import Limiter


class Address(Protocol):
    """The URL of a request."""

    @property
    def host(self) -> str: ...
    @property
    def path(self) -> str: ...


class Request(Protocol):
    """A request of either client."""

    @property
    def url(self) -> Any: ...


class Response(Protocol):
    """A response. Its body is `stream`, which ends with `close` or `aclose`."""

    stream: Any
    is_closed: bool  # its body is complete, or will not be read
    status_code: int
    headers: Any


Req = TypeVar("Req", bound=Request)
Res = TypeVar("Res", bound=Response)
Inner = TypeVar("Inner")  # the client's type of a transport


def find_place(request: Request) -> Place:
    url: Address = request.url
    return Place(url.host.lower(), url.path)


class LimitedTransport(Generic[Req, Inner]):
    """The common part of both transports: how they are made."""

    _body: type[Any]  # the client's type of a body
    _default: type[Any]  # the client's own transport

    def __init__(
        self,
        *limiters: Limiter,
        inner: Inner | None = None,
        key: Key[Req] = None,
        exempt: Exempt[Req] = (),
        feedback: bool = True,
        adopt: bool = False,
    ) -> None:
        call = type(self).__name__
        apply = choose_feedback(call, feedback, adopt)
        self._chain: LimiterChain[Req] = LimiterChain(
            call, limiters, key, exempt, find_place, apply
        )
        self._inner: Any = self._default() if inner is None else inner

    @classmethod
    def around(cls, inner: Any, chain: LimiterChain[Any]) -> Self:
        """Return a transport that passes `chain` before it sends by `inner`."""
        transport = cls.__new__(cls)
        transport._chain, transport._inner = chain, inner
        return transport

    def _hold(self, response: Any, permits: CallPermits, body: bytes) -> None:
        """Apply the response to the limiters, and keep the permits while it has a body to read."""
        permits.apply_feedback(response.status_code, response.headers, body)
        permits.watch_body(response)
        if response.is_closed:  # as a mock's response is: the client reads and closes nothing
            permits.release()
        # The client accepts only its own stream types, so a StartedBody is always wrapped.
        elif permits or isinstance(response.stream, StartedBody | AsyncStartedBody):
            response.stream = self._body(response.stream, permits)


class Transport(LimitedTransport[Req, Inner], Generic[Req, Res, Inner]):
    """Wraps a transport: each request that goes out gets permits first."""

    def handle_request(self, request: Req) -> Res:
        """Send one attempt. The client calls this."""
        permits = self._chain.enter_sync(request)
        body = b""
        try:
            response: Res = self._inner.handle_request(request)
            if permits.needs_body(response.status_code, response.headers):
                body = read_ahead(response)
        except BaseException as error:
            permits.fail(error)
            raise
        self._hold(response, permits, body)
        return response

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        self._inner.__exit__(kind, error, trace)


class AsyncTransport(LimitedTransport[Req, Inner], Generic[Req, Res, Inner]):
    """`Transport` for coroutines."""

    async def handle_async_request(self, request: Req) -> Res:
        """Send one attempt. The client calls this."""
        permits = await self._chain.enter(request)
        body = b""
        try:
            response: Res = await self._inner.handle_async_request(request)
            if permits.needs_body(response.status_code, response.headers):
                body = await aread_ahead(response)
        except BaseException as error:
            permits.fail(error)
            raise
        self._hold(response, permits, body)
        return response

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)


def wrap_transports(
    client: Any, kind: type[LimitedTransport[Any, Any]], chain: LimiterChain[Any]
) -> None:
    """Limit a client in place: its transport and those of its mounts, proxies included."""
    client._transport = kind.around(client._transport, chain)
    client._mounts = {
        pattern: inner and kind.around(inner, chain) for pattern, inner in client._mounts.items()
    }


# Bodies that hold permits ----------------------------------------------------------------------


class Body:
    """A response's stream. It holds the permits until it ends, fails or is closed."""

    def __init__(self, inner: Any, permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    def __iter__(self) -> Iterator[bytes]:
        return Chunks(iter(self._inner), self._permits)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._permits.release()


class AsyncBody:
    """`Body` for coroutines."""

    def __init__(self, inner: Any, permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    def __aiter__(self) -> AsyncIterator[bytes]:
        return AsyncChunks(aiter(self._inner), self._permits)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._permits.release()


class Chunks(Iterator[bytes]):
    """The chunks of a body. A generator could not tell a pause in the reading from its end."""

    def __init__(self, inner: Iterator[bytes], permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    def __next__(self) -> bytes:
        try:
            chunk = next(self._inner)
        except BaseException:  # StopIteration, the end of the body, is one of them
            self._permits.release()
            raise
        self._permits.read_chunk(chunk)
        return chunk


class AsyncChunks(AsyncIterator[bytes]):
    """`Chunks` for coroutines."""

    def __init__(self, inner: AsyncIterator[bytes], permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    async def __anext__(self) -> bytes:
        try:
            chunk = await anext(self._inner)
        except BaseException:  # StopAsyncIteration, the end of the body, is one of them
            self._permits.release()
            raise
        self._permits.read_chunk(chunk)
        return chunk


# Refusals that are read ahead ------------------------------------------------------------------


def read_ahead(response: Response) -> bytes:
    """Read the body of a refusal before the caller does. The caller still gets all of it.

    Code that sends a refused request again may never read its body.
    """
    if response.is_closed:
        return content_of(response)
    response.stream = started = StartedBody(response.stream)
    return decode(response.headers, started.read_ahead())


async def aread_ahead(response: Response) -> bytes:
    """`read_ahead` for coroutines."""
    if response.is_closed:
        return content_of(response)
    response.stream = started = AsyncStartedBody(response.stream)
    return decode(response.headers, await started.read_ahead())


def content_of(response: Any) -> bytes:
    try:
        return bytes(response.content)
    except RuntimeError:  # it was closed before it was read
        return b""


class StartedBody(Iterator[bytes]):
    """A body whose first bytes were read ahead.

    An error from then is raised at the same place later.

    If the reading is interrupted, the caller never gets the response: then the body is closed here.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: Iterator[bytes] = iter(inner)
        self._first: deque[bytes] = deque()
        self._failure: Exception | None = None

    def read_ahead(self) -> bytes:
        """Read up to `MOST_READ` bytes, for up to `LONGEST_READ` seconds."""
        read, until = bytearray(), monotonic() + LONGEST_READ
        try:
            while (
                len(read) < MOST_READ
                and monotonic() < until
                and (chunk := next(self._rest, None)) is not None
            ):
                self._first.append(chunk)
                read += chunk
        except Exception as failure:
            self._failure = failure
        except BaseException:
            self.close()
            raise
        return bytes(read)

    def __next__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        return next(self._rest)

    def close(self) -> None:
        self._inner.close()


class AsyncStartedBody(AsyncIterator[bytes]):
    """`StartedBody` for coroutines."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: AsyncIterator[bytes] = aiter(inner)
        self._first: deque[bytes] = deque()
        self._failure: Exception | None = None

    async def read_ahead(self) -> bytes:
        """Read up to `MOST_READ` bytes, for up to `LONGEST_READ` seconds."""
        read, until = bytearray(), monotonic() + LONGEST_READ
        try:
            while (
                len(read) < MOST_READ
                and monotonic() < until
                and (chunk := await anext(self._rest, None)) is not None
            ):
                self._first.append(chunk)
                read += chunk
        except Exception as failure:
            self._failure = failure
        except BaseException:
            await self.aclose()
            raise
        return bytes(read)

    async def __anext__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        return await anext(self._rest)

    async def aclose(self) -> None:
        await self._inner.aclose()
