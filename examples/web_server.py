"""A web server that ends well: its limiter is closed when the server has answered its last request.

Run it: `python examples/web_server.py`
"""

from __future__ import annotations

import asyncio

import aiohttp
from aiohttp import web

from headgate import Concurrency, Limiter, LimiterClosedError

LIMITER: web.AppKey[Limiter] = web.AppKey("limiter", Limiter)


async def answer(request: web.Request) -> web.Response:
    try:
        async with request.app[LIMITER]:
            return web.Response(text="done")
    except LimiterClosedError:
        raise web.HTTPServiceUnavailable(text="this server is about to end") from None


async def close(app: web.Application) -> None:
    """When this returns, the store has all that the server has said."""
    await app[LIMITER].aclose(refuse_waiters=True)


def application(limiter: Limiter) -> web.Application:
    app = web.Application()
    app[LIMITER] = limiter
    app.router.add_get("/", answer)
    app.on_shutdown.append(close)
    return app


async def ask(session: aiohttp.ClientSession, url: str) -> int:
    async with session.get(url) as response:
        return response.status


async def main() -> None:
    queued = asyncio.Event()
    limiter = Limiter("service", Concurrency(2), on_wait=lambda waiting: queued.set())
    runner = web.AppRunner(application(limiter))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    url = f"http://{host}:{port}/"
    async with aiohttp.ClientSession() as session:
        statuses = await asyncio.gather(*(ask(session, url) for _ in range(10)))
        print(f"{statuses.count(200)} answers")
        permits = [await limiter.acquire() for _ in range(2)]  # as a slow job of this server would
        queued.clear()
        waiting = asyncio.create_task(ask(session, url))
        await queued.wait()
        await close(runner.app)
        print(f"a request that waited at the end: {await waiting}")
        print(f"a request that came later: {await ask(session, url)}")
    for permit in permits:
        permit.release()
    await runner.cleanup()
    print(repr(limiter))


if __name__ == "__main__":
    asyncio.run(main())
