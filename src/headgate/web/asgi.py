"""The few parts of ASGI that the page needs: requests, responses, and the path below a mount.

This module knows no limiter and no store.
"""

from __future__ import annotations

from asyncio import FIRST_COMPLETED, CancelledError, create_task, wait
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Headers: TypeAlias = tuple[tuple[str, str], ...]

MOST_BODY = 65_536  # bytes of a request
# No other page may frame these answers, and no cache keeps them.
ALWAYS: Headers = (
    ("Cache-Control", "no-store"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
)


@dataclass(frozen=True)
class Response:
    status: int
    body: str | bytes = ""
    content_type: str = "text/plain; charset=utf-8"
    headers: Headers = ()

    async def send(self, send: Send, with_body: bool = True) -> None:
        body = self.body.encode() if isinstance(self.body, str) else self.body
        length = ("Content-Length", str(len(body)))
        await send(start(self.status, self.content_type, (length, *self.headers)))
        await send({"type": "http.response.body", "body": body if with_body else b""})


class Refused(Exception):
    """A request that gets this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class Disconnected(Exception):
    """The client has gone before its request was read."""


def start(status: int, content_type: str, headers: Headers) -> Message:
    every = (("Content-Type", content_type), *headers, *ALWAYS)
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in every]
    return {"type": "http.response.start", "status": status, "headers": encoded}


def headers_of(scope: Scope) -> dict[str, str]:
    """The headers by their names in lower case. The values of a repeated one are joined."""
    found: dict[str, str] = {}
    for raw_name, raw_value in scope["headers"]:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def path_of(scope: Scope) -> str:
    """The path below the mount: "" if the request is for the mount itself, without a slash.

    Some frameworks leave the `root_path` in the path, and others take it out.
    """
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")).rstrip("/"))


def redirect_to_folder(scope: Scope) -> Response:
    """A redirect to the path with a slash at its end. The addresses in the page need it."""
    last = quote(str(scope["path"]).rpartition("/")[2])
    return Response(307, headers=(("Location", f"./{last}/"),))


async def read_body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        body += bytes(message.get("body", b""))
        if len(body) > MOST_BODY:
            raise Refused(Response(413, f"The request has more than {MOST_BODY} bytes."))
        if not message.get("more_body", False):
            return body


async def until_disconnected(receive: Receive, work: Awaitable[None]) -> None:
    """Do `work`, and cancel it when the client disconnects."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def working() -> None:
        await work

    tasks = create_task(working()), create_task(disconnected())
    try:
        await wait(tasks, return_when=FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(CancelledError):
                await task


async def answer_lifespan(receive: Receive, send: Send) -> None:
    """Answer the server's questions at its start and its end."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
