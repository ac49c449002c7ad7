"""The Lua scripts, put together from their files: the gate's twins and the parts around them.

All Lua is loaded here. The text is constant: a user's names and numbers travel as arguments. A
server with functions (Redis 7, Valkey) loads the text once, as a library. Any other server gets it
as scripts, which build all of it again for each call (benchmarks, semaphore-one).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

KINDS = ("bucket", "window", "quota", "slots")
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
PARTS = ("clock", "shared", *KINDS, *WHOLE, "quick", "library")


def sources() -> dict[str, str]:
    """Read the text of each part."""
    return {
        part: files("headgate")
        .joinpath(f"{folder_of(part)}/{part}.lua")
        .read_text(encoding="utf-8")
        for part in PARTS
    }


def folder_of(part: str) -> str:
    return "gate" if part in (*KINDS, "gate") else "stores/redis"


class Script(NamedTuple):
    """One way to call the Lua: a function by its name, or a script by its text or digest."""

    function: str
    text: bytes
    digest: str


class Library:
    """All of headgate's Lua, as three entries.

    `whole` runs any call. `back` runs the same for calls that only give something back: a server
    without free memory must not refuse them. `quick` runs one acquire that can pass this instant.
    If it cannot, `quick` changes nothing.
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
    """Join the parts in order. The code of a kind of limit runs only when a limiter has such a
    limit.
    """
    text = [sources["clock"], sources["shared"]]
    text += [f"Kinds.{kind} = function()\n{sources[kind]}\nend" for kind in KINDS]
    text += [f"do\n{sources[part]}\nend" for part in parts]
    return "\n".join(text)


def script(function: str, text: str, call: str) -> Script:
    text = f"{text}\nreturn Calls.{call}(KEYS, ARGV)"
    return Script(function, text.encode(), digest_of(text))


def digest_of(text: str) -> str:
    """The SHA-1 by which EVALSHA knows a script. The protocol demands it; it guards no secret."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def library() -> Library:
    return Library(sources())
