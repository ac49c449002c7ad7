"""What requests ask for and answers say, byte by byte: no client, no server."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import pytest

from headgate.http.anthropic import ANTHROPIC
from headgate.http.openai import OPENAI
from headgate.http.token_usage import LARGEST, MOST, Asked, Dialect, Usage, UsageReader

JSON = {"content-type": "application/json"}
EVENTS = {"content-type": "text/event-stream; charset=utf-8"}
CHAT = {"usage": {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}}
RESPONSE = {"usage": {"input_tokens": 12, "output_tokens": 34, "total_tokens": 46}}
MESSAGE = {
    "usage": {
        "input_tokens": 12,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 999,
        "output_tokens": 34,
    }
}


def heard(dialect: Dialect, headers: dict[str, str], *chunks: bytes) -> Usage:
    reader = UsageReader(dialect, headers)
    for chunk in chunks:
        reader.read_chunk(chunk)
    return reader.usage()


def stream(*said: dict[str, Any]) -> bytes:
    return (
        b"".join(b"event: any\r\ndata: " + json.dumps(each).encode() + b"\r\n\r\n" for each in said)
        + b"data: [DONE]\n\n"
    )


@pytest.mark.parametrize(
    ("dialect", "told", "usage"),
    [
        (OPENAI, CHAT, Usage(12, 34)),
        (OPENAI, RESPONSE, Usage(12, 34)),
        (OPENAI, {"usage": {"prompt_tokens": 12, "total_tokens": 12}}, Usage(12, None)),
        (ANTHROPIC, MESSAGE, Usage(112, 34)),
        (
            ANTHROPIC,
            {
                "usage": {
                    "input_tokens": 12,
                    "cache_creation_input_tokens": None,
                    "output_tokens": 34,
                }
            },
            Usage(12, 34),
        ),
        (OPENAI, {"usage": None}, Usage()),
        (OPENAI, {"usage": [1]}, Usage()),
        (OPENAI, {"usage": {"prompt_tokens": -1, "completion_tokens": 1.5}}, Usage()),
        (OPENAI, {"usage": {"prompt_tokens": True, "completion_tokens": "34"}}, Usage()),
        (OPENAI, {"usage": {"prompt_tokens": MOST, "completion_tokens": 34}}, Usage(None, 34)),
        (OPENAI, {}, Usage()),
    ],
)
def test_an_answer_says(dialect: Dialect, told: dict[str, Any], usage: Usage) -> None:
    """Cached tokens of Anthropic's do not count; what is no count is not said."""
    assert heard(dialect, JSON, json.dumps(told).encode()) == usage


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_a_body_comes_in_pieces_and_in_codings(coding: str) -> None:
    plain = json.dumps({"choices": ["x" * 100_000], **CHAT}).encode()
    pack = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[coding]
    data = pack(plain)
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]

    assert heard(OPENAI, {**JSON, "content-encoding": coding}, *pieces) == Usage(12, 34)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_a_stream_says_it_in_one_of_its_events(coding: str) -> None:
    """Wherever the pieces are torn."""
    plain = stream({"choices": [], "usage": None}, {"choices": [], **CHAT})
    data = gzip.compress(plain) if coding == "gzip" else plain
    for at in range(len(data)):
        assert heard(OPENAI, {**EVENTS, "content-encoding": coding}, data[:at], data[at:]) == Usage(
            12, 34
        )


class Piece(bytes):
    """Knows how often it was looked through."""

    looks = 0

    def split(self, *arguments: Any) -> Any:
        self.looks += 1
        return super().split(*arguments)


def test_a_long_event_is_looked_through_once() -> None:
    """S9: given an event of a megabyte, a picture say, in a thousand pieces, then each is looked at when it comes and not again."""
    data = stream({"choices": ["x" * 1_000_000], **CHAT})
    pieces = [Piece(data[at : at + 1000]) for at in range(0, len(data), 1000)]

    assert heard(OPENAI, EVENTS, *pieces) == Usage(12, 34)

    assert {piece.looks for piece in pieces} == {1}


def test_a_stream_of_responses_says_it_when_it_is_complete() -> None:
    begun = {"type": "response.created", "response": {"usage": None}}
    done = {"type": "response.completed", "response": RESPONSE}

    assert heard(OPENAI, EVENTS, stream(begun)) == Usage()
    assert heard(OPENAI, EVENTS, stream(begun, done)) == Usage(12, 34)


