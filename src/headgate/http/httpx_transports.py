"""The room that httpx and httpx2 share: transports that pass limiters first, and bodies that hold permits to their end.

Both have the same shape and different types. Neither is imported here: each one's module gives these classes the types that its
client asks for, and nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from headgate.http.error_bodies import AHEAD, LONG, decoded
from headgate.http.limiter_chain import Calls, Held, Place


class Address(Protocol):
    """The URL of a request."""

    @property
    def host(self) -> str: ...
    @property
    def path(self) -> str: ...


class Asked(Protocol):
    """A request."""

    @property
    def url(self) -> Any: ...


class Answered(Protocol):
    """A response, whose body is read from `stream` and ends with its `close` or `aclose`; a closed one needs no reading."""

    stream: Any
    is_closed: bool
    status_code: int
    headers: Any


Req = TypeVar("Req", bound=Asked)
Res = TypeVar("Res", bound=Answered)


def place(request: Asked) -> Place:
    url: Address = request.url
    return Place(url.host.lower(), url.path)


class Transport(Generic[Req, Res]):
    """Around a transport: a permit for each request that goes out, held until its body has been read or closed."""

    def __init__(self, calls: Calls[Req], inner: Any, body: Callable[[Any, Held], Any]) -> None:
        self._calls = calls
        self._inner = inner
        self._body = body

    def handle_request(self, request: Req) -> Res:
        """For the client: one attempt on the wire."""
        held = self._calls.enter_sync(request)
        try:
            response: Res = self._inner.handle_request(request)
            said = (
                read_ahead(response) if held.heeds(response.status_code, response.headers) else b""
            )
        except BaseException as error:
            held.failed(error)
            raise
        return until_read(response, held, self._body, said)

    def close(self) -> None:
        """Closes the transport inside."""
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


class AsyncTransport(Generic[Req, Res]):
    """The same for coroutines."""

    def __init__(self, calls: Calls[Req], inner: Any, body: Callable[[Any, Held], Any]) -> None:
        self._calls = calls
        self._inner = inner
        self._body = body

    async def handle_async_request(self, request: Req) -> Res:
        """For the client: one attempt on the wire."""
        held = await self._calls.enter(request)
        try:
            response: Res = await self._inner.handle_async_request(request)
            said = (
                await aread_ahead(response)
                if held.heeds(response.status_code, response.headers)
                else b""
            )
        except BaseException as error:
            held.failed(error)
            raise
        return until_read(response, held, self._body, said)

    async def aclose(self) -> None:
        """Closes the transport inside."""
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


def until_read(response: Res, held: Held, body: Callable[[Any, Held], Any], said: bytes) -> Res:
    """The response, which holds the permits as long as there is anything to read."""
    held.answered(response.status_code, response.headers, said)
    held.opened(response)
    if (
        response.is_closed
    ):  # it came with all that it has, as that of a mock does: nobody will read or close it
        held.release()
    elif held or isinstance(response.stream, Begun | AsyncBegun):
        response.stream = body(response.stream, held)
    return response


class Body:
    """A response's stream that holds permits until it was read to its end, failed, or was closed."""

    def __init__(self, inner: Any, held: Held) -> None:
        self._inner = inner
        self._held = held

    def __iter__(self) -> Iterator[bytes]:
        return Chunks(iter(self._inner), self._held)

    def close(self) -> None:
        try:
            self._inner.close()
        finally:
            self._held.release()


class AsyncBody:
    """The same for coroutines."""

    def __init__(self, inner: Any, held: Held) -> None:
        self._inner = inner
        self._held = held

    def __aiter__(self) -> AsyncIterator[bytes]:
        return AsyncChunks(aiter(self._inner), self._held)

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._held.release()


class Chunks(Iterator[bytes]):
    """No generator: one that is left in its middle would have to guess whether the body goes on."""

    def __init__(self, inner: Iterator[bytes], held: Held) -> None:
        self._inner = inner
        self._held = held

    def __next__(self) -> bytes:
        try:
            return next(self._inner)
        except BaseException:  # the end of the body is one of them
            self._held.release()
            raise


class AsyncChunks(AsyncIterator[bytes]):
    """The same for coroutines."""

    def __init__(self, inner: AsyncIterator[bytes], held: Held) -> None:
        self._inner = inner
        self._held = held

    async def __anext__(self) -> bytes:
        try:
            return await anext(self._inner)
        except BaseException:  # the end of the body is one of them
            self._held.release()
            raise


# What a refusal says -----------------------------------------------------------------------------------------------------------


def read_ahead(response: Answered) -> bytes:
    """The body of a refusal, before anybody is held: who sends again may not look into it. Whoever does gets it all."""
    if response.is_closed:
        return content_of(response)
    response.stream = begun = Begun(response.stream)
    return decoded(response.headers, begun.ahead())


async def aread_ahead(response: Answered) -> bytes:
    """The same for coroutines."""
    if response.is_closed:
        return content_of(response)
    response.stream = begun = AsyncBegun(response.stream)
    return decoded(response.headers, await begun.ahead())


def content_of(response: Any) -> bytes:
    try:
        return bytes(response.content)
    except RuntimeError:  # closed, and never read
        return b""


class Begun(Iterator[bytes]):
    """A body whose beginning was read ahead, up to so many bytes. One that breaks off does so for its reader, too.

    Who is interrupted meanwhile will never have the response: what it has of the client's pool goes back here.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: Iterator[bytes] = iter(inner)
        self._first: deque[bytes] = deque()
        self._failure: Exception | None = None

    def ahead(self) -> bytes:
        said, until = bytearray(), monotonic() + LONG
        try:
            while (
                len(said) < AHEAD
                and monotonic() < until
                and (chunk := next(self._rest, None)) is not None
            ):
                self._first.append(chunk)
                said += chunk
        except Exception as failure:
            self._failure = failure
        except BaseException:
            self.close()
            raise
        return bytes(said)

    def __next__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        return next(self._rest)

    def close(self) -> None:
        self._inner.close()


class AsyncBegun(AsyncIterator[bytes]):
    """The same for coroutines."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._rest: AsyncIterator[bytes] = aiter(inner)
        self._first: deque[bytes] = deque()
        self._failure: Exception | None = None

    async def ahead(self) -> bytes:
        said, until = bytearray(), monotonic() + LONG
        try:
            while (
                len(said) < AHEAD
                and monotonic() < until
                and (chunk := await anext(self._rest, None)) is not None
            ):
                self._first.append(chunk)
                said += chunk
        except Exception as failure:
            self._failure = failure
        except BaseException:
            await self.aclose()
            raise
        return bytes(said)

    async def __anext__(self) -> bytes:
        if self._first:
            return self._first.popleft()
        if self._failure is not None:
            raise self._failure
        return await anext(self._rest)

    async def aclose(self) -> None:
        await self._inner.aclose()


def put_around(client: Any, transport: Callable[[Any], Any]) -> None:
    """Limit a client in place: its transport and those of its mounts, proxies among them, each where it is."""
    client._transport = transport(client._transport)
    client._mounts = {
        pattern: inner and transport(inner) for pattern, inner in client._mounts.items()
    }
