"""The web page at the level of ASGI: requests and streams without a server.

This module plays the server and the browser. It knows neither limiters nor the page.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.machine import scaled_now

LOCAL = ("127.0.0.1", 50_000)
PATIENCE = 10.0  # seconds of an idle machine


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def text(self) -> str:
        return self.body.decode()


def basic(user: str, password: str) -> dict[str, str]:
    return {"Authorization": f"Basic {b64encode(f'{user}:{password}'.encode()).decode()}"}


def scope_of(
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    client: tuple[str, int] | None = LOCAL,
    root_path: str = "",
) -> dict[str, Any]:
    path, _, query = path.partition("?")
    every = {"Host": "localhost", **(headers or {})}
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": root_path,
        "headers": [(name.lower().encode(), value.encode()) for name, value in every.items()],
        "client": client,
        "server": ("127.0.0.1", 80),
    }


async def request(
    app: Any,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
    **connection: Any,
) -> Answer:
    """The answer to one request, whose body comes in two parts."""
    parts = [(body[:10], True), (body[10:], False)]
    answer = Answer()

    async def receive() -> dict[str, Any]:
        part, more = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": more}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message["body"]

    await app(scope_of(method, path, headers, **connection), receive, send)
    return answer


class Stream:
    """A browser that shows the page: it gets the events of one stream."""

    def __init__(self, app: Any, scope: dict[str, Any]) -> None:
        self.answer = Answer()
        self.ids: list[str] = []
        # While this is cleared, the connection takes nothing.
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._gone = asyncio.Event()
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._asked = False
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self.flowing.wait()
        if message["type"] == "http.response.start":
            self.answer.status = message["status"]
        else:
            self._chunks.put_nowait(message["body"])

    async def next(self) -> dict[str, Any]:
        """The state in the next event."""
        async with asyncio.timeout(scaled_now(PATIENCE)):
            while True:
                chunk = (await self._chunks.get()).decode()
                lines = dict(line.split(": ", 1) for line in chunk.splitlines() if line)
                if "data" in lines:
                    self.ids.append(lines["id"])
                    state: dict[str, Any] = json.loads(lines["data"])
                    return state

    async def until(self, met: Any) -> dict[str, Any]:
        while not met(state := await self.next()):
            pass
        return state

    async def disconnect(self) -> None:
        self._gone.set()
        await self.task


@asynccontextmanager
async def shown(
    app: Any, query: str = "", headers: Mapping[str, str] | None = None
) -> AsyncIterator[Stream]:
    """A browser that shows the page during the block. `query`: `?name=api`, ..."""
    stream = Stream(app, scope_of("GET", f"/events{query}", headers))
    try:
        yield stream
    finally:
        await stream.disconnect()
