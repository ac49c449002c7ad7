"""A web service that answers 429 to each call above its limit, and counts: standard library only,
in threads of this process.

GET / takes 5 ms; /stream sends ten lines, one every millisecond; /busy is 503 at first and an
answer after that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Strict:
    """At most `at_once` calls at a time; `with Strict(3) as service:` serves at `service.url`."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.calls = self.inside = self.most = self.refused = 0
        self.busy = True
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def call(self) -> Iterator[bool]:
        """One call inside; False for one too many."""
        with self._lock:
            self.calls += 1
            self.inside += 1
            self.most = max(self.most, self.inside)
            welcome = self.inside <= self.at_once
            self.refused += not welcome
        try:
            yield welcome
        finally:
            with self._lock:
                self.inside -= 1

    def __enter__(self) -> Strict:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *outcome: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __str__(self) -> str:
        return f"{self.calls} calls, at most {self.most} at once, {self.refused} refused"


def handler_of(service: Strict) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # a caller may leave
                with service.call() as welcome:
                    lines = self.answer(welcome)
                self.wfile.write(
                    lines
                )  # the last words come from outside: a caller that has read them may call again

        def answer(self, welcome: bool) -> bytes:
            status = 200 if welcome else 429
            if self.path == "/busy" and service.busy:
                status, service.busy = 503, False
            self.send_response(status)
            self.end_headers()
            if self.path != "/stream":
                time.sleep(0.005)
                return b"hello\n"
            for _ in range(9):
                self.wfile.write(b"line\n")
                time.sleep(0.001)
            return b"end\n"

        def log_message(self, *arguments: object) -> None:
            """Quietly."""

    return Handler
