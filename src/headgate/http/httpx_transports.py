"""The common part of httpx and httpx2: limited transports, and bodies that hold permits.

Both clients have the same interface with different types. This module imports neither: the module
of each client, httpx.py and httpx2.py, adds the types that its client checks for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from copy import copy
from time import monotonic
from typing import Any, Generic, Self, TypeAlias, TypeVar

from headgate.http.error_bodies import ACCEPTED_CODINGS, LONGEST_READ, MOST_READ, decode
from headgate.http.feedback import HEED_AT_MOST, Adopt, FeedbackOptions, OnAnswer
from headgate.http.limiter_chain import (
    CallPermits,
    Exempt,
    Key,
    LimiterChain,
    Place,
    areading_body,
    mark_unsent,
    reading_body,
)
from headgate.http.point_metering import PointChain
from headgate.limiter import Limiter

Req = TypeVar("Req")
Res = TypeVar("Res")
Inner = TypeVar("Inner")  # the client's type of a transport


def find_place(request: Any) -> Place:
    return Place(request.url.host.lower(), request.url.path)


class HttpxChain(PointChain[Any]):
    def _read_body(self, request: Any) -> bytes:
        """Return the body of a request, and ask for a response that headgate can decompress."""
        request.headers["accept-encoding"] = ACCEPTED_CODINGS
        try:
            return bytes(request.content)
        except RuntimeError:  # an upload, which is sent piece by piece
            return b""


class LimitedTransport(Generic[Req, Inner]):
    _body: type[Any]  # the client's type of a body
    _default: type[Any]  # the client's own transport, which reports its steps
    _unsent: tuple[type[Exception], ...]  # errors of any transport that come before the sending

    def __init__(
        self,
        *limiters: Limiter,
        inner: Inner | None = None,
        key: Key[Req] = None,
        exempt: Exempt[Req] = (),
        feedback: bool = True,
        adopt: Adopt = False,
        heed_at_most: float = HEED_AT_MOST,
        on_answer: OnAnswer | None = None,
    ) -> None:
        options = FeedbackOptions(feedback, adopt, heed_at_most, on_answer)
        self._chain: LimiterChain[Req] = HttpxChain(
            type(self).__name__, limiters, key, exempt, find_place, options
        )
        self._chain.check_beside(chains_in(inner))
        self._inner: Any = self._default() if inner is None else inner

    @classmethod
    def around(cls, inner: Any, chain: LimiterChain[Any]) -> Self:
        transport = cls.__new__(cls)
        transport._chain, transport._inner = chain, inner
        return transport

    def _fail(self, error: BaseException, permits: CallPermits, steps: Steps) -> None:
        # If a transport reports its steps, and none of them was a sending, nothing was sent. Of any
        # other transport, only the kind of the error can say so.
        reports_steps = isinstance(self._inner, self._default)
        if not steps.sent and (reports_steps or isinstance(error, self._unsent)):
            mark_unsent(error)
        permits.fail(error, sent=steps.sent)

    def _hold(self, response: Any, permits: CallPermits, body: bytes) -> None:
        """Apply the response to the limiters, and keep the permits while it has a body to read."""
        permits.apply_feedback(response.status_code, response.headers, body)
        permits.watch_body(response)
        # The response of a mock is closed already, and so is that of a transport that reads the
        # body itself. The client will not close it again.
        if response.is_closed:
            permits.read_chunk(content_of(response))
            permits.release()
        # The client accepts only its own stream types, so a StartedBody is always wrapped.
        elif permits.needs_end() or isinstance(response.stream, StartedBody):
            response.stream = self._body(response.stream, permits)


class Transport(LimitedTransport[Req, Inner], Generic[Req, Res, Inner]):
    def handle_request(self, request: Req) -> Res:
        """Send one attempt. The client calls this."""
        permits = self._chain.enter_sync(request)
        body = b""
        with Steps(request) as steps:
            try:
                response: Res = self._inner.handle_request(request)
                if is_cached(response):
                    permits = permits.ignore_response(sent=steps.sent)
                if permits.needs_body(response):
                    with reading_body(permits, response):
                        body = read_ahead(response, permits)
            except BaseException as error:
                self._fail(error, permits, steps)
                raise
        self._hold(response, permits, body)
        return response

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def __enter__(self) -> Any:
        self._inner.__enter__()
        return self

    def __exit__(self, *outcome: Any) -> None:
        self._inner.__exit__(*outcome)


class AsyncTransport(LimitedTransport[Req, Inner], Generic[Req, Res, Inner]):
    async def handle_async_request(self, request: Req) -> Res:
        """Send one attempt. The client calls this."""
        permits = await self._chain.enter(request)
        body = b""
        with AsyncSteps(request) as steps:
            try:
                response: Res = await self._inner.handle_async_request(request)
                if is_cached(response):
                    permits = permits.ignore_response(sent=steps.sent)
                if permits.needs_body(response):
                    with areading_body(permits, response):
                        body = await aread_ahead(response, permits)
            except BaseException as error:
                self._fail(error, permits, steps)
                raise
        self._hold(response, permits, body)
        return response

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *outcome: Any) -> None:
        await self._inner.__aexit__(*outcome)


Transports: TypeAlias = Mapping[type[Any], type[LimitedTransport[Any, Any]]]  # by types of clients


def limit_client(client: Any, chain: LimiterChain[Any], transports: Transports) -> bool:
    """Limit a client in place: its transport and those of its mounts, proxies included.

    Returns False for an object that is no client of `transports`.
    """
    for kind, transport in transports.items():
        if isinstance(client, kind):
            for each in (client._transport, *client._mounts.values()):
                chain.check_beside(chains_in(each))
            client._transport = transport.around(client._transport, chain)
            client._mounts = {
                pattern: inner and transport.around(inner, chain)
                for pattern, inner in client._mounts.items()
            }
            return True
    return False


def chains_in(transport: Any) -> Iterator[LimiterChain[Any]]:
    """The limiters that a request of `transport` passes, down to the first transport not ours."""
    while isinstance(transport, LimitedTransport):
        yield transport._chain
        transport = transport._inner


def copy_client(client: Any) -> Any:
    """Return a copy of a client that uses the same connections, and can be limited alone.

    The SDKs' clients close when they are collected. This copy leaves that to the original, which it
    keeps alive: other users of the original may have calls under way.
    """
    own, kind = copy(client), type(client)
    own.__class__ = type(kind.__name__, (kind,), {"__del__": leave_open})
    own.headers = client.headers  # the setter makes a copy
    own._original = client
    return own


def leave_open(client: Any) -> None:
    """Close nothing."""


# What was sent -----------------------------------------------------------------------------------


class Steps:
    """Notes whether the connection has begun to send a request: only then does it cost something.

    httpcore, under the client's own transport, calls the extension `trace` of a request at each
    step. Another transport may report none.
    """

    def __init__(self, request: Any) -> None:
        self.sent = False
        self._extensions = request.extensions
        self._outer: Any = None  # the trace of the user, or of a limiter around this one

    def __enter__(self) -> Self:
        self._outer = self._extensions.get("trace")
        self._extensions["trace"] = self.trace
        return self

    def __exit__(self, *outcome: object) -> None:
        if self._outer is None:
            self._extensions.pop("trace", None)
        else:
            self._extensions["trace"] = self._outer

    def trace(self, step: str, details: Mapping[str, Any]) -> Any:
        self._note(step, details)
        if self._outer is not None:
            self._outer(step, details)

    def _note(self, step: str, details: Mapping[str, Any]) -> None:
        # A CONNECT goes to a proxy, and the service does not see it.
        if step.endswith(".send_request_headers.started"):
            self.sent = self.sent or details["request"].method != b"CONNECT"


class AsyncSteps(Steps):
    """`Steps` for coroutines."""

    async def trace(self, step: str, details: Mapping[str, Any]) -> None:
        self._note(step, details)
        if self._outer is not None:
            await self._outer(step, details)


def is_cached(response: Any) -> bool:
    """Return whether a transport below this one has the response from its cache: that of hishel."""
    extensions = response.extensions
    caching = extensions.get("caching")
    if isinstance(caching, dict) and "from_cache" in caching:
        return bool(caching["from_cache"])
    return bool(extensions.get("hishel_from_cache") or extensions.get("from_cache"))  # before 2.0


# Bodies that hold permits ----------------------------------------------------------------------


class Body:
    """A stream, sync or async. It holds the permits until it ends, fails or is closed."""

    def __init__(self, inner: Any, permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    def __iter__(self) -> Iterator[bytes]:
        return Chunks(iter(self._inner), self._permits)

    def __aiter__(self) -> AsyncIterator[bytes]:
        return Chunks(aiter(self._inner), self._permits)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._permits.release()

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._permits.release()


class Chunks(Iterator[bytes], AsyncIterator[bytes]):
    """The chunks of a body. The end of the body releases the permits, and dropping this does not.

    A generator would release them when it is dropped, although the body may still be open.
    """

    def __init__(self, inner: Any, permits: CallPermits) -> None:
        self._inner = inner
        self._permits = permits

    def __next__(self) -> bytes:
        try:
            chunk: bytes = next(self._inner)
        except BaseException:  # StopIteration, the end of the body, is one of them
            self._permits.release()
            raise
        self._permits.read_chunk(chunk)
        return chunk

    async def __anext__(self) -> bytes:
        try:
            chunk: bytes = await anext(self._inner)
        except BaseException:  # StopAsyncIteration, the end of the body, is one of them
            self._permits.release()
            raise
        self._permits.read_chunk(chunk)
        return chunk


# Refusals that are read ahead ------------------------------------------------------------------


def read_ahead(response: Any, permits: CallPermits) -> bytes:
    """Read the body of a refusal before the caller does. The caller still gets all of it.

    headgate needs it before a pause, and a caller that sends the request again never reads it.
    """
    if response.is_closed:
        return content_of(response)
    response.stream = started = StartedBody(response.stream, iter(response.stream))
    return decode(response.headers, started.read_ahead(permits))


async def aread_ahead(response: Any, permits: CallPermits) -> bytes:
    """`read_ahead` for coroutines."""
    if response.is_closed:
        return content_of(response)
    response.stream = started = StartedBody(response.stream, aiter(response.stream))
    return decode(response.headers, await started.aread_ahead(permits))


def content_of(response: Any) -> bytes:
    try:
        return bytes(response.content)
    except RuntimeError:  # it was closed before it was read
        return b""


class StartedBody(Iterator[bytes], AsyncIterator[bytes]):
    """A body, sync or async, whose first bytes were read ahead.

    If the reading failed, the caller gets these bytes first, and then the error. After an
    interrupt, the caller never gets the response, so the body is closed here.
    """

    def __init__(self, inner: Any, rest: Any) -> None:
        self._inner = inner
        self._rest = rest
        self._first: deque[bytes] = deque()
        self._failure: Exception | None = None

    def read_ahead(self, permits: CallPermits) -> bytes:
        """Read up to `MOST_READ` bytes, for up to `LONGEST_READ` seconds.

        Stop when the headers were applied without the body.
        """
        read, until = bytearray(), monotonic() + LONGEST_READ
        try:
            while (
                len(read) < MOST_READ
                and monotonic() < until
                and not permits.is_applied
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

    async def aread_ahead(self, permits: CallPermits) -> bytes:
        """`read_ahead` for coroutines."""
        read, until = bytearray(), monotonic() + LONGEST_READ
        try:
            while (
                len(read) < MOST_READ
                and monotonic() < until
                and not permits.is_applied
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

    def __next__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        chunk: bytes = next(self._rest)
        return chunk

    async def __anext__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        chunk: bytes = await anext(self._rest)
        return chunk

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()
