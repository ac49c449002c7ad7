"""Requests and responses are read byte by byte, without a client or a server."""

from __future__ import annotations

import gzip
import json
import zlib
from base64 import b64encode
from time import process_time
from typing import Any

import pytest

from examples.services.speech import frame_of
from headgate.http.anthropic import ANTHROPIC
from headgate.http.openai import OPENAI
from headgate.http.token_usage import (
    LARGEST,
    MOST,
    PIECE,
    Dialect,
    TokenRequest,
    Usage,
    UsageReader,
)
from tests.machine import scaled

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


def usage_of(dialect: Dialect, headers: dict[str, str], *chunks: bytes) -> Usage:
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
    ("dialect", "message", "usage"),
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
def test_the_usage_of_a_response_is_read(
    dialect: Dialect, message: dict[str, Any], usage: Usage
) -> None:
    """Tokens from Anthropic's cache do not count; a value that is no count is ignored."""
    assert usage_of(dialect, JSON, json.dumps(message).encode()) == usage


@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
def test_a_body_is_read_in_pieces_and_in_codings(coding: str) -> None:
    plain = json.dumps({"choices": ["x" * 100_000], **CHAT}).encode()
    pack = {"identity": bytes, "gzip": gzip.compress, "deflate": zlib.compress}[coding]
    data = pack(plain)
    pieces = [data[at : at + 7] for at in range(0, len(data), 7)]

    assert usage_of(OPENAI, {**JSON, "content-encoding": coding}, *pieces) == Usage(12, 34)


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_the_usage_is_found_in_an_event_of_a_stream(coding: str) -> None:
    """However the stream is cut into pieces."""
    plain = stream({"choices": [], "usage": None}, {"choices": [], **CHAT})
    data = gzip.compress(plain) if coding == "gzip" else plain
    for at in range(len(data)):
        assert usage_of(
            OPENAI, {**EVENTS, "content-encoding": coding}, data[:at], data[at:]
        ) == Usage(12, 34)


