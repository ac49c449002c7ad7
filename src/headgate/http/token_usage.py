"""Reads the tokens of requests to a language model, and the usage in its responses.

Both are JSON; a streamed response is events in JSON. Pure: bytes come in and numbers go out.
Unreadable content is ignored; nothing raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.http.error_bodies import GZIP_OR_ZLIB
from headgate.http.json_values import find, parse_object
from headgate.http.token_estimates import CHARACTERS_PER_TOKEN

LARGEST = 4_000_000  # bytes of a response, or of one event of a stream, that are read
PIECE = 256 * 1024  # bytes that are decompressed at once
# Decompressed bytes of a response that are read. A small body may have very many.
MOST_DECOMPRESSED = 4 * LARGEST
# A larger count of tokens is taken for an error. A sum of several stays below 2**53.
MOST = 2**50
USAGE = b'"usage"'  # an event without these bytes states none
CODINGS = "gzip, deflate"  # codings that zlib reads

TEXTS = ("messages", "input", "prompt", "system", "instructions", "tools")  # a request's input
BLOBS = {"data", "file_data"}  # pictures, sound, files: no characters to count


class Usage(NamedTuple):
    """Tokens; None: not said."""

    input: int | None = None
    output: int | None = None


class Asked(NamedTuple):
    model: str
    characters: int
    max_output: int | None  # the most tokens of the response, if the request states them
    has_output: bool  # embeddings have none


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a provider."""

    answering: tuple[str, ...]  # path ends of calls with output tokens
    silent: tuple[str, ...]  # path ends of calls with input tokens alone
    most: tuple[str, ...]  # where a request says how long its response may be
    # Where a usage has its tokens: the first of these words counts.
    input: tuple[str, ...]
    output: tuple[str, ...]
    more_input: tuple[str, ...] = ()  # the first that is stated is added to the input

    def read_request(self, method: str, path: str, body: bytes) -> Asked | None:
        """Return None for a call that takes no tokens, or does not state its needs."""
        if method != "POST" or not path.endswith(self.answering + self.silent):
            return None
        request = parse_object(body)
        model = request.get("model")
        if not isinstance(model, str):
            return None
        has_output = path.endswith(self.answering)
        return Asked(model, count_characters(request), self._find_most(request), has_output)

    def _find_most(self, request: Mapping[str, Any]) -> int | None:
        stated = [number for word in self.most if (number := find_count(request, word))]
        return stated[0] * (find_count(request, "n") or 1) if stated else None

    def read_usage(self, message: Mapping[str, Any]) -> Usage:
        """Read a response or an event.

        Anthropic's first event has it at `message.usage`, with an output that is not final.
        """
        for path in (("usage",), ("response", "usage")):
            if isinstance(usage := find(message, *path), dict):
                return Usage(self._count_input(usage), find_first(usage, self.output))
        usage = find(message, "message", "usage")
        return Usage(self._count_input(usage)) if isinstance(usage, dict) else Usage()

    def _count_input(self, usage: Mapping[str, Any]) -> int | None:
        tokens = find_first(usage, self.input)
        if tokens is None:
            return None
        return tokens + (find_first(usage, self.more_input) or 0)


class UsageReader:
    """Reads the body of one response for the usage that it states."""

    def __init__(self, dialect: Dialect, headers: Any, *, coded: bool = True) -> None:
        """`coded`: the chunks are still compressed, as the headers say."""
        self._dialect = dialect
        self._is_stream = headers.get("content-type", "").startswith("text/event-stream")
        self._coding = headers.get("content-encoding", "identity") if coded else "identity"
        self._decoder = zlib.decompressobj(GZIP_OR_ZLIB)
        self._decompressed = 0  # bytes
        self._rest = bytearray()
        self._stopped = False
        self._usage = Usage()

    def read_chunk(self, chunk: bytes) -> None:
        for plain in self._decode(chunk):
            if self._stopped:
                return
            self._read_plain(plain)

    def _read_plain(self, plain: bytes) -> None:
        # `first` continues the rest, and a line end completes it. Only the new chunk is searched
        # for line ends: an event may be long.
        first, *more = plain.split(b"\n", 1) if self._is_stream else [plain]
        self._rest += first
        if more:
            self._read_event(self._rest)
            lines, _, begun = more[0].rpartition(b"\n")
            # There may be very many lines, and mostly no usage.
            for line in lines.split(b"\n") if USAGE in lines else ():
                self._read_event(line)
            self._rest = bytearray(begun)
        if len(self._rest) > LARGEST:
            self._stop()

    def usage(self) -> Usage:
        """Return the usage; of a stream that was left early, the usage stated until then."""
        if not self._is_stream:
            self._read_message(self._rest)
            self._rest = bytearray()
        return self._usage

    def _decode(self, chunk: bytes) -> Iterator[bytes]:
        if self._coding == "identity":
            yield chunk
            return
        has_more = True
        while has_more and not self._stopped:
            try:
                plain = self._decoder.decompress(chunk, PIECE)
            except zlib.error:  # it is in another coding, or broken
                self._stop()
                return
            self._decompressed += len(plain)
            if self._decompressed > MOST_DECOMPRESSED:
                self._stop()
                return
            yield plain
            chunk = self._decoder.unconsumed_tail
            # A full piece may have left bytes in the decoder, without a tail.
            has_more = bool(chunk) or len(plain) == PIECE

    def _stop(self) -> None:
        self._stopped = True
        self._rest = bytearray()

    def _read_event(self, line: bytes | bytearray) -> None:
        name, _, data = line.partition(b":")
        if name == b"data" and USAGE in data:
            self._read_message(data)

    def _read_message(self, data: bytes | bytearray) -> None:
        said = self._dialect.read_usage(parse_object(data))
        known = self._usage
        self._usage = Usage(
            known.input if said.input is None else said.input,
            known.output if said.output is None else said.output,
        )


def find_count(message: Mapping[str, Any], word: str) -> int | None:
    number = message.get(word)
    return number if type(number) is int and 0 <= number < MOST else None


def find_first(message: Mapping[str, Any], words: tuple[str, ...]) -> int | None:
    counts = (find_count(message, word) for word in words)
    return next((count for count in counts if count is not None), None)


def count_characters(request: Mapping[str, Any]) -> int:
    """Count all text of a request.

    A number in a list is a token, as embeddings take them. Blobs count for nothing.
    """
    count = 0
    todo = [request.get(word) for word in TEXTS]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            count += 0 if each.startswith("data:") else len(each)
        elif isinstance(each, dict):
            todo += parts_of(each)
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, int):
            count += CHARACTERS_PER_TOKEN
    return count


def parts_of(part: Mapping[str, Any]) -> list[Any]:
    """Return the values that may have text. A number here is a setting."""
    return [
        value for word, value in part.items() if word not in BLOBS and not isinstance(value, int)
    ]
