"""aiohttp: a session that is limited where it is, and the classic wrapper around one.

The service answers 429 to the fourth call at once. Run it: `python examples/with_aiohttp.py`
"""

from __future__ import annotations

import asyncio

import aiohttp
from services.strict import Strict

from headgate import Concurrency, Limiter
from headgate.http.aiohttp import RateLimiter, limit


async def fetch(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        return await response.text()


async def limited_in_place(service: Strict) -> None:
    """All that the session sends: as many at once as the service bears, for as long as their bodies
    last.
    """
    async with aiohttp.ClientSession() as session:
        limit(session, Limiter("service", Concurrency(3), "1000/second"))
        urls = [service.url, f"{service.url}/stream"] * 10
        bodies = await asyncio.gather(*(fetch(session, url) for url in urls))
    print(f"{service}; {sum(body.count('line') for body in bodies)} lines")


async def classic(service: Strict) -> None:
    """So many a second, and a burst that the service bears; requests of the session itself are not
    limited.
    """
    async with RateLimiter(aiohttp.ClientSession(), rate=100, max_tokens=3) as client:
        for _ in range(5):
            async with client.get(service.url) as response:
                await response.read()
    print(f"RateLimiter: {service}")


async def main() -> None:
    with Strict(3) as service:
        await limited_in_place(service)
    with Strict(3) as service:
        await classic(service)


if __name__ == "__main__":
    asyncio.run(main())
