"""What requests to a language model ask for, and what answers say that they have used: JSON, and events in JSON.

Pure, and no client is known here: bytes come in, numbers go out. What cannot be read is as if it had not been said, and nothing
that was sent raises. Each provider's words are a `Dialect`, which stands in its client's own module.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

from headgate.http.token_estimates import CHARACTERS_PER_TOKEN

LARGEST = 4_000_000  # bytes of an answer, or of one event of a stream, that are read
MOST = (
    2**50
)  # tokens of one kind: who says more says nonsense, and several kinds together can still be counted
CODINGS = "gzip, deflate"  # what zlib reads
EITHER = zlib.MAX_WBITS | 32  # gzip or zlib, by their first bytes

TEXTS = (
    "messages",
    "input",
    "prompt",
    "system",
    "instructions",
    "tools",
)  # where a request has its input
BLOBS = {"data", "file_data"}  # pictures, sound, files: no characters to count

Amount: TypeAlias = Callable[[Mapping[str, Any]], int | None]


class Usage(NamedTuple):
    """Tokens; None: not said."""

    input: int | None = None
    output: int | None = None


class Asked(NamedTuple):
    """What a request asks for. `most`: tokens that the answer may have, if it says; `answers`: whether there will be any."""

    model: str
    characters: int
    most: int | None
    answers: bool


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a provider. `answering`, `silent`: how the paths end whose calls take tokens, with an output and without;
    `most`: where a request says how long its answer may be; `input`, `output`: what a usage says."""

    answering: tuple[str, ...]
    silent: tuple[str, ...]
    most: tuple[str, ...]
    input: Amount
    output: Amount

    def asked(self, method: str, path: str, body: bytes) -> Asked | None:
        """None for a call that takes no tokens, or does not say what it asks for."""
        if method != "POST" or not path.endswith(self.answering + self.silent):
            return None
        told = json_of(body)
        model = told.get("model")
        if not isinstance(model, str):
            return None
        return Asked(model, characters(told), self._most(told), path.endswith(self.answering))

    def _most(self, told: Mapping[str, Any]) -> int | None:
        said = [number for word in self.most if (number := whole(told, word))]
        return said[0] * (whole(told, "n") or 1) if said else None

    def used(self, told: Mapping[str, Any]) -> Usage:
        """What an answer or an event says. That of a message that begins has not counted its output yet."""
        for path in (("usage",), ("response", "usage")):
            if isinstance(usage := at(told, *path), dict):
                return Usage(self.input(usage), self.output(usage))
        usage = at(told, "message", "usage")
        return Usage(self.input(usage)) if isinstance(usage, dict) else Usage()


class Headers(Protocol):
    """The headers of a response."""

    def get(self, key: str, default: str) -> str: ...


class Reader:
    """Hears the body of one answer, chunk by chunk, and knows what it has said of its usage so far."""

    def __init__(self, dialect: Dialect, headers: Headers, *, coded: bool = True) -> None:
        self._dialect = dialect
        self._events = headers.get("content-type", "").startswith("text/event-stream")
        self._coding = headers.get("content-encoding", "identity") if coded else "identity"
        self._plain = zlib.decompressobj(EITHER)
        self._rest = bytearray()
        self._deaf = False
        self._usage = Usage()

    def hear(self, chunk: bytes) -> None:
        if self._deaf:
            return
        plain = self._decoded(chunk)
        first, *lines = (
            plain.split(b"\n") if self._events else [plain]
        )  # not all of the rest again: an event may be long
        self._rest += first
        for line in lines:
            self._event(self._rest)
            self._rest = bytearray(line)
        if len(self._rest) > LARGEST:
            self._stop()

    def usage(self) -> Usage:
        """Of a stream that has not come to its end, what it had said until then."""
        if not self._events:
            self._take(self._rest)
            self._rest = bytearray()
        return self._usage

    def _decoded(self, chunk: bytes) -> bytes:
        if self._coding == "identity":
            return chunk
        try:
            return self._plain.decompress(chunk, LARGEST)
        except zlib.error:  # in another coding, or broken
            self._stop()
            return b""

    def _stop(self) -> None:
        self._deaf = True
        self._rest = bytearray()

    def _event(self, line: bytearray) -> None:
        name, _, data = line.partition(b":")
        if name == b"data" and b'"usage"' in data:
            self._take(data)

    def _take(self, data: bytearray) -> None:
        said = self._dialect.used(json_of(data))
        known = self._usage
        self._usage = Usage(
            known.input if said.input is None else said.input,
            known.output if said.output is None else said.output,
        )


def json_of(data: bytes | bytearray) -> dict[str, Any]:
    """What is no object is an empty one."""
    try:
        told = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def at(told: Any, *path: str) -> Any:
    for word in path:
        told = told.get(word) if isinstance(told, dict) else None
    return told


def whole(told: Mapping[str, Any], word: str) -> int | None:
    """A count, if that is what stands there."""
    number = told.get(word)
    return number if type(number) is int and 0 <= number < MOST else None


def characters(told: Mapping[str, Any]) -> int:
    """Of all text that a request brings; a number in a list is a token, as embeddings take them. Blobs count for nothing."""
    count = 0
    todo = [told.get(word) for word in TEXTS]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            count += 0 if each.startswith("data:") else len(each)
        elif isinstance(each, dict):
            todo += [
                value
                for word, value in each.items()
                if word not in BLOBS and not isinstance(value, int)
            ]
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, int):
            count += CHARACTERS_PER_TOKEN
    return count
