"""How language models are spoken with: OpenAI's chat completions, responses and embeddings, and
Anthropic's messages.

This module has the meaning of bytes, of requests, answers, streams, refusals and headers; nothing
is sent, and only words are counted. "Say 30 words" is answered with 30 words; a word of an answer
is a token, and so are five characters of a question.
"""

from __future__ import annotations

import json
import re
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


@dataclass(frozen=True)
class Call:
    """One call, as the service understands it."""

    model: str
    into: int
    out: int
    streamed: bool
    counted: bool  # whether a stream of chat completions is to say its usage

    @property
    def words(self) -> list[str]:
        return [f"word{number} " for number in range(self.out)]

    @property
    def text(self) -> str:
        return "".join(self.words)


def call_of(body: bytes, *, silent: bool) -> Call:
    told = json.loads(body)
    text = " ".join(filter(None, texts(told)))
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
    return Call(told["model"], ceil(len(text) / CHARACTERS), out, bool(told.get("stream")), counted)


def texts(told: Told) -> Iterator[str]:
    for word, inside in TEXT_OF.items():
        value = told.get(word, "")
        yield from (
            [value]
            if isinstance(value, str)
            else [each if isinstance(each, str) else each[inside] for each in value]
        )


class OpenAI:
    """The common part of its answers of all kinds."""

    silent = False

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


class Responses(OpenAI):
    """POST /v1/responses"""

    last = b""

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


Speech = Chat | Responses | Embeddings | Messages
SPEECHES: dict[str, Speech] = {
    "/v1/chat/completions": Chat(),
    "/v1/responses": Responses(),
    "/v1/embeddings": Embeddings(),
    "/v1/messages": Messages(),
}


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
