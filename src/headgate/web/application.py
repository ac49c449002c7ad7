"""The ASGI application: `app` checks its arguments, and `WebPage` answers requests.

- GET /: the page, which is one HTML file.
- GET /events: server-sent events with the state that the page shows.
- POST /actions: an action of the page, if actions are switched on.
"""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import AbstractEventLoop
from base64 import b64encode
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import time
from urllib.parse import parse_qs

from headgate.stores.registry import StoreLike
from headgate.validation import check_name, flag
from headgate.web.actions import act
from headgate.web.asgi import (
    Disconnected,
    Headers,
    Receive,
    Refused,
    Response,
    Scope,
    Send,
    answer_lifespan,
    headers_of,
    path_of,
    read_body,
    redirect_to_folder,
    start,
    until_disconnected,
)
from headgate.web.auth import Auth, comes_from_the_page, guard_of
from headgate.web.poller import Poller
from headgate.web.reading import Reader, View, part_of

# A web server that stops waits for its streams. So each ends after these seconds, but not before
# its first event, for which a silent store may take longer.
LONGEST_STREAM = 5.0
RETRY = 100  # milliseconds after which a browser asks for the next stream
STREAM: Headers = (("X-Accel-Buffering", "no"),)  # nginx passes each event on at once


def app(store: StoreLike = None, *, auth: Auth, actions: bool = False) -> WebPage:
    """An ASGI application with a page that shows the limiters of `store`.

        web = headgate.web.app("redis://localhost:6379", auth="ops:a-long-password")
        fastapi_app.mount("/limits", web)

    `store`: as for a `Limiter`. None: the limiters of this process.
    `auth`: "user:password" or a pair of both, for Basic authentication; serve it over TLS. Or a
    function of the ASGI scope, plain or a coroutine function: only those requests pass for which it
    returns True. None: only requests of this machine to the loopback pass, and no actions.
    `actions`: whether users may pause and resume limiters, and set limits. They do so for the whole
    fleet. Each action needs a confirmation in the page, and a request from the page's own origin.

    The page declares nothing. It reads the store about once a second, once for all viewers of a
    process, while a browser shows it. The names of limiters, and the hosts and programs that use
    them, are visible to all users.

    Raises ValueError or TypeError for bad arguments. No I/O: the first viewer asks the store.
    """
    flag("web.app", "actions", actions)
    if actions and auth is None:
        raise ValueError(
            "web.app(auth=None, actions=True) would let each program of this machine change "
            "limits: give it an auth."
        )
    return WebPage(store, auth, actions)


class WebPage:
    """The application. See `app`."""

    def __init__(self, where: StoreLike, auth: Auth, actions: bool) -> None:
        self._guard = guard_of(auth)
        self._reader = Reader(where)
        self._where, self._actions = where, actions
        self._page = page()
        self._pollers: dict[AbstractEventLoop, Poller] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await answer_lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            with suppress(Disconnected):
                await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = await self._guard(scope)
        response = refusal or await self._answer(scope, receive, send)
        if response is not None:
            await response.send(send, with_body=scope["method"] != "HEAD")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Return the response to send. None: a stream of events was sent."""
        if is_stream(scope):
            return await self._stream(scope, receive, send)
        try:
            return await self._find_response(scope, receive)
        except Refused as refused:
            return refused.response

    async def _find_response(self, scope: Scope, receive: Receive) -> Response:
        path, method = path_of(scope), scope["method"]
        allowed = {"": "GET, HEAD", "/": "GET, HEAD", "/events": "GET", "/actions": "POST"}
        if path not in allowed:
            return Response(404, "There is no such page.")
        if method not in allowed[path].split(", "):
            return Response(405, "Not this method.", headers=(("Allow", allowed[path]),))
        if path == "/actions":
            return await self._act(scope, receive)
        return self._page if path else redirect_to_folder(scope)

    async def _act(self, scope: Scope, receive: Receive) -> Response:
        if not self._actions:
            return Response(403, "This page has no actions: headgate.web.app(..., actions=True).")
        if not comes_from_the_page(scope):
            return Response(403, "Actions must come from the page itself.")
        # A form of another page cannot send this type.
        if headers_of(scope).get("content-type") != "application/json":
            return Response(415, "An action is JSON: Content-Type: application/json.")
        return await act(self._where, await read_body(receive))

    # Events ---------------------------------------------------------------------------------------

    async def _stream(self, scope: Scope, receive: Receive, send: Send) -> Response | None:
        """Send events. If there are none, return the response that says why."""
        try:
            view = view_of(scope)
        except ValueError as error:
            return Response(400, str(error))
        poller = self._poller()
        if poller.full:
            return Response(503, "Too many browsers show this page.")
        await until_disconnected(receive, self._send_events(poller, view, last_id(scope), send))
        return None

    def _poller(self) -> Poller:
        """The poller of this event loop. Closed loops are forgotten."""
        for loop in list(self._pollers):
            if loop.is_closed():
                self._pollers.pop(loop, None)
        return self._pollers.setdefault(asyncio.get_running_loop(), Poller(self._reader))

    async def _send_events(self, poller: Poller, view: View, last: float, send: Send) -> None:
        await send(start(200, "text/event-stream; charset=utf-8", STREAM))
        await send_chunk(send, f"retry: {RETRY}\n\n")
        end = asyncio.get_running_loop().time() + LONGEST_STREAM
        with poller.viewer(view) as viewer, suppress(TimeoutError):
            while True:
                async with asyncio.timeout_at(end if viewer.snapshot else None):
                    snapshot = await viewer.next()
                state = part_of(snapshot, view)
                if view.target is not None:
                    samples = self._reader.history.since(view.target, last, time())
                    last = samples[-1].time if samples else last
                    state["samples"] = samples
                state |= {"store": self._reader.store, "actions": self._actions}
                await send_chunk(send, f"id: {last}\ndata: {json.dumps(state)}\n\n")
        await send({"type": "http.response.body", "body": b""})


async def send_chunk(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


def is_stream(scope: Scope) -> bool:
    return path_of(scope) == "/events" and scope["method"] == "GET"


def view_of(scope: Scope) -> View:
    """Raises ValueError for a bad name or key, or for a page that is no number."""
    query = parse_qs(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True)
    found = {name: values[-1] for name, values in query.items()}
    if "name" in found:
        name, key = check_name(found["name"]), found.get("key")
        return View(target=(name, None if key is None else check_name(key)))
    return View(found.get("search", ""), int(found.get("page", "0")))


def last_id(scope: Scope) -> float:
    """The time of the last sample that a browser has. It sends this with each later request."""
    text = headers_of(scope).get("last-event-id", "")
    return float(text) if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,9})?", text) else 0.0


def page() -> Response:
    """The page, with a policy that allows its own script and style, and no other."""
    html = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {digest_of(html, 'script')}",
            f"style-src {digest_of(html, 'style')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )
    headers = (("Content-Security-Policy", policy),)
    return Response(200, html, "text/html; charset=utf-8", headers)


def digest_of(html: str, tag: str) -> str:
    text = html.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
