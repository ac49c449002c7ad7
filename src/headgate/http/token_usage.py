"""Reads the tokens of requests to a language model, and the usage in its responses.

Both are JSON; a streamed response is events in JSON. Pure: bytes come in and numbers go out.
Unreadable content is ignored; nothing raises.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from headgate.http.error_bodies import GZIP_OR_ZLIB
from headgate.http.json_values import find, find_text, parse_object
from headgate.http.token_estimates import CHARACTERS_PER_TOKEN, NO_ATTACHMENTS, Attached

LARGEST = 4_000_000  # bytes of a response, or of one event of a stream, that are read
PIECE = 256 * 1024  # bytes that are decompressed at once
# Decompressed bytes of a response that are read. A small body may have very many.
MOST_DECOMPRESSED = 4 * LARGEST
# A larger count of tokens is taken for an error: no model takes so many in one call. So a service
# cannot charge a budget for years.
MOST = 2**24
USAGE = b'"usage"'  # an event without these bytes states none
FRAMES = "application/vnd.amazon.eventstream"

# The input of a request.
TEXTS = (
    *("messages", "input", "prompt", "system", "instructions", "tools", "functions"),
    *("response_format", "text", "output_format", "output_config"),
)
# Their text is not counted: pictures, sound, files, signatures.
BLOBS = {"data", "file_data", "signature", "encrypted_content"}
ATTACHED = {  # by the type of a part
    **dict.fromkeys(("image", "image_url", "input_image", "computer_screenshot"), "picture"),
    "image_generation_call": "picture",
    **dict.fromkeys(("document", "file", "input_file"), "file"),
    "input_audio": "sound",
    "item_reference": "context",
}
# Keys of a request that add input which it does not show. Each counts as one "context".
CONTEXTS = ("previous_response_id", "conversation", "mcp_servers")
# A text of a user may begin with "data:", too.
DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?[;,]", re.ASCII)
OWN_TOOLS = ("function", "custom")  # types of tools; others add their results to the input


class Usage(NamedTuple):
    """Tokens; None: not said."""

    input: int | None = None
    output: int | None = None


class TokenRequest(NamedTuple):
    """The model of a request, and the sizes from which its tokens are estimated."""

    model: str
    characters: int
    max_output: int | None  # the most tokens of the response, if the request states them
    has_output: bool  # embeddings have none
    attached: Attached = NO_ATTACHMENTS
    in_background: bool = False  # a later call brings the response


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of a provider."""

    with_output: tuple[str, ...]  # path ends of calls with output tokens
    input_only: tuple[str, ...]  # path ends of calls with input tokens alone
    most: tuple[str, ...]  # where a request says how long its response may be
    # Where a usage has its tokens: the first of these words counts.
    input: tuple[str, ...]
    output: tuple[str, ...]
    more_input: tuple[str, ...] = ()  # the first that is stated is added to the input
    # Paths of calls whose first group is the model. They have output tokens.
    by_path: re.Pattern[str] | None = None
    # Paths of calls that retrieve an earlier response. The first group is its id.
    retrieval: re.Pattern[str] | None = None

    def read_request(self, method: str, path: str, body: bytes) -> TokenRequest | None:
        """Return None for a call that takes no tokens, or names no model."""
        if method != "POST":
            return None
        found = self.by_path.search(path) if self.by_path else None
        if not (found or path.endswith(self.with_output + self.input_only)):
            return None
        request = parse_object(body)
        model = found[1] if found else request.get("model")
        if not isinstance(model, str):
            return None
        characters, attached = measure(request)
        has_output = not path.endswith(self.input_only)
        most, in_background = self._find_most(request), request.get("background") is True
        return TokenRequest(model, characters, most, has_output, attached, in_background)

    def find_retrieved(self, path: str) -> str | None:
        """Return the id of the earlier response that a call at `path` retrieves."""
        found = self.retrieval.search(path) if self.retrieval else None
        return found[1] if found else None

    def _find_most(self, request: Mapping[str, Any]) -> int | None:
        stated = [number for word in self.most if (number := find_count(request, word))]
        return stated[0] * (find_count(request, "n") or 1) if stated else None

    def read_usage(self, message: Mapping[str, Any]) -> Usage:
        """Read a response or an event.

        Groq's last event has it at `x_groq.usage`. Anthropic's first event has it at
        `message.usage`, with an output that is not final.
        """
        for path in (("usage",), ("response", "usage"), ("x_groq", "usage")):
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
    """Reads the body of one response for the usage that it states, and for its `id`."""

    def __init__(self, dialect: Dialect, headers: Any, *, coded: bool = True) -> None:
        """`coded`: the chunks are still compressed, as the headers say."""
        self._dialect = dialect
        kind = headers.get("content-type", "")
        self._is_stream = kind.startswith(("text/event-stream", FRAMES))
        self._is_framed = kind.startswith(FRAMES)
        self._coding = headers.get("content-encoding", "identity") if coded else "identity"
        self._decoder = zlib.decompressobj(GZIP_OR_ZLIB)
        self._decompressed = 0  # bytes
        self._rest = bytearray()  # an unfinished line or frame, or the body so far
        self._stopped = False
        self._usage = Usage()
        self.id = ""

    def read_chunk(self, chunk: bytes) -> None:
        for plain in self._decode(chunk):
            if self._stopped:
                return
            self._read_plain(plain)

    def _read_plain(self, plain: bytes) -> None:
        if self._is_framed:
            self._rest += plain
            self._read_frames()
        elif self._is_stream:
            self._read_lines(plain)
        else:
            self._rest += plain
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

    def _read_lines(self, plain: bytes) -> None:
        # Search only the new chunk for line ends: the line in `_rest` may be long.
        first, line_end, others = plain.partition(b"\n")
        self._rest += first
        if line_end:
            self._read_line(self._rest)
            lines, _, begun = others.rpartition(b"\n")
            # There may be very many lines, and mostly no usage.
            for line in lines.split(b"\n") if USAGE in lines else ():
                self._read_line(line)
            self._rest = bytearray(begun)

    def _read_line(self, line: bytes | bytearray) -> None:
        name, _, data = line.partition(b":")
        if name == b"data":
            self._read_event(data)

    def _read_frames(self) -> None:
        """Read the events of Bedrock.

        A frame begins with 12 bytes: its size, the size of its headers and a checksum, 4 bytes
        each. The headers, a JSON object with the event in base64, and a checksum follow.
        """
        at = 0
        while len(self._rest) - at >= 12:
            size, headers = (int.from_bytes(self._rest[at + i : at + i + 4]) for i in (0, 4))
            if not 16 + headers <= size <= LARGEST:
                self._stop()
                return
            if len(self._rest) - at < size:
                break
            coded = find_text(parse_object(self._rest[at + 12 + headers : at + size - 4]), "bytes")
            with suppress(ValueError):  # it is no base64
                self._read_event(b64decode(coded))
            at += size
        del self._rest[:at]

    def _read_event(self, data: bytes | bytearray) -> None:
        if USAGE in data:
            self._read_message(data)

    def _read_message(self, data: bytes | bytearray) -> None:
        message = parse_object(data)
        said, known = self._dialect.read_usage(message), self._usage
        self.id = find_text(message, "id") or find_text(message, "response", "id") or self.id
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


