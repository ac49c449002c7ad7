"""httpx2, in coroutines: a permit lasts as long as a call does, streams to their last line
included.

The service bears two calls at once. Run it: `python examples/with_httpx2.py`
"""

from __future__ import annotations

import asyncio

import httpx2
from services.strict import Strict

from headgate import Concurrency, Limiter
from headgate.http.httpx2 import AsyncTransport, limit

llm = Limiter("llm", Concurrency(2), "1000/second")


async def read(client: httpx2.AsyncClient) -> int:
    async with client.stream("GET", "/stream") as response:
        return len([line async for line in response.aiter_lines()])


async def leave(client: httpx2.AsyncClient) -> int:
    """Reads one line and leaves: its permit goes back with the stream."""
    async with client.stream("GET", "/stream") as response:
        await anext(response.aiter_lines())
        return 1


async def main() -> None:
    with Strict(2) as service:
        async with limit(httpx2.AsyncClient(base_url=service.url), llm) as client:
            lines = await asyncio.gather(*(read(client) for _ in range(8)))
            print(f"{service}; {sum(lines)} lines")
            await leave(client)
            print(llm)
        async with httpx2.AsyncClient(
            transport=AsyncTransport(llm), base_url=service.url
        ) as client:  # the same, by hand
            print(f"{await read(client)} lines by a transport")


if __name__ == "__main__":
    asyncio.run(main())
