"""A web service that counts its calls and how many are inside, in a thread of its own.

The count inside is the server's own view: a stream that the client has left ends when the server
has noticed. The service knows nothing of headgate.

    /            an answer at once; each call ends when it is answered
    /slow        an answer after so many milliseconds (?ms=)
    /stream      a first chunk at once and the rest when `finish` is called
    /redirect    to itself so many times (?n=), then to /
    /flaky       503 as often as `failures` says, then an answer
    /rude        the connection is closed without an answer
    /ws          a websocket that echoes
    /empty       204
    /says        the next of `answers`: a status, its headers and maybe a body in JSON; then 200
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web
from aiohttp.typedefs import Handler

from tests.machine import scaled

PATIENCE = scaled(10.0)  # seconds; never waited for when all is well
FIRST, REST = b"first" * 20, b"rest" * 20


class Service:
    """`calls`: how many came. `inside`, `most`: how many are inside now, and were at most.

    `refused`: how many came beyond `at_once` and got 429.
    """

    def __init__(self, at_once: int = 1000) -> None:
        self.at_once = at_once
        self.calls = self.inside = self.most = self.refused = self.failures = 0
        self.paths: list[str] = []
        self.answers: list[tuple[int, dict[str, str]] | tuple[int, dict[str, str], str]] = []
        self._changed = threading.Condition()
        self._finish: asyncio.Event | None = None
        self._loop = asyncio.new_event_loop()
        self.url = ""

    # For the test, in its own thread ------------------------------------------------------------

    def finish(self) -> None:
        """Let all streams come to their end."""
        assert self._finish is not None
        self._loop.call_soon_threadsafe(self._finish.set)

    def wait_inside(self, count: int) -> None:
        """Block until so many calls are inside."""
        with self._changed:
            met = self._changed.wait_for(lambda: self.inside == count, PATIENCE)
            assert met, f"{self.inside} inside, not {count}"

    def __enter__(self) -> Service:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        assert ready.wait(PATIENCE)
        return self

    def __exit__(self, *outcome: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    # In the server's thread ---------------------------------------------------------------------

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        self._finish, self._end = asyncio.Event(), asyncio.Event()

        @web.middleware
        async def counted(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._counted(request, handler)

        app = web.Application(middlewares=[counted])
        app.router.add_get("/ws", self._ws)
        app.router.add_route("*", "/{name:.*}", self._answer)
        runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.01
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await self._end.wait()
        await runner.cleanup()

    async def _counted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        with self._one(request.path):
            if self.inside > self.at_once:
                self.refused += 1
                return web.Response(status=429)
            return await handler(request)

    @contextmanager
    def _one(self, path: str) -> Iterator[None]:
        self._count(1)
        self.paths.append(path)
        try:
            yield
        finally:
            self._count(-1)

    def _count(self, more: int) -> None:
        with self._changed:
            self.inside += more
            self.calls += more > 0
            self.most = max(self.most, self.inside)
            self._changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name == "slow":
            await asyncio.sleep(int(request.query.get("ms", "5")) / 1000)
        elif name == "empty":
            return web.Response(status=204)
        elif name == "rude":
            assert request.transport is not None
            request.transport.close()
        elif name == "stream":
            return await self._stream(request)
        elif name == "redirect":
            left = int(request.query["n"])
            raise web.HTTPFound(f"/redirect?n={left - 1}" if left > 1 else "/")
        elif name == "says" and self.answers:
            status, headers, *body = self.answers.pop(0)
            return (
                json_response(status, headers, body[0])
                if body
                else web.Response(status=status, headers=headers)
            )
        elif name == "flaky" and self.failures > 0:
            self.failures -= 1
            return web.Response(status=503, headers={"Retry-After": "0"})
        return web.Response(text=f"{request.method} ok")

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        assert self._finish is not None
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(FIRST)
        await self._finish.wait()
        await response.write(REST)
        await response.write_eof()
        return response

    async def _ws(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(message.data)
        return socket


def json_response(status: int, headers: dict[str, str], body: str) -> web.Response:
    """Return a compressed response, if the client accepts one, as servers do."""
    response = web.Response(
        status=status, headers=headers, text=body, content_type="application/json"
    )
    response.enable_compression()
    return response