def test_a_message_that_begins_has_counted_its_input_only() -> None:
    begun = {"type": "message_start", "message": MESSAGE}
    delta = {"type": "message_delta", "usage": {"output_tokens": 77}}

    assert heard(ANTHROPIC, EVENTS, stream(begun)) == Usage(112, None)
    assert heard(ANTHROPIC, EVENTS, stream(begun, delta)) == Usage(112, 77)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (JSON, b"no json"),
        (JSON, b"[1]"),
        (JSON, b"\xff" + json.dumps(CHAT).encode()),
        (JSON, b"[" * 100_000),
        (JSON, json.dumps(CHAT).encode() + b" " * LARGEST),
        ({**JSON, "content-encoding": "gzip"}, b"not gzip"),
        (
            {**JSON, "content-encoding": "gzip"},
            gzip.compress(b" " * (2 * LARGEST) + json.dumps(CHAT).encode()),
        ),
        ({**JSON, "content-encoding": "br"}, json.dumps(CHAT).encode()),
        (EVENTS, b'data: {"usage": broken}\n'),
        (EVENTS, b"data: " + b"x" * (LARGEST + 1)),
        (EVENTS, b"data"),
        ({}, b""),
    ],
)
def test_what_cannot_be_read_says_nothing(headers: dict[str, str], body: bytes) -> None:
    """What comes after it neither: nobody knows what it belongs to."""
    assert heard(OPENAI, headers, body) == heard(OPENAI, headers, body, b"more") == Usage()


def asked(dialect: Dialect, path: str, **told: Any) -> Asked | None:
    return dialect.read_request("POST", path, json.dumps({"model": "m", **told}).encode())


@pytest.mark.parametrize(
    ("path", "told", "characters"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "me", "content": "12345678"}]}, 10),
        ("/v1/responses", {"input": "1234", "instructions": "5678", "store": True}, 8),
        (
            "/v1/responses",
            {
                "input": [
                    {"content": [{"text": "1234"}, {"image_url": "data:image/png;base64,AAAA"}]}
                ]
            },
            4,
        ),
        ("/v1/responses/compact", {"input": "1234"}, 4),
        ("/v1/completions", {"prompt": "1234"}, 4),
        ("/openai/deployments/mine/chat/completions", {"messages": [{"content": "1234"}]}, 4),
        (
            "/v1/responses",
            {"input": "1234", "tools": [{"name": "five5", "strict": True, "n": 1}]},
            9,
        ),
    ],
)
def test_characters_are_counted_where_the_text_is(
    path: str, told: dict[str, Any], characters: int
) -> None:
    """And no blob is a text."""
    assert asked(OPENAI, path, **told) == Asked("m", characters, None, True)


def test_embeddings_have_no_answer_and_may_come_as_tokens() -> None:
    assert asked(OPENAI, "/v1/embeddings", input=[[1, 2, 3], [4]]) == Asked("m", 16, None, False)


def test_how_long_an_answer_may_be_is_said_in_several_words() -> None:
    for word in ("max_tokens", "max_completion_tokens"):
        assert asked(OPENAI, "/chat/completions", **{word: 50}) == Asked("m", 0, 50, True)
    assert asked(OPENAI, "/chat/completions", max_tokens=50, n=3) == Asked("m", 0, 150, True)
    assert asked(OPENAI, "/responses", max_output_tokens=50) == Asked("m", 0, 50, True)
    assert asked(ANTHROPIC, "/v1/messages", max_tokens=50, system="12", messages=[]) == Asked(
        "m", 2, 50, True
    )
    assert asked(ANTHROPIC, "/v1/messages", max_tokens="many") == Asked("m", 0, None, True)


@pytest.mark.parametrize(
    "path", ["/v1/messages/count_tokens", "/v1/messages/batches", "/v1/models", "/v1/responses"]
)
def test_other_calls_take_no_tokens(path: str) -> None:
    assert asked(ANTHROPIC, path) is None


@pytest.mark.parametrize(
    ("method", "body"),
    [("GET", b'{"model": "m"}'), ("POST", b"{}"), ("POST", b"form"), ("POST", b"")],
)
def test_who_does_not_say_what_it_asks_for_is_not_counted(method: str, body: bytes) -> None:
    assert OPENAI.read_request(method, "/v1/responses", body) is None
