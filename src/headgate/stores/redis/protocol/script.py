"""The Lua, put together from its files: the gate's twins, and the parts around them in lua/.

This is the only loader of Lua. The text is constant: names and numbers of a user are arguments. A
server with functions (Redis 7, Valkey) loads the text once, as a library. Any other server gets it
as scripts, and makes all of it anew for each call (benchmarks, semaphore-one).
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
LUA = "stores/redis/lua"
# the parts that fast_acquire.lua needs: a server without functions makes it anew for each call
QUICK = (
    "numbers",
    "membership",
    "window_log",
    "limits",
    "state",
    "reply_cache",
    "expiry",
    "holders",
    "sessions",
    "fast_acquire",
)
WHOLE = (  # each part calls only those before it
    "numbers",
    "membership",
    "window_log",
    "limits",
    "state",
    "gate",
    "request_id",
    "reply_cache",
    "expiry",
    "holders",
    "sessions",
    "outbox",
    "queue",
    "repair",
    "limits_history",
    "setup",
    "operations",
    "main",
)
PARTS = ("clock", "prelude", *KINDS.values(), *WHOLE, "fast_acquire", "library")


def sources() -> dict[str, str]:
    """The text of each part."""
    return {
        part: files("headgate")
        .joinpath(f"{folder_of(part)}/{part}.lua")
        .read_text(encoding="utf-8")
        for part in PARTS
    }


def folder_of(part: str) -> str:
    return "gate" if part in (*KINDS.values(), "gate") else LUA


class Script(NamedTuple):
    """A program of the Lua: a function by its name, or a script by its text or digest."""

    function: str
    text: bytes
    digest: str


class Library:
    """All of headgate's Lua.

    `whole` carries out any call. `back` is the same for calls without acquires. Most of them give
    something back, so a server that is out of memory must not refuse them. `quick` is one acquire
    that can pass at once; otherwise it does nothing.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        text = composed(sources, (*WHOLE, "fast_acquire"))
        name = f"headgate_{digest_of(text)}"
        programs = "{ main = Main.run, fast_acquire = FastAcquire.run }"
        made = f"local function made()\n{text}\nReplyCache.begin_run()\nreturn {programs}\nend"
        self.text = (
            f"#!lua name={name}\nlocal NAME = '{name}'\n{made}\n{sources['library']}".encode()
        )
        self.whole = script(name, composed(sources, WHOLE), "Main")
        self.back = self.whole._replace(function=f"{name}_back")
        self.quick = script(f"{name}_quick", composed(sources, QUICK), "FastAcquire")


def composed(sources: Mapping[str, str], parts: tuple[str, ...]) -> str:
    """The parts one after another. The rules of a kind are made when a limiter needs them."""
    text = [sources["clock"], sources["prelude"]]
    text += [f"Kinds.{kind} = function()\n{sources[file]}\nend" for kind, file in KINDS.items()]
    text += [f"do\n{sources[part]}\nend" for part in parts]
    return "\n".join(text)


def script(function: str, text: str, program: str) -> Script:
    text = f"{text}\nreturn {program}.run(KEYS, ARGV)"
    return Script(function, text.encode(), digest_of(text))


def digest_of(text: str) -> str:
    """SHA-1, by which EVALSHA knows a script: the protocol's choice, and no secret."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def library() -> Library:
    return Library(sources())