def measure(request: Mapping[str, Any]) -> tuple[int, Attached]:
    """Count all text of a request, and its attachments.

    A number in a list is a token, as embeddings take them. Blobs have no text.
    """
    count, attached = 0, count_contexts(request)
    todo = [request.get(word) for word in TEXTS]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            count += 0 if DATA_URL.match(each) else len(each)
        elif isinstance(each, dict):
            if kind := find_attached(each):
                attached[kind] += 1
            else:
                todo += parts_of(each)
        elif isinstance(each, list):
            todo += each
        elif isinstance(each, int):
            count += CHARACTERS_PER_TOKEN
    return count, attached


def count_contexts(request: Mapping[str, Any]) -> Counter[str]:
    """Count the sources of input that the request does not show."""
    tools = request.get("tools")
    kinds = [find(each, "type") for each in tools] if isinstance(tools, list) else []
    count = sum(isinstance(kind, str) and kind not in OWN_TOOLS for kind in kinds)
    count += sum(bool(request.get(word)) for word in CONTEXTS)
    count += bool(find_text(request, "prompt", "id"))  # a stored prompt
    return Counter({"context": count}) if count else Counter()


def find_attached(part: Mapping[str, Any]) -> str | None:
    """Return the kind of attachment that `part` is. Anthropic's documents may be text."""
    if find_text(part, "source", "type") in ("text", "content"):
        return None
    return ATTACHED.get(find_text(part, "type"))


def parts_of(part: Mapping[str, Any]) -> list[Any]:
    """Return the values that may have text. A number here is a setting."""
    is_text = part.get("type") == "text"
    return [
        value
        for word, value in part.items()
        if not isinstance(value, int) and (word not in BLOBS or (word == "data" and is_text))
    ]
