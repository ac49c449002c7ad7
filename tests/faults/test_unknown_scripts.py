"""A server that knows no scripts, such as a Sentinel. Its answer to ROLE explains the refusal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from headgate import Limiter, StoreError
from tests.world import soon

pytestmark = pytest.mark.usefixtures("hurried")
REPLIES = {"PING": b"+PONG\r\n", "INFO": b"-NOPERM no\r\n"}


@asynccontextmanager
async def server(role: bytes | None) -> AsyncIterator[str]:
    """Its URL. `role`: the reply to ROLE; b"": it ends the connection instead; None: no reply."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            while line := await reader.readline():
                words = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2])
                verb = words[0].upper().decode()
                if verb in ("FCALL", "EVALSHA"):
                    writer.write(f"-ERR unknown command '{verb}'\r\n".encode())
                elif verb != "ROLE":
                    writer.write(REPLIES.get(verb, b"+OK\r\n"))
                elif role is not None:
                    writer.write(role)
                    if not role:
                        break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as listening:
        yield f"redis://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for writer in writers:  # so that each `serve` ends with the test
            writer.close()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("role", "error"),
    [
        (b"*1\r\n$8\r\nsentinel\r\n", "redis\\+sentinel://"),
        (b"-NOPERM no\r\n", "unknown command"),
        (b"", "cannot be asked"),
        (None, "did not answer in time"),
    ],
    ids=["a Sentinel", "without the right", "the connection ends", "silence"],
)
async def test_an_acquire_ends_whatever_the_server_answers_to_role(
    name: str, role: bytes | None, error: str
) -> None:
    """Each of two acquires raises StoreError, and none hangs."""
    async with server(role) as url:
        limiter = Limiter(name, "1 concurrent", store=url, retry_for=0)
        for _ in range(2):
            with pytest.raises(StoreError, match=error):
                await soon(limiter.acquire())
