"""One connection: commands go out, replies come in, in the same order, many in flight at once.

redis-py connects, logs in and negotiates TLS. Then this module takes over the transport: a call
through redis-py's own reader costs a quarter more (benchmarks, bucket-turn).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from hiredis import ProtocolError, Reader, pack_command

if TYPE_CHECKING:
    from redis.asyncio.connection import AbstractConnection

REPLY_TIMEOUT = 5.0  # The seconds that a reply may take.
# An acquire with a shorter `max_sleep` still waits for these seconds for its reply: `max_sleep` is
# for the wait in the queue alone.
SILENCE = 0.5


class Connection(asyncio.Protocol):
    """It calls `replied` with each reply, and `lost` once, when no more replies will come."""

    def __init__(
        self,
        connection: AbstractConnection,
        replied: Callable[[Any], None],
        lost: Callable[[Exception], None],
    ) -> None:
        self._replied = replied
        self._lost = lost
        self._reader = Reader()
        # `write` will write these commands together. None: each command is written at once.
        self._buffered: list[bytes] | None = None
        self._loop = asyncio.get_running_loop()
        # The stream stays referenced here, because it closes the transport when it is dropped.
        self._writer = detached(connection)
        self._transport = cast(asyncio.Transport, self._writer.transport)
        self._transport.set_protocol(self)

    def send(self, command: bytes) -> None:
        if self._buffered is None:
            self._transport.write(command)
        else:
            self._buffered.append(command)

    def is_buffering(self) -> bool:
        return self._buffered is not None

    def buffer(self) -> bool:
        """Write nothing until `write`. False: another caller began this, and will call `write`."""
        if self._buffered is not None:
            return False
        self._buffered = []
        return True

    def write(self) -> None:
        """Write the buffered commands with one system call.

        Meanwhile the garbage collector may release permits. The next round writes their commands.
        """
        while commands := self._buffered:
            self._buffered = []
            self._transport.write(b"".join(commands))
        self._buffered = None

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        must_write = self.buffer()
        try:
            while not self._transport.is_closing() and (reply := self._reader.gets()) is not False:
                self._replied(reply)
            if must_write:
                self.write()
        except ProtocolError as error:
            self.cut(error)
        except BaseException as interrupt:  # the calls in flight are sent again
            self.cut(ConnectionError(f"reading was interrupted: {interrupt!r}"))
            raise

    def connection_lost(self, error: Exception | None) -> None:
        self.cut(error or ConnectionError("the server closed the connection"))

    def cut(self, error: Exception) -> None:
        """End the connection without telling the server. The calls in flight are lost."""
        self._transport.abort()
        lost, self._lost = self._lost, _ignore
        lost(error)

    def close(self) -> None:
        self._lost = _ignore
        hang_up(self._writer, self._loop)


# Encode a command. No word is a number, which could crash hiredis: see `Command`.
pack = cast("Callable[[tuple[str | bytes, ...]], bytes]", pack_command)


def detached(connection: AbstractConnection) -> asyncio.StreamWriter:
    """Take the open stream out of `connection`: redis-py has no public way to hand it over."""
    writer = connection._writer
    assert writer is not None, "the connection was made just now"
    connection._writer = connection._reader = None
    return writer


def hang_up(writer: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop) -> None:
    """Close the stream, even if its `loop` does not run.

    A TLS stream does not wait for the server's close_notify: the loop may have ended by then.
    """
    by_tls = writer.get_extra_info("sslcontext") is not None
    with suppress(RuntimeError):  # the loop is closed
        (writer.transport.abort if by_tls else writer.close)()
    if not loop.is_running():
        _close_socket(writer.transport)


def close_sockets(loop: asyncio.AbstractEventLoop) -> None:
    """Finish the transports that began to close in `loop`, which does not run.

    An unfinished connect of asyncio hides its transport. So this checks all of the loop's.
    """
    for transport in list(getattr(loop, "_transports", {}).values()):
        if transport.is_closing():
            _close_socket(transport)


def _close_socket(transport: asyncio.WriteTransport) -> None:
    """Run the last step of an asyncio transport in place of its loop.

    asyncio has no public way to do it, and warns about a socket that it cannot close. uvloop closes
    all of its sockets with the loop.
    """
    plain: Any = getattr(getattr(transport, "_ssl_protocol", None), "_transport", None) or transport
    if getattr(plain, "_sock", None) is not None:
        # The stream's protocol cannot wake its readers in a closed loop.
        with suppress(RuntimeError):
            plain._call_connection_lost(None)


def _ignore(error: Exception) -> None:
    """The connection was closed before."""
