"""The Lua, put together from its files: the gate's twins and what surrounds them on a server.

Here lives the only loader of Lua. The text is constant: whatever a user names or numbers travels as an argument. A server that has
functions (Redis 7, Valkey) loads it once as a library and calls it; any other is given it as scripts, which make all of it anew for
each call (benchmarks, semaphore-one).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

KINDS = {  # the file of each kind of limit, by the word for it in a declaration
    "bucket": "token_bucket",
    "window": "sliding_window",
    "quota": "fixed_window",
    "slots": "concurrency",
}
PLACES = ("who", "log")
QUICK = ("state", *PLACES, "rules", "numbers", "promises", "replies", "quick")
WHOLE = (
    "state",
    *PLACES,
    "rules",
    "numbers",
    "promises",
    "replies",
    "queue",
    "declare",
    "gate",
    "sessions",
    "requests",
    "call",
)
PARTS = ("clock", "shared", *KINDS.values(), *WHOLE, "quick", "library")


def sources() -> dict[str, str]:
    """The text of each part."""
    return {
        part: files("headgate")
        .joinpath(f"{folder_of(part)}/{part}.lua")
        .read_text(encoding="utf-8")
        for part in PARTS
    }


def folder_of(part: str) -> str:
    return "gate" if part in (*KINDS.values(), "gate") else "stores/redis"


class Script(NamedTuple):
    """One way to be called: as a function by its name, or as a script by its text or the digest of it."""

    function: str
    text: bytes
    digest: str


class Library:
    """All of headgate's Lua: `whole` is any call; `back` is the same for calls that only give back, which a server that is out of
    memory must not refuse; `quick` is one acquire that can pass this instant, and otherwise nothing at all.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        text = composed(sources, (*WHOLE, "quick"))
        name = f"headgate_{digest_of(text)}"
        made = f"local function made()\n{text}\nCalls.begin_run()\nreturn Calls\nend"
        self.text = (
            f"#!lua name={name}\nlocal NAME = '{name}'\n{made}\n{sources['library']}".encode()
        )
        self.whole = script(name, composed(sources, WHOLE), "whole")
        self.back = self.whole._replace(function=f"{name}_back")
        self.quick = script(f"{name}_quick", composed(sources, QUICK), "quick")


def composed(sources: Mapping[str, str], parts: tuple[str, ...]) -> str:
    """The parts one after another. A kind is made only when a limiter has it."""
    text = [sources["clock"], sources["shared"]]
    text += [f"Kinds.{kind} = function()\n{sources[file]}\nend" for kind, file in KINDS.items()]
    text += [f"do\n{sources[part]}\nend" for part in parts]
    return "\n".join(text)


def script(function: str, text: str, call: str) -> Script:
    text = f"{text}\nreturn Calls.{call}(KEYS, ARGV)"
    return Script(function, text.encode(), digest_of(text))


def digest_of(text: str) -> str:
    """SHA-1, by which EVALSHA knows a script: the protocol's choice, and no secret."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def library() -> Library:
    return Library(sources())
