"""The wire: commands out, replies in, in order, many on their way at once.

Here lives the traffic itself: redis-py connects, logs in and speaks TLS, then the wire takes over the transport, because a call
through redis-py's own reader costs a quarter more (benchmarks, bucket-turn). hiredis reads and writes the protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from hiredis import ProtocolError, Reader, pack_command

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection


class Connection(asyncio.Protocol):
    """One connection: `replied` hears each reply in the order of the commands, `lost` hears once that there will be no more."""

    def __init__(
        self,
        connection: AbstractConnection,
        replied: Callable[[Any], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._replied = replied
        self._lost = lost
        self._reader = Reader()
        self._kept: list[bytes] | None = None  # commands that will be written together
        self._loop = asyncio.get_running_loop()
        self._writer = detached(
            connection
        )  # kept, because it closes the transport when it is dropped
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)

    def send(self, command: bytes) -> None:
        if self._kept is None:
            self._transport.write(command)
        else:
            self._kept.append(command)

    def keeps(self) -> bool:
        """Whether what is sent now will be written together with more."""
        return self._kept is not None

    def keep(self) -> bool:
        """From now on write nothing, until `write`. False: somebody does so already, and will write."""
        if self.keeps():
            return False
        self._kept = []
        return True

    def write(self) -> None:
        """What was kept, at once: a write is a call of the system. What the collector gives back meanwhile comes behind it."""
        while kept := self._kept:
            self._kept = []
            self._transport.write(b"".join(kept))
        self._kept = None

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        writes = self.keep()
        try:
            while not self._transport.is_closing() and (reply := self._reader.gets()) is not False:
                self._replied(reply)
        except ProtocolError as error:
            self.cut(error)
        finally:
            if writes:
                self.write()

    def connection_lost(self, error: Exception | None) -> None:
        self.cut(error or ConnectionError("the server closed the connection"))

    def cut(self, error: Exception) -> None:
        """End the connection without a word to the server; what is on its way is lost."""
        self._transport.abort()
        lost, self._lost = self._lost, _ignore
        lost(error)

    def close(self) -> None:
        self._lost = _ignore
        hang_up(self._writer, self._loop)


def packed(*words: Any) -> bytes:
    """A command as it travels.

    Of texts alone: hiredis crashes when a signal handler raises while it makes a text of a number.
    """
    texts: Any = tuple([str(word) if type(word) is int else word for word in words])
    command: bytes = pack_command(texts)
    return command


def detached(connection: AbstractConnection) -> asyncio.StreamWriter:
    """The open stream of `connection`, which is left without: redis-py has no public way to hand it over."""
    writer = connection._writer
    assert writer is not None, "the connection was made just now"
    connection._writer = connection._reader = None
    return writer


def hang_up(writer: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop) -> None:
    """Close the stream, also when `loop`, which it belongs to, was stopped or closed.

    By TLS without waiting for the server's goodbye: it may come when the loop is gone.
    """
    by_tls = writer.get_extra_info("sslcontext") is not None
    with suppress(RuntimeError):  # the loop is closed
        (writer.transport.abort if by_tls else writer.close)()
    if not loop.is_running():
        _close_socket(writer.transport)


def close_sockets(loop: asyncio.AbstractEventLoop) -> None:
    """Finish what transports have begun: they wait for `loop`, which does not run, to close them.

    A coroutine of asyncio that connects keeps its transport to itself, so this looks at all.
    """
    for transport in list(getattr(loop, "_transports", {}).values()):
        if transport.is_closing():
            _close_socket(transport)


def _close_socket(transport: asyncio.WriteTransport) -> None:
    """Do in place of a loop that does not run the last step of asyncio's transport.

    asyncio has no public way, and complains of a socket that it cannot close. uvloop closes all
    of its sockets with the loop.
    """
    plain: Any = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
    if getattr(plain, "_sock", None) is not None:
        with suppress(RuntimeError):  # a protocol has no loop to wake its readers in
            plain._call_connection_lost(None)


def _ignore(error: Exception) -> None:
    """The connection was given up before."""
