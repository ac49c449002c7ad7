"""One process: twelve calls started at once, held to five in any 0.2 s and to three at a time.

The service is a small web server in this process, which counts how many calls it has inside.
Run it: `python examples/one_process.py`
"""

from __future__ import annotations

import asyncio
import time

from headgate import Concurrency, Limiter, Window

limiter = Limiter("service", Window(5, per=0.2), Concurrency(3))


class Service:
    """Answers every call after 10 ms and remembers how busy it was."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(0.01)
        self.inside -= 1
        writer.write(b"hello\n")
        writer.close()


async def call(port: int) -> str:
    async with limiter:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"hello?\n")
        answer = await reader.readline()
        writer.close()
        return answer.decode().strip()


async def main() -> None:
    service = Service()
    async with await asyncio.start_server(service.answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        began = time.monotonic()
        answers = await asyncio.gather(*(call(port) for _ in range(12)))
        print(
            f"{answers.count('hello')} calls in {time.monotonic() - began:.1f} s, at most "
            f"{service.most} at once"
        )
    print(limiter)


if __name__ == "__main__":
    asyncio.run(main())
