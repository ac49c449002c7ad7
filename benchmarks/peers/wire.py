"""The same bare EVALSHA over headgate's own connection: the cost of a thin connection without a
limiter, alone or for a crowd.

redis-py connects and logs in; then the wire takes over, as it does in the store
(stores/redis/transport/connection.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from hiredis import pack_command
from redis.asyncio.connection import Connection, parse_url

from benchmarks.peers.bare import PER_TOKEN, SCRIPT, EmptyError
from benchmarks.stage import PLENTY, Maker, Opening, Stage

if TYPE_CHECKING:
    from headgate.stores.redis.transport.connection import Connection as Wire

    Asking = Callable[[str], asyncio.Future[Any]]


class Talk:
    """Commands over one wire, each with a future for its reply."""

    def __init__(self, heard: Callable[[Any], None] | None = None) -> None:
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._heard = heard or (lambda reply: self._asked.popleft().set_result(reply))
        self._wire: Wire | None = None

    async def open(self, url: str) -> None:
        from headgate.stores.redis.transport.connection import Connection as Wire

        connection = Connection(**parse_url(url), protocol=2)
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        self._wire = Wire(connection, self._heard, self._lost)

    def _lost(self, error: Exception) -> None:
        for future in self._asked:
            future.set_exception(error)

    def ask(self, *words: Any) -> asyncio.Future[Any]:
        assert self._wire is not None, "opened before"
        future = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._wire.send(pack_command(words))
        return future

    async def close(self) -> None:
        assert self._wire is not None, "opened before"
        self._wire.close()


@contextmanager
def evalsha(stage: Stage) -> Iterator[Maker]:
    with talking(stage) as asking:
        yield lambda name: partial(once, asking, name)


async def once(asking: Asking, name: str) -> None:
    checked(await asking(name))


def gate(capacity: int) -> Opening:
    """Callers enter as many at a time as there is room for, all of them by one round trip."""

    @contextmanager
    def opening(stage: Stage) -> Iterator[Maker]:
        with talking(stage) as asking:
            yield lru_cache(lambda name: Gate(capacity, lambda entering: asking(name), checked))

    return opening


class Gate:
    """The cost of any semaphore in a store: a round trip before the first caller enters, and one
    more each time that there is room.

    Nothing is decided and no caller is safe: so many enter as were there when the last had left.
    """

    def __init__(
        self, capacity: int, ask: Callable[[int], asyncio.Future[Any]], check: Callable[[Any], None]
    ) -> None:
        self._capacity = capacity
        self._ask = ask  # for so many
        self._check = check
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inside = 0  # or about to be

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._inside:
            self._inside = 1  # the caller that asks for all
            loop.call_soon(self._go)
        await future

    async def __aexit__(self, *exc_info: object) -> None:
        self._inside -= 1
        if not self._inside and self._waiting:
            self._go()

    def _go(self) -> None:
        self._inside = min(self._capacity, len(self._waiting))
        self._ask(self._inside).add_done_callback(self._let_in)

    def _let_in(self, asked: asyncio.Future[Any]) -> None:
        self._check(asked.result())
        for _ in range(self._inside):
            self._waiting.popleft().set_result(None)


@contextmanager
def talking(stage: Stage) -> Iterator[Asking]:
    with opened(stage, Talk()) as talk:
        sha = loaded(stage, talk, SCRIPT.read_bytes())
        yield lambda name: talk.ask("EVALSHA", sha, 1, name, PLENTY, PER_TOKEN)


@contextmanager
def opened(stage: Stage, talk: Talk) -> Iterator[Talk]:
    stage.run(talk.open(stage.redis_url))
    try:
        yield talk
    finally:
        stage.run(talk.close())


def loaded(stage: Stage, talk: Talk, script: bytes) -> str:
    """By which name a script is called."""
    return str(stage.run(told(talk, "SCRIPT", "LOAD", script)).decode())


async def told(talk: Talk, *words: Any) -> Any:
    return await talk.ask(*words)


def checked(reply: object) -> None:
    if reply != 1:
        raise EmptyError