def test_a_chunk_may_hold_more_than_the_largest_event() -> None:
    """A proxy may send a whole stream of many small events as one compressed chunk."""
    events = [{"choices": ["x" * 1000]}] * (2 * LARGEST // 1000)
    data = gzip.compress(stream(*events, {"choices": [], **CHAT}))

    assert usage_of(OPENAI, {**EVENTS, "content-encoding": "gzip"}, data) == Usage(12, 34)


@pytest.mark.parametrize("size", range(PIECE - 3, PIECE + 4))
def test_no_byte_is_lost_between_two_pieces(size: int) -> None:
    plain = stream({"choices": [], **CHAT})
    data = gzip.compress(b"\n" * (size - len(plain)) + plain)

    assert usage_of(OPENAI, {**EVENTS, "content-encoding": "gzip"}, data) == Usage(12, 34)


def test_a_small_body_may_not_be_decompressed_for_ever() -> None:
    """S9: 100 MB of line ends in 100 kB. The usage behind them is not read."""
    bomb = gzip.compress(b"\n" * 100_000_000 + stream(CHAT))
    reader = UsageReader(OPENAI, {**EVENTS, "content-encoding": "gzip"})
    start = process_time()

    reader.read_chunk(bomb)

    assert process_time() - start < scaled(2.0)
    assert reader.usage() == Usage()


class Piece(bytes):
    """A chunk that knows how often it was searched."""

    looks = 0

    def partition(self, *arguments: Any) -> Any:
        self.looks += 1
        return super().partition(*arguments)


def test_a_long_event_is_searched_once() -> None:
    """S9: each of the thousand pieces of an event of a megabyte, such as a picture, is searched
    once.
    """
    data = stream({"choices": ["x" * 1_000_000], **CHAT})
    pieces = [Piece(data[at : at + 1000]) for at in range(0, len(data), 1000)]

    assert usage_of(OPENAI, EVENTS, *pieces) == Usage(12, 34)

    assert {piece.looks for piece in pieces} == {1}


def test_a_stream_of_responses_states_its_usage_at_its_end() -> None:
    begun = {"type": "response.created", "response": {"usage": None}}
    done = {"type": "response.completed", "response": RESPONSE}

    assert usage_of(OPENAI, EVENTS, stream(begun)) == Usage()
    assert usage_of(OPENAI, EVENTS, stream(begun, done)) == Usage(12, 34)


def test_the_first_event_of_a_message_states_its_input_only() -> None:
    begun = {"type": "message_start", "message": MESSAGE}
    delta = {"type": "message_delta", "usage": {"output_tokens": 77}}

    assert usage_of(ANTHROPIC, EVENTS, stream(begun)) == Usage(112, None)
    assert usage_of(ANTHROPIC, EVENTS, stream(begun, delta)) == Usage(112, 77)


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
def test_an_unreadable_body_is_ignored(headers: dict[str, str], body: bytes) -> None:
    """And so are the events after it."""
    assert usage_of(OPENAI, headers, body) == usage_of(OPENAI, headers, body, b"more") == Usage()


def asked(dialect: Dialect, path: str, **message: Any) -> TokenRequest | None:
    return dialect.read_request("POST", path, json.dumps({"model": "m", **message}).encode())


@pytest.mark.parametrize(
    ("path", "message", "characters"),
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
        ("/v1/responses", {"input": ["data:,1234", "data:text/plain;base64,AAAA"]}, 0),
        ("/v1/responses", {"input": ["data: 78", "data:678,123"]}, 8 + 12),
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
def test_characters_of_texts_are_counted(
    path: str, message: dict[str, Any], characters: int
) -> None:
    """And those of blobs are not."""
    assert asked(OPENAI, path, **message) == TokenRequest("m", characters, None, True)


TEXT = {"type": "text", "text": "12345678"}  # 12 characters, its type included
PNG = {"type": "base64", "media_type": "image/png", "data": "A" * 5000}


@pytest.mark.parametrize(
    ("dialect", "message", "characters", "attached"),
    [
        (ANTHROPIC, {"messages": [{"content": [{"type": "image", "source": PNG}]}]}, 0, "picture"),
        (ANTHROPIC, {"messages": [{"content": [{"type": "document", "source": PNG}]}]}, 0, "file"),
        (
            ANTHROPIC,
            {
                "messages": [
                    {
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [
                                    {
                                        "type": "image",
                                        "source": {"type": "url", "url": "https://host/a"},
                                    },
                                    TEXT,
                                ],
                            }
                        ]
                    }
                ]
            },
            11 + 12,
            "picture",
        ),
        (
            ANTHROPIC,
            {
                "messages": [
                    {
                        "content": [
                            {
                                "type": "document",
                                "source": {
                                    "type": "text",
                                    "media_type": "text/plain",
                                    "data": "1234567890" * 100,
                                },
                            }
                        ]
                    }
                ]
            },
            8 + 4 + 10 + 1000,
            "",
        ),
        (
            ANTHROPIC,
            {
                "messages": [
                    {
                        "content": [
                            {"type": "document", "source": {"type": "content", "content": [TEXT]}}
                        ]
                    }
                ]
            },
            8 + 7 + 12,
            "",
        ),
        (ANTHROPIC, {"tools": [{"type": "web_search_20250305", "name": "1234"}]}, 23, "context"),
        (
            ANTHROPIC,
            {"messages": [{"content": [{"thinking": "1234", "signature": "A" * 99}]}]},
            4,
            "",
        ),
        (
            OPENAI,
            {
                "messages": [
                    {
                        "content": [
                            {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
                            TEXT,
                        ]
                    }
                ]
            },
            12,
            "picture",
        ),
        (
            OPENAI,
            {"messages": [{"content": [{"type": "input_audio", "input_audio": PNG}]}]},
            0,
            "sound",
        ),
        (
            OPENAI,
            {"messages": [{"content": [{"type": "file", "file": {"file_id": "f"}}]}]},
            0,
            "file",
        ),
        (OPENAI, {"input": [{"type": "item_reference", "id": "i"}]}, 0, "context"),
        (OPENAI, {"input": "1234", "previous_response_id": "r"}, 4, "context"),
        (OPENAI, {"input": "1234", "conversation": {"id": "r"}}, 4, "context"),
        (OPENAI, {"prompt": {"id": "12345", "variables": {"a": "1234"}}}, 9, "context"),
        (OPENAI, {"tools": [{"type": "function", "name": "1234"}]}, 12, ""),
        (OPENAI, {"functions": [{"name": "1234", "parameters": {"type": "object"}}]}, 10, ""),
        (
            OPENAI,
            {"response_format": {"type": "json_schema", "json_schema": {"name": "1"}}},
            12,
            "",
        ),
        (OPENAI, {"text": {"format": {"type": "json_schema", "name": "1"}}}, 12, ""),
        (
            OPENAI,
            {"input": "1", "tools": ["x", 3, {"type": ["a"]}], "prompt": ["a"]},
            3 + 4 + 1,
            "",
        ),
    ],
)
def test_attachments_are_counted_apart_from_texts(
    dialect: Dialect, message: dict[str, Any], characters: int, attached: str
) -> None:
    path = "/v1/messages" if dialect is ANTHROPIC else "/v1/chat/completions"

    found = asked(dialect, path, **message)

    assert found is not None
    assert (found.characters, dict(found.attached)) == (
        characters,
        {attached: 1} if attached else {},
    )


def test_the_model_may_stand_in_the_path() -> None:
    """That of Vertex's call for a count of tokens is none."""
    body = b'{"messages": [{"content": "1234"}]}'
    models = {
        "/model/a.b-v1:0/invoke": "a.b-v1:0",
        "/model/m/invoke-with-response-stream": "m",
        "/v1/projects/p/locations/l/publishers/anthropic/models/m@1:rawPredict": "m@1",
        "/v1/projects/p/locations/l/publishers/anthropic/models/m:streamRawPredict": "m",
        "/v1/projects/p/locations/l/publishers/anthropic/models/count-tokens:rawPredict": None,
    }
    for path, model in models.items():
        found = ANTHROPIC.read_request("POST", path, body)
        assert (found and found[:2]) == (model and (model, 4))


def test_groqs_streams_state_their_usage_in_the_last_event() -> None:
    """The first event has an `x_groq` without a usage."""
    begun = {"choices": [], "usage": None, "x_groq": {"id": "r"}}
    done = {"choices": [], "usage": None, "x_groq": {"id": "r", **CHAT}}

    assert usage_of(OPENAI, EVENTS, stream(begun)) == Usage()
    assert usage_of(OPENAI, EVENTS, stream(begun, done)) == Usage(12, 34)


FRAMED = {"content-type": "application/vnd.amazon.eventstream"}


def frame(event: dict[str, Any]) -> bytes:
    return frame_of(json.dumps({"bytes": b64encode(json.dumps(event).encode()).decode()}).encode())


def test_the_usage_is_found_in_frames_however_they_are_cut() -> None:
    delta = {"type": "message_delta", "usage": {"output_tokens": 77}}
    data = frame({"type": "message_start", "message": MESSAGE}) + frame(delta)

    for at in range(len(data)):
        assert usage_of(ANTHROPIC, FRAMED, data[:at], data[at:]) == Usage(112, 77)


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 100,
        b"\xff" * 100,
        b"\0\0\0\x20" + b"\xff" * 100,
        frame_of(b"no json"),
        frame_of(b'{"bytes": "no base64!"}'),
        frame_of(b'{"bytes": 3}'),
        frame_of(b"{}")[:11],
    ],
)
def test_unreadable_frames_are_ignored(data: bytes) -> None:
    assert usage_of(ANTHROPIC, FRAMED, data, b"more") == Usage()


