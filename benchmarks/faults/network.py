"""A network that loses one reply: the server has run the call, and the caller's connection breaks
before it gets the reply.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Loser:
    """Between callers and the server at `port`.

    Once `armed`: one reply to a call that contains `word` is lost, with its connection.
    """

    def __init__(self, port: int, word: bytes) -> None:
        self.armed = False
        self.lost = 0
        self._port = port
        self._word = word

    async def accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
        asked: list[bool] = []
        pumps = [
            asyncio.create_task(self._forth(from_client, to_server, asked)),
            asyncio.create_task(self._back(from_server, to_client, asked)),
        ]
        with contextlib.suppress(asyncio.CancelledError):  # the loop ends before its connections do
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        to_client.transport.abort()
        to_server.transport.abort()

    async def _forth(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bool]
    ) -> None:
        while piece := await reader.read(1 << 20):
            if self.armed and self._word in piece:
                asked.append(True)
            writer.write(piece)

    async def _back(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[bool]
    ) -> None:
        while piece := await reader.read(1 << 20):
            if asked and not self.lost:
                self.lost += 1
                return
            writer.write(piece)


@asynccontextmanager
async def losing(url: str, word: bytes) -> AsyncIterator[tuple[Loser, str]]:
    """A loser, and the URL to reach the server of `url` through it."""
    loser = Loser(urlsplit(url).port or 6379, word)
    server = await asyncio.start_server(loser.accept, "127.0.0.1", 0)
    try:
        yield loser, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()
