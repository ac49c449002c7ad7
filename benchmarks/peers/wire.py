"""The same bare EVALSHA over headgate's own wire: what a thin connection makes of it, without a limiter.

redis-py connects and logs in; then the wire takes over, as it does in the store (stores/redis/wire.py).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.asyncio.connection import Connection, parse_url

from benchmarks.peers.bare import PER_TOKEN, SCRIPT, EmptyError
from benchmarks.stage import PLENTY, Maker, Stage

if TYPE_CHECKING:
    from headgate.stores.redis.wire import Wire


class Talk:
    """Commands over one wire, each with a future for its reply."""

    def __init__(self) -> None:
        self._asked: deque[asyncio.Future[Any]] = deque()
        self._wire: Wire | None = None

    async def open(self, url: str) -> None:
        from headgate.stores.redis.wire import Wire

        connection = Connection(**parse_url(url), protocol=2)
        await connection.connect()  # type: ignore[no-untyped-call]  # redis-py leaves it unannotated
        self._wire = Wire(connection, lambda reply: self._asked.popleft().set_result(reply), self._lost)

    def _lost(self, error: Exception) -> None:
        for future in self._asked:
            future.set_exception(error)

    def ask(self, command: bytes) -> asyncio.Future[Any]:
        assert self._wire is not None, "opened before"
        future = asyncio.get_running_loop().create_future()
        self._asked.append(future)
        self._wire.send(command)
        return future

    async def close(self) -> None:
        assert self._wire is not None, "opened before"
        self._wire.close()


@contextmanager
def evalsha(stage: Stage) -> Iterator[Maker]:
    from headgate.stores.redis.wire import packed

    talk = Talk()

    async def opened() -> str:
        await talk.open(stage.redis_url)
        return str((await talk.ask(packed("SCRIPT", "LOAD", SCRIPT.read_bytes()))).decode())

    sha = stage.run(opened())

    def make(name: str) -> object:
        async def call() -> None:
            if await talk.ask(packed("EVALSHA", sha, 1, name, PLENTY, PER_TOKEN)) != 1:
                raise EmptyError

        return call

    try:
        yield make
    finally:
        stage.run(talk.close())