def test_embeddings_have_no_output_and_may_be_given_as_tokens() -> None:
    assert asked(OPENAI, "/v1/embeddings", input=[[1, 2, 3], [4]]) == TokenRequest(
        "m", 16, None, False
    )


def test_each_word_for_the_longest_response_is_read() -> None:
    for word in ("max_tokens", "max_completion_tokens"):
        assert asked(OPENAI, "/chat/completions", **{word: 50}) == TokenRequest("m", 0, 50, True)
    assert asked(OPENAI, "/chat/completions", max_tokens=50, n=3) == TokenRequest("m", 0, 150, True)
    assert asked(OPENAI, "/responses", max_output_tokens=50) == TokenRequest("m", 0, 50, True)
    assert asked(
        ANTHROPIC, "/v1/messages", max_tokens=50, system="12", messages=[]
    ) == TokenRequest("m", 2, 50, True)
    assert asked(ANTHROPIC, "/v1/messages", max_tokens="many") == TokenRequest("m", 0, None, True)


@pytest.mark.parametrize(
    "path", ["/v1/messages/count_tokens", "/v1/messages/batches", "/v1/models", "/v1/responses"]
)
def test_other_calls_take_no_tokens(path: str) -> None:
    assert asked(ANTHROPIC, path) is None


@pytest.mark.parametrize(
    ("method", "body"),
    [("GET", b'{"model": "m"}'), ("POST", b"{}"), ("POST", b"form"), ("POST", b"")],
)
def test_a_request_without_a_model_is_not_counted(method: str, body: bytes) -> None:
    assert OPENAI.read_request(method, "/v1/responses", body) is None
