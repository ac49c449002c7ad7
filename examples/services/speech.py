"""How language models are spoken with: OpenAI's chat completions, responses and embeddings, and
Anthropic's messages, also as Groq, Azure, Bedrock and Vertex offer them.

This module has the meaning of bytes, of requests, answers, streams, refusals and headers; nothing
is sent, and only words are counted. "Say 30 words" is answered with 30 words; a word of an answer
is a token, and so are five characters of a question.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

CHARACTERS = 5  # to a token
USUAL = 20  # words of an answer, if the call states no number
SPENT = "quota"  # a permanent refusal; only the body says so
Told = dict[str, Any]
Event = tuple[str, Told]  # a name, or none, and its content
TEXT_OF = {"messages": "content", "input": "content", "prompt": "", "system": "text"}
PICTURE, FILE = 700, 2500  # tokens
SIZES = {
    **dict.fromkeys(("image", "image_url", "input_image"), PICTURE),
    **dict.fromkeys(("document", "file", "input_file"), FILE),
}
MODEL_IN_PATH = re.compile(r"/models?/([^/:]+)")


@dataclass(frozen=True)
class Call:
    """One call, as the service understands it."""

    model: str
    into: int
    out: int
    streamed: bool
    counted: bool  # whether a stream of chat completions is to say its usage
    in_background: bool = False

    @property
    def words(self) -> list[str]:
        return [f"word{number} " for number in range(self.out)]

    @property
    def text(self) -> str:
        return "".join(self.words)


def call_of(path: str, body: bytes, *, silent: bool) -> Call:
    told = json.loads(body)
    parts = list(parts_of(told))
    text = " ".join(filter(None, (each for each in parts if isinstance(each, str))))
    attached = sum(each for each in parts if isinstance(each, int))
    wanted = re.search(r"(\d+) words", text)
    most = next(
        (
            told[word]
            for word in ("max_tokens", "max_completion_tokens", "max_output_tokens")
            if told.get(word)
        ),
        10**9,
    )
    out = 0 if silent else min(most, int(wanted[1]) if wanted else USUAL)
    counted = bool((told.get("stream_options") or {}).get("include_usage"))
    found = MODEL_IN_PATH.search(path)
    return Call(
        told.get("model") or (found[1] if found else ""),
        ceil(len(text) / CHARACTERS) + attached,
        out,
        bool(told.get("stream")) or path.endswith(("-stream", ":streamRawPredict")),
        counted,
        bool(told.get("background")),
    )


def parts_of(told: Told) -> Iterator[str | int]:
    """The texts of a request, and the tokens of its pictures and files."""
    for word, inside in TEXT_OF.items():
        value = told.get(word, "")
        for each in [value] if isinstance(value, str) else value:
            content = each if isinstance(each, str) else each[inside]
            if isinstance(content, str):
                yield content
            else:
                yield from (SIZES.get(part["type"]) or part["text"] for part in content)


class OpenAI:
    """The common part of its answers of all kinds."""

    silent = False
    stream_type = "text/event-stream"

    def pack(self, name: str, told: Told) -> bytes:
        return event_of(name, told)

    def headers(self, said: dict[str, tuple[int, int, float]]) -> dict[str, str]:
        found = {}
        for unit in said.keys() & {"requests", "tokens"}:
            limit, remaining, reset = said[unit]
            found[f"x-ratelimit-limit-{unit}"] = str(limit)
            found[f"x-ratelimit-remaining-{unit}"] = str(remaining)
            found[f"x-ratelimit-reset-{unit}"] = (
                f"{int(reset // 60)}m{reset % 60:.3f}s" if reset >= 60 else f"{reset:.3f}s"
            )
        return found

    def refusal(self, unit: str) -> Told:
        if unit == SPENT:
            code = "insufficient_quota"
            return {
                "error": {
                    "message": "There is no quota left on this account.",
                    "type": code,
                    "param": None,
                    "code": code,
                }
            }
        message = f"Rate limit reached for {unit}. Please try again."
        return {
            "error": {
                "message": message,
                "type": unit,
                "param": None,
                "code": "rate_limit_exceeded",
            }
        }

    def usage(self, call: Call) -> Told:
        return {
            "prompt_tokens": call.into,
            "completion_tokens": call.out,
            "total_tokens": call.into + call.out,
        }


class Chat(OpenAI):
    """POST /v1/chat/completions"""

    last = b"data: [DONE]\n\n"

    def answer(self, call: Call) -> Told:
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": call.text},
            "finish_reason": "stop",
        }
        return {
            **self._head(call, "chat.completion"),
            "choices": [choice],
            "usage": self.usage(call),
        }

    def events(self, call: Call) -> Iterator[Event]:
        head = self._head(call, "chat.completion.chunk")
        more = {"usage": None} if call.counted else {}
        for word in call.words:
            yield (
                "",
                {
                    **head,
                    "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}],
                    **more,
                },
            )
        yield "", {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **more}
        if call.counted:
            yield "", {**head, "choices": [], "usage": self.usage(call)}

    def _head(self, call: Call, kind: str) -> Told:
        return {"id": "chatcmpl-1", "object": kind, "created": 0, "model": call.model}


class Groq(Chat):
    """The usage of a stream stands in its last event, at a place of its own."""

    def events(self, call: Call) -> Iterator[Event]:
        *events, (name, end) = super().events(call)
        yield from events
        yield name, {**end, "x_groq": {"id": "req_1", "usage": self.usage(call)}}


class Responses(OpenAI):
    """POST /v1/responses"""

    last = b""

    def begun(self, call: Call) -> Told:
        """A response that is made in the background."""
        return {**self._head(call), "status": "queued", "output": [], "usage": None}

    def answer(self, call: Call) -> Told:
        message = self._message("completed", [self._part(call.text)])
        usage = {
            "input_tokens": call.into,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": call.out,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": call.into + call.out,
        }
        return {**self._head(call), "status": "completed", "output": [message], "usage": usage}

    def events(self, call: Call) -> Iterator[Event]:
        begun = {**self._head(call), "status": "in_progress", "output": [], "usage": None}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        told: list[tuple[str, Told]] = [
            ("response.created", {"response": begun}),
            (
                "response.output_item.added",
                {"output_index": 0, "item": self._message("in_progress", [])},
            ),
            ("response.content_part.added", {**place, "part": self._part("")}),
            *(
                ("response.output_text.delta", {**place, "delta": word, "logprobs": []})
                for word in call.words
            ),
            ("response.completed", {"response": self.answer(call)}),
        ]
        for number, (kind, event) in enumerate(told):
            yield kind, {"type": kind, "sequence_number": number, **event}

    def _message(self, status: str, content: list[Told]) -> Told:
        return {
            "type": "message",
            "id": "msg_1",
            "status": status,
            "role": "assistant",
            "content": content,
        }

    def _part(self, text: str) -> Told:
        return {"type": "output_text", "text": text, "annotations": []}

    def _head(self, call: Call) -> Told:
        fixed = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {"id": "resp_1", "object": "response", "created_at": 0, "model": call.model, **fixed}


class Embeddings(OpenAI):
    """POST /v1/embeddings"""

    silent = True
    last = b""

    def answer(self, call: Call) -> Told:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.5]}]
        usage = {"prompt_tokens": call.into, "total_tokens": call.into}
        return {"object": "list", "model": call.model, "data": data, "usage": usage}

    def events(self, call: Call) -> Iterator[Event]:
        return iter(())


class Messages:
    """POST /v1/messages"""

    silent = False
    last = b""
    stream_type = "text/event-stream"

    def pack(self, name: str, told: Told) -> bytes:
        return event_of(name, told)

    def headers(self, said: dict[str, tuple[int, int, float]]) -> dict[str, str]:
        found = {}
        for unit, (limit, remaining, reset) in said.items():
            name = f"anthropic-ratelimit-{unit.replace('_', '-')}"
            whole = remaining if unit == "requests" else round(remaining, -3)
            moment = datetime.now(UTC) + timedelta(seconds=reset)
            found.update({f"{name}-limit": str(limit), f"{name}-remaining": str(whole)})
            found[f"{name}-reset"] = moment.isoformat(timespec="seconds").replace("+00:00", "Z")
        return found

    def refusal(self, unit: str) -> Told:
        message = f"This request would exceed your rate limit of {unit}."
        details = (
            {"details": {"error_code": "enforced_spend_limit_reached"}} if unit == SPENT else {}
        )
        return {
            "type": "error",
            "error": {"type": "rate_limit_error", "message": message, **details},
        }

    def answer(self, call: Call) -> Told:
        done = {"stop_reason": "end_turn", "content": [{"type": "text", "text": call.text}]}
        return {
            **self._head(call),
            **done,
            "usage": {**self._into(call), "output_tokens": call.out},
        }

    def events(self, call: Call) -> Iterator[Event]:
        usage = {**self._into(call), "output_tokens": 1}
        yield from self._said("message_start", message={**self._head(call), "usage": usage})
        yield from self._said(
            "content_block_start", index=0, content_block={"type": "text", "text": ""}
        )
        for word in call.words:
            yield from self._said(
                "content_block_delta", index=0, delta={"type": "text_delta", "text": word}
            )
        yield from self._said("content_block_stop", index=0)
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        yield from self._said("message_delta", delta=end, usage={"output_tokens": call.out})
        yield from self._said("message_stop")

    def _said(self, kind: str, **rest: Any) -> Iterator[Event]:
        yield kind, {"type": kind, **rest}

    def _head(self, call: Call) -> Told:
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": call.model}
        return {**head, "content": [], "stop_reason": None, "stop_sequence": None}

    def _into(self, call: Call) -> Told:
        return {
            "input_tokens": call.into,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        }


class Bedrock(Messages):
    """POST /model/m/invoke, and /model/m/invoke-with-response-stream: events in frames of AWS."""

    stream_type = "application/vnd.amazon.eventstream"

    def pack(self, name: str, told: Told) -> bytes:
        event = b64encode(json.dumps(told).encode()).decode()
        return frame_of(json.dumps({"bytes": event, "p": "abcd"}).encode())


Speech = Chat | Responses | Embeddings | Messages
SPEECHES: dict[str, Speech] = {  # by the end of the path
    "/openai/v1/chat/completions": Groq(),
    "/chat/completions": Chat(),
    "/responses": Responses(),
    "/embeddings": Embeddings(),
    "/messages": Messages(),
    "/invoke": Bedrock(),
    "/invoke-with-response-stream": Bedrock(),
    ":rawPredict": Messages(),
    ":streamRawPredict": Messages(),
}


def speech_of(path: str) -> Speech:
    return next(speech for end, speech in SPEECHES.items() if path.endswith(end))


def frame_of(payload: bytes) -> bytes:
    """A message of application/vnd.amazon.eventstream."""
    words = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
    headers = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()
        for name, value in words.items()
    )
    sizes = (16 + len(headers) + len(payload)).to_bytes(4) + len(headers).to_bytes(4)
    message = sizes + zlib.crc32(sizes).to_bytes(4) + headers + payload
    return message + zlib.crc32(message).to_bytes(4)


def without_usage(told: Told) -> Told:
    """As answers of some servers are."""
    return {
        word: without_usage(value) if isinstance(value, dict) else value
        for word, value in told.items()
        if word != "usage"
    }


def event_of(name: str, told: Told) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(told, separators=(',', ':'))}\n\n".encode()
