"""A proxy with switches: everything that a network can do to a client and its server (PROXY of the
fault catalogue).

It handles traffic byte for byte, and knows nothing of headgate's messages. It looks only for FCALL,
EVAL and SUBSCRIBE, to tell the connection for calls from the one for notifications. It runs in the
loop of the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from tests.rights import PASSWORD, USER
from tests.servers import as_user

T = TypeVar("T")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of no time: closing is an RST


class Way:
    """One direction of one kind of connection: its switches, and the pieces that were sent along
    it.
    """

    def __init__(self) -> None:
        self.delay = 0.0  # seconds on the way, for each piece
        self.single_bytes = False
        self.alter: Callable[[bytes], bytes] | None = None
        self.seen: list[bytes] = []  # every piece that came to be sent, lost ones too
        self.lost = 0  # pieces that never arrived
        self._to_lose = 0
        self._stump = 0
        self._open = asyncio.Event()
        self._open.set()

    def hold(self) -> None:
        """Pieces that are sent from now on stay on the way, until `resume()`."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    def lose(self, pieces: int, stump: int = 0) -> None:
        """The next so many pieces are lost, and the connection of each is reset. The first `stump`
        bytes of each still arrive.
        """
        self._to_lose, self._stump = pieces, stump

    async def carry(self, piece: bytes, writer: asyncio.StreamWriter) -> bool:
        """Carry one piece, and return whether the connection is still there afterwards."""
        self.seen.append(piece)
        if self._to_lose:
            self._to_lose -= 1
            self.lost += 1
            writer.write(piece[: self._stump])
            return False
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()
        if self.alter:
            piece = self.alter(piece)
        for index in range(len(piece) if self.single_bytes else 0):
            writer.write(piece[index : index + 1])
            await asyncio.sleep(0)
        writer.write(b"" if self.single_bytes else piece)
        return True


class Connection:
    """Two streams that are one connection."""

    def __init__(
        self, proxy: Proxy, client: asyncio.StreamWriter, server: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._ends = client, server
        self.calls = False
        self.listens = False
        for end in self._ends:
            end.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def way_out(self, piece: bytes) -> Way:
        """The way for a piece that the client sends."""
        self.calls = self.calls or b"FCALL" in piece or b"EVAL" in piece
        self.listens = self.listens or b"SUBSCRIBE" in piece
        return self._proxy.requests if self.calls else self._proxy.rest

    def way_back(self, piece: bytes) -> Way:
        """The way for a piece that the server sends."""
        if self.listens:
            return self._proxy.notifications
        return self._proxy.replies if self.calls else self._proxy.rest

    def reset(self) -> None:
        for end in self._ends:
            with contextlib.suppress(
                OSError, ValueError
            ):  # it is closed: uvloop raises a ValueError
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.transport.abort()


class Proxy:
    """Between a client and the server at `port`; connect to `url`.

    `requests` and `replies` are the ways of script calls, and `notifications` the way of published
    messages. `rest` is the way of everything else, the greetings above all.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests, self.replies, self.notifications, self.rest = Way(), Way(), Way(), Way()
        self.refuses = False
        self.met = 0  # connections so far
        self.connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = as_user(
            f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0", USER, PASSWORD
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        self.refuses = True
        for _ in range(
            3
        ):  # turns in which asyncio hands over a connection that it has accepted already
            await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.reset()

    def reset(self) -> None:
        """Every connection ends with an RST."""
        for connection in list(self.connections):
            connection.reset()

    def hold(self) -> None:
        """A black hole: a client that sends gets no answer, and no connection ends."""
        for way in (self.requests, self.replies, self.notifications, self.rest):
            way.hold()

    def resume(self) -> None:
        for way in (self.requests, self.replies, self.notifications, self.rest):
            way.resume()

    async def _accept(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        self.met += 1
        if self.refuses:
            to_client.transport.abort()
            return
        connecting = self._start(asyncio.open_connection("127.0.0.1", self.port))
        try:
            from_server, to_server = await connecting
        except (OSError, asyncio.CancelledError):  # cancelled by the end of the proxy
            to_client.transport.abort()
            return
        connection = Connection(self, to_client, to_server)
        if self.refuses:
            connection.reset()
            return
        self.connections.add(connection)
        self._start(self._pump(connection, from_client, to_server, connection.way_out))
        self._start(self._pump(connection, from_server, to_client, connection.way_back))

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pump(
        self,
        connection: Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Callable[[bytes], Way],
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await reader.read(1 << 20):
                if not await way(piece).carry(piece, writer):
                    break
        connection.reset()
        self.connections.discard(connection)
