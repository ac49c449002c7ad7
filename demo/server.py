"""The strict HTTP server: `python -m demo.server`. It prints its port and serves until it is
stopped.

GET / is the call, GET /stats the counts, POST /reset forgets all. `rules` decides which call is
allowed; this file only reads the clock, sleeps and answers. It knows nothing of headgate.
"""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from demo.processes import end_with_parent
from demo.rules import Doorkeeper, Rules

# Without headgate all calls connect in the same instant. A queue too short for them would make the
# kernel drop connections, and the demo would show TCP retries of a second instead of 429s.
BACKLOG = 1024


class Server:
    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._door = Doorkeeper(rules)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/", self.call)
        app.router.add_get("/stats", self.stats)
        app.router.add_post("/reset", self.reset)
        return app

    async def call(self, _: web.Request) -> web.Response:
        verdict = self._door.arrive(time.monotonic_ns())
        if verdict != "ok":
            return web.json_response({"refused for": verdict}, status=429)
        try:
            await asyncio.sleep(self._rules.call_time)
        finally:
            self._door.leave()
        return web.json_response({"hello": "world"})

    async def stats(self, _: web.Request) -> web.Response:
        return web.json_response(self._door.verdicts)

    async def reset(self, _: web.Request) -> web.Response:
        if self._door.inside:
            return web.json_response({"still inside": self._door.inside}, status=409)
        self._door = Doorkeeper(self._rules)
        return web.Response(status=204)


async def serve() -> None:
    runner = web.AppRunner(Server(Rules()).app(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=BACKLOG).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    end_with_parent()
    asyncio.run(serve())
