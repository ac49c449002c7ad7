"""Language models that are none, behind the HTTP of OpenAI and Anthropic: strict about their
limits, in threads of this process.

A call above the limits gets 429 with the provider's own words and headers. Standard library only.
budgets.py decides which call is allowed, and speech.py has the words. Here are the traffic on the
wire and its counts.
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from typing import Any

from .budgets import Budgets, Rules
from .speech import SPEECHES, Call, Responses, Speech, call_of, speech_of, without_usage

PATIENCE = 10.0  # seconds; never waited for when all is well
PLAIN = SPEECHES["/responses"]  # other calls are refused with its words
RETRY = 0.01  # seconds after which one that found no place, or no mood, may try again


class Server(ThreadingHTTPServer):
    """Many callers may come at once, and leaving in the middle is no error."""

    request_queue_size = 1024

    def __init__(self, service: Models) -> None:
        self.service = service
        super().__init__(("127.0.0.1", 0), Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Quietly."""


class Models:
    """`with Models(Rules(requests=100, at_once=5)) as service:` serves at `service.url`.

    `calls`: all calls that came; `inside`, `most`: at once, now and ever; `refused`: 429s by their
    reason; `into`, `out`: tokens. For tests: `moods` are the next statuses to answer with instead,
    "quota" that the account is spent. `secretive`: answers do not say their usage; `go`: streams
    wait for it after their first word, and responses in the background are complete after it.
    `codings`: those that callers accept; `paths`: of all calls.
    """

    def __init__(self, rules: Rules = Rules()) -> None:  # noqa: B008 - it is frozen
        self.rules = rules
        self.calls = self.inside = self.most = self.into = self.out = 0
        self.refused: Counter[str] = Counter()
        self.moods: list[int | str] = []
        self.secretive = False
        self.codings: set[str] = set()
        self.paths: list[str] = []
        self.in_background: Call | None = None  # the last such call
        self.go = threading.Event()
        self.go.set()
        self._changed = threading.Condition()
        self._budgets = Budgets(rules)
        self._server = Server(self)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Models:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        return self

    def __exit__(self, *outcome: object) -> None:
        self.go.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait_inside(self, count: int) -> None:
        """Go on when so many calls are inside."""
        with self._changed:
            met = self._changed.wait_for(lambda: self.inside == count, PATIENCE)
            assert met, f"{self.inside} inside, not {count}"

    @contextmanager
    def call(self, into: int) -> Iterator[dict[str, float]]:
        """One call inside; it yields the limits that refuse it, and for how many seconds."""
        with self._changed:
            self._count(1)
            refused = self._judge(into)
            self.refused.update(refused.keys())
        try:
            yield refused
        finally:
            with self._changed:
                self._count(-1)

    def _count(self, more: int) -> None:
        self.inside += more
        self.calls += more > 0
        self.most = max(self.most, self.inside)
        self._changed.notify_all()

    def _judge(self, into: int) -> dict[str, float]:
        if self.moods:
            return {str(self.moods.pop(0)): RETRY}
        if self.rules.at_once is not None and self.inside > self.rules.at_once:
            return {"at_once": RETRY}
        refused = self._budgets.arrive(time.monotonic(), into)
        self.into += 0 if refused else into
        return refused

    def wrote(self, words: int) -> None:
        with self._changed:
            self.out += words
            self._budgets.answer(time.monotonic(), words)

    def said(self) -> dict[str, tuple[int, int, float]]:
        with self._changed:
            return self._budgets.said(time.monotonic())

    def __str__(self) -> str:
        return f"{self.calls} calls, at most {self.most} at once, {self.refused.total()} refused"


class Handler(BaseHTTPRequestHandler):
    """One connection, and call after call of it."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def service(self) -> Models:
        assert isinstance(self.server, Server)
        return self.server.service

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        path = self.path.partition("?")[0]
        self.service.paths.append(path)
        speech = speech_of(path)
        call = call_of(path, body, silent=speech.silent)
        with suppress(ConnectionError):  # a caller may leave
            with self.service.call(call.into) as refused:
                last = self.refuse(speech, refused) if refused else self.answer(speech, call)
            self.wfile.write(
                last
            )  # the last words come from outside: a caller that has read them may call again

    def do_GET(self) -> None:
        """A call that is no model's, or one for a response that was made in the background."""
        later = self.service.in_background if "/responses/" in self.path else None
        with suppress(ConnectionError):
            with self.service.call(0) as refused:
                if refused:
                    last = self.refuse(PLAIN, refused)
                else:
                    last = self.plain() if later is None else self.later(later)
            self.wfile.write(last)

    def later(self, call: Call) -> bytes:
        speech = Responses()
        done = self.service.go.is_set()
        said = json.dumps(speech.answer(call) if done else speech.begun(call)).encode()
        self.begin(200, {}, len(said))
        return said

    def plain(self) -> bytes:
        time.sleep(self.service.rules.call_time)
        said = json.dumps({"object": "list", "data": []}).encode()
        self.begin(200, PLAIN.headers(self.service.said()), len(said))
        return said

    def refuse(self, speech: Speech, refused: dict[str, float]) -> bytes:
        unit, wait = max(refused.items(), key=lambda each: each[1])
        said = json.dumps(speech.refusal(unit)).encode()
        retry = {"retry-after": str(ceil(wait)), "retry-after-ms": str(ceil(wait * 1000))}
        self.begin(
            int(unit) if unit.isdigit() else 429,
            {**speech.headers(self.service.said()), **retry},
            len(said),
        )
        return said

    def answer(self, speech: Speech, call: Call) -> bytes:
        if call.streamed:
            return self.stream(speech, call)
        if call.in_background and isinstance(speech, Responses):
            self.service.in_background = call
            said = json.dumps(speech.begun(call)).encode()
            self.begin(200, speech.headers(self.service.said()), len(said))
            return said
        time.sleep(self.service.rules.call_time)
        self.service.wrote(call.out)
        pack, coding = self.packed()
        said = pack(json.dumps(self.told(speech.answer(call))).encode(), True)
        self.begin(200, {**speech.headers(self.service.said()), **coding}, len(said))
        return said

    def stream(self, speech: Speech, call: Call) -> bytes:
        pack, coding = self.packed()
        self.begin(
            200,
            {**speech.headers(self.service.said()), **coding, "content-type": speech.stream_type},
            None,
        )
        *events, end = [speech.pack(name, self.told(told)) for name, told in speech.events(call)]
        written = 0
        try:
            for event in events:
                self.wfile.write(chunk(pack(event, False)))
                written = min(call.out, written + 1)
                time.sleep(self.service.rules.call_time)
                self.service.go.wait()
        finally:
            self.service.wrote(written)
        return chunk(pack(end + speech.last, True)) + chunk(b"")

    def told(self, told: dict[str, Any]) -> dict[str, Any]:
        return without_usage(told) if self.service.secretive else told

    def packed(self) -> tuple[Callable[[bytes, bool], bytes], dict[str, str]]:
        """How to send bytes, the last of them or not: as others do, in a coding if the caller knows
        one.
        """
        taken = self.headers.get("accept-encoding", "")
        self.service.codings.add(taken)
        if "gzip" not in taken:
            return lambda data, last: data, {}
        packer = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
        return (
            lambda data, last: (
                packer.compress(data) + packer.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
            ),
            {"content-encoding": "gzip"},
        )

    def begin(self, status: int, headers: dict[str, str], length: int | None) -> None:
        self.send_response(status)
        size = (
            {"transfer-encoding": "chunked"} if length is None else {"content-length": str(length)}
        )
        for name, value in {"content-type": "application/json", **headers, **size}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Quietly."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)
