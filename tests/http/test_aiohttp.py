"""The peculiarities of aiohttp: total time-outs, dropped responses, websockets, `RateLimiter`."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, Rate
from headgate.gate.compile import rule_of
from headgate.http.aiohttp import BY_PROTOCOL, RateLimiter, limit, make_bucket, middleware
from headgate.stores.memory.store import MemoryStore
from tests.http.service import Service
from tests.virtual import VirtualClock
from tests.world import at_rest, held, soon, used, waiting


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


# A limited session -----------------------------------------------------------------------------


async def test_the_total_time_out_counts_the_wait_and_nothing_is_sent(
    session: aiohttp.ClientSession, service: Service, one: Limiter
) -> None:
    """As docs/http.md says; other time-outs do not count it."""
    limit(session, one)
    async with one:
        with pytest.raises(TimeoutError):
            await session.get(service.url, timeout=aiohttp.ClientTimeout(total=0.02))
        patient = asyncio.create_task(
            session.get(service.url, timeout=aiohttp.ClientTimeout(None, 0.5, 0.5, 0.5))
        )
        await waiting(one, 1)
        await asyncio.sleep(0.55)

    assert (await soon(patient)).status == 200
    assert service.calls == 1


@pytest.mark.parametrize(
    "end", ["the server has sent all", "the session is closed", "nothing comes for sock_read"]
)
async def test_a_dropped_response_keeps_its_permit_as_long_as_its_connection(
    service: Service, one: Limiter, end: str
) -> None:
    """aiohttp reads on for a dropped response; for the server, that call goes on."""
    session = limit(
        aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(sock_read=0.5 if "sock_read" in end else None)
        ),
        one,
    )
    await session.get(f"{service.url}/stream")
    gc.collect()
    assert held(await one.astatus()) == 1

    if "server" in end:
        service.finish()
    elif "closed" in end:
        await session.close()

    await soon(at_rest(one))
    await session.close()


BODIES = {
    "stalls before its first byte": b"Content-Length: 1000\r\n\r\n",
    "stalls in the middle": b"Content-Length: 1000\r\n\r\n" + b"x" * 100,
    "stalls in a chunk": b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
    "stalls compressed": b"Content-Encoding: gzip\r\nContent-Length: 1000\r\n\r\n",
    "has no length": b"\r\n" + b"x" * 100,
    "is larger than the buffer": b"Content-Length: 9000000\r\n\r\n" + b"x" * 8_000_000,
}


@asynccontextmanager
async def stalling(body: bytes) -> AsyncIterator[tuple[str, list[asyncio.StreamWriter]]]:
    """The address of a server whose answers do not end, and its side of the connections."""
    writers: list[asyncio.StreamWriter] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + body)

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", writers
        for writer in writers:
            writer.transport.abort()


@pytest.mark.filterwarnings("ignore:Unclosed connection")  # aiohttp warns of the dropped response
@pytest.mark.parametrize("end", ["session closed", "connection lost", "connection reset"])
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("body", BODIES)
async def test_a_stalled_response_ends_with_its_connection(
    name: str, body: str, kept: bool, end: str
) -> None:
    """Without a collection of garbage, whether the caller keeps the response or has dropped it.

    While aiohttp's buffer is full, it does not look whether the server is still there.
    """
    if "larger" in body and end != "session closed":
        return
    limiter = Limiter(name, Concurrency(1))
    async with stalling(BODIES[body]) as (url, writers), aiohttp.ClientSession() as session:
        response: Any = await soon(limit(session, limiter).get(url))
        if not kept:
            response = None
        gc.disable()
        try:
            assert held(limiter.status()) == 1
            if end == "session closed":
                await session.close()
            elif end == "connection lost":
                writers[0].close()
            else:
                writers[0].transport.abort()
            await soon(at_rest(limiter))
        finally:
            gc.enable()
        if response is not None:
            response.close()
    gc.collect()


async def test_a_connection_keeps_no_permit_of_a_call_that_is_over(
    session: aiohttp.ClientSession, service: Service, one: Limiter
) -> None:
    """It serves many calls, one after the other."""
    async with limit(session, one).get(f"{service.url}/stream") as response:
        assert response.connection is not None
        carried = BY_PROTOCOL[response.connection.protocol]
        assert len(carried.permits) == 1
        service.finish()
        await response.read()

    assert carried.permits == set()


async def test_a_websocket_holds_its_permit_until_it_is_closed(
    session: aiohttp.ClientSession, service: Service, one: Limiter
) -> None:
    limit(session, one)
    async with session.ws_connect(f"{service.url}/ws") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
        assert held(await one.astatus()) == 1

    await at_rest(one)


async def test_each_retry_of_aiohttp_is_charged(
    session: aiohttp.ClientSession, service: Service, one: Limiter
) -> None:
    """When the server closes a connection without an answer, aiohttp sends a GET twice, a POST
    once.
    """
    limit(session, one)
    for method, calls in (("GET", 2), ("POST", 3)):
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.request(method, f"{service.url}/rude")
        assert service.calls == calls
        assert used(await at_rest(one)) == [0, calls]


@pytest.mark.parametrize("way", ["by hand", "in place"])
async def test_each_retry_of_a_middleware_before_ours_is_charged(
    service: Service, one: Limiter, way: str
) -> None:
    """The user's middleware asks again after a 503; ours stands last."""

    async def again(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        while response.status == 503:
            response.release()
            response = await handler(request)
        return response

    service.failures = 2
    async with aiohttp.ClientSession(
        middlewares=(again, middleware(one)) if way == "by hand" else (again,)
    ) as session:
        if way == "in place":
            limit(session, one)
        assert (await soon(session.get(f"{service.url}/flaky"))).status == 200

    assert used(await at_rest(one)) == [0, 3]


async def test_limit_keeps_a_sessions_connector_and_proxy(
    session: aiohttp.ClientSession, service: Service, name: str
) -> None:
    """The host for `key` is that of the request, not of the proxy."""
    limiter, connector = Limiter(name, "1/hour", max_sleep=1.0), session.connector
    assert limit(session, limiter, key="host") is session

    assert (await session.get("http://host/by-proxy", proxy=service.url)).status == 200

    assert session.connector is connector
    assert service.paths == ["/by-proxy"]
    assert used(limiter["host"].status()) == [1]


# The classic wrapper ---------------------------------------------------------------------------

VERBS: dict[str, Callable[[RateLimiter, str], Any]] = {
    "GET": lambda client, url: client.get(url, params={"q": "1"}),
    "OPTIONS": RateLimiter.options,
    "HEAD": RateLimiter.head,
    "POST": lambda client, url: client.post(url, json={}),
    "PUT": lambda client, url: client.put(url, data=b"1"),
    "PATCH": RateLimiter.patch,
    "DELETE": RateLimiter.delete,
    "REPORT": lambda client, url: client.request("REPORT", url),
}


class Bucket:
    """A wrapper with a virtual clock: a thousand tokens a second, one each millisecond."""

    def __init__(self, session: aiohttp.ClientSession, name: str, max_tokens: int = 3) -> None:
        self.clock = VirtualClock()
        store = MemoryStore(self.clock)
        self.client = RateLimiter(session, rate=1000, max_tokens=max_tokens, name=name, store=store)
        self.limiter = self.client._limiter

    async def waits(self, call: Awaitable[Any]) -> Any:
        """Return the result of a call that passes a millisecond from now, and not before."""
        task = asyncio.ensure_future(_awaited(call))
        await waiting(self.limiter, 1)
        await asyncio.sleep(0.005)
        assert not task.done()
        self.clock.jump(0.001)
        return await soon(task)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


@pytest.fixture
def bucket(session: aiohttp.ClientSession, name: str) -> Bucket:
    return Bucket(session, name)


@pytest.mark.parametrize("verb", VERBS)
async def test_every_verb_takes_a_token(bucket: Bucket, service: Service, verb: str) -> None:
    """Awaited or entered, with the arguments of the session's own method."""
    for _ in range(3):
        async with VERBS[verb](bucket.client, service.url) as response:
            assert response.status == 200
            assert verb == "HEAD" or await response.text() == f"{verb} ok"

    response = await bucket.waits(VERBS[verb](bucket.client, service.url))

    assert response.method == verb
    response.close()


async def test_a_wrapper_starts_full_and_refills_at_its_rate(
    session: aiohttp.ClientSession, service: Service, name: str
) -> None:
    """By default ten requests pass at once, and the eleventh a tenth of a second later."""
    client = RateLimiter(session, name=name, store=MemoryStore(VirtualClock()))
    answers = await asyncio.gather(*(client.get(service.url) for _ in range(10)))

    assert {answer.status for answer in answers} == {200}
    assert client._limiter.status().retry_after == pytest.approx(0.1)
    assert used(client._limiter.status()) == [10]


async def test_a_redirect_takes_a_token_for_each_hop(bucket: Bucket, service: Service) -> None:
    async with bucket.client.get(f"{service.url}/redirect?n=2") as response:
        assert response.status == 200

    assert used(bucket.limiter.status()) == [3]
    assert (
        await bucket.waits(bucket.client.head(f"{service.url}/redirect?n=1"))
    ).status == 302  # as the session's own head does


async def test_a_limited_stream_is_read_as_any_other(bucket: Bucket, service: Service) -> None:
    async with bucket.client.get(f"{service.url}/stream") as response:
        assert await response.content.readany()
        service.finish()
        assert await response.content.read()


async def test_a_websocket_takes_one_token(bucket: Bucket, service: Service) -> None:
    async with bucket.client.ws_connect(f"{service.url}/ws") as socket:
        for word in ("one", "two"):
            await socket.send_str(word)
            assert await socket.receive_str() == word

    assert used(bucket.limiter.status()) == [1]


async def test_the_wait_for_the_first_token_is_no_part_of_any_time_out(
    bucket: Bucket, service: Service
) -> None:
    """With an empty bucket, a call has its whole total time-out left after a longer wait."""
    for _ in range(3):
        (await bucket.client.get(service.url)).close()
    call = asyncio.create_task(
        _awaited(bucket.client.get(service.url, timeout=aiohttp.ClientTimeout(total=0.5)))
    )
    await waiting(bucket.limiter, 1)
    await asyncio.sleep(0.55)
    assert not call.done()

    bucket.clock.jump(0.001)

    assert (await soon(call)).status == 200


async def test_calls_of_the_session_itself_are_not_limited(
    bucket: Bucket, service: Service
) -> None:
    async with bucket.client.session.get(service.url):
        pass

    assert used(bucket.limiter.status()) == [0]


async def test_middlewares_of_a_request_do_not_bypass_the_wrapper(
    bucket: Bucket, service: Service
) -> None:
    for middlewares in ((), None):
        async with bucket.client.get(f"{service.url}/redirect?n=1", middlewares=middlewares):
            pass
        bucket.clock.jump(1)

    assert service.calls == 4
    async with bucket.client.get(f"{service.url}/redirect?n=1", middlewares=()):
        assert used(bucket.limiter.status()) == [2]


async def test_a_request_without_middlewares_of_its_own_keeps_those_of_the_session(
    service: Service, name: str
) -> None:
    passed = []

    async def note(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        passed.append(request.url.path)
        return await handler(request)

    async with aiohttp.ClientSession(middlewares=(note,)) as session:
        bucket = Bucket(session, name)
        async with bucket.client.get(f"{service.url}/a", middlewares=None):
            assert used(bucket.limiter.status()) == [1]

    assert passed == ["/a"]


async def test_a_request_that_is_never_sent_takes_no_token(bucket: Bucket) -> None:
    with pytest.raises(aiohttp.InvalidURL):
        await bucket.client.get("nonsense")

    assert used(bucket.limiter.status()) == [0]


async def test_wrappers_of_one_name_share_a_bucket(
    session: aiohttp.ClientSession, service: Service, name: str, store: Any
) -> None:
    """In either store. A wrapper without a name has a bucket of its own."""
    mine, yours = (RateLimiter(session, 0.001, 2, name=name, store=store) for _ in range(2))
    (await mine.get(service.url)).close()
    (await yours.get(service.url)).close()
    (await RateLimiter(session, 0.001, 1).get(service.url)).close()

    assert used(await mine._limiter.astatus()) == [2]
    assert session._middlewares.count(session._middlewares[-1]) == len(session._middlewares) == 1


async def test_a_wrapper_closes_its_session(service: Service) -> None:
    async with RateLimiter(aiohttp.ClientSession()) as client:
        async with client.get(service.url) as response:
            assert response.status == 200
        assert not client.closed
    assert client.closed
    assert client.session.closed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate": 0}, "a rate is from"),
        ({"rate": "10"}, "a rate is an int or a float"),
        ({"rate": float("nan")}, "a rate is from"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
        ({"store": "memory://"}, "has no name"),
    ],
    ids=str,
)
async def test_bad_arguments_of_a_wrapper_are_refused(
    session: aiohttp.ClientSession, options: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        RateLimiter(session, **options)
    with pytest.raises(TypeError, match=r"a session is an aiohttp\.ClientSession"):
        RateLimiter("session")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rate", "amount", "per"), [(10, 10, 1), (2.5, 5, 2), (0.1, 1, 10), (1 / 3, 1, 3)]
)
def test_a_rate_need_not_be_whole(rate: float, amount: int, per: int) -> None:
    assert rule_of(make_bucket(rate, 10)).text == rule_of(Rate(amount, per=per, capacity=10)).text


async def test_a_refusal_of_the_store_reaches_the_caller(
    session: aiohttp.ClientSession, service: Service, name: str
) -> None:
    limiter = Limiter(name, Concurrency(1), max_sleep=0.01)
    limit(session, limiter)
    async with limiter:
        with pytest.raises(MaxSleepExceededError):
            await session.get(service.url)
    assert service.calls == 0
