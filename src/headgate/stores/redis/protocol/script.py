"""The only loader of Lua: the gate's twins, and the parts around them in lua/.

The text is constant: names and numbers of a user are arguments. A server with functions (Redis 7,
Valkey) loads it once, as a library. Any other server makes all of it anew for each call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pkgutil import get_data
from typing import NamedTuple

KINDS = {  # the file of each kind of limit
    "bucket": "token_bucket",
    "window": "sliding_window",
    "quota": "fixed_window",
    "slots": "concurrency",
}
LUA = "stores/redis/lua"
# Each part calls only those before it. The first list has all that fast_acquire.lua needs.
FAST = (
    "numbers",
    "membership",
    "limits",
    "state",
    "gate",
    "request_id",
    "reply_cache",
    "sessions",
    "expiry",
    "holders",
    "fast_acquire",
)
REST = (
    "outbox",
    "queue",
    "repair",
    "limits_history",
    "setup",
    "operations",
    "tidy",
    "main",
)
# No part calls `index` or `forget`. Of the others, `index` needs the clock alone.
PARTS = ("clock", "prelude", *KINDS.values(), *FAST, *REST, "index", "forget", "library")


def sources() -> dict[str, str]:
    """The text of each part."""
    return {part: read(f"{folder_of(part)}/{part}.lua") for part in PARTS}


def read(path: str) -> str:
    text = get_data("headgate", path)
    assert text is not None, "headgate is installed with its Lua"
    return text.decode()


def folder_of(part: str) -> str:
    return "gate" if part in (*KINDS.values(), "gate") else LUA


class Script(NamedTuple):
    """A function by its name, or a script by its text or digest."""

    function: str
    text: bytes
    digest: str


class Library:
    """All of headgate's Lua.

    `whole` carries out any call. `without_acquires` does so for such calls, even if the server is
    out of memory. `fast` is one acquire that can pass at once; otherwise it does nothing. `index`
    keeps the index of names, and knows no limits. `forget` drops the state of an idle name.
    """

    def __init__(self, sources: Mapping[str, str]) -> None:
        fast, rest = composed(sources, FAST), blocks(sources, REST)
        index = f"local Index\ndo\n{sources['index']}\nend\n"
        forget = f"local Forget\ndo\n{sources['forget']}\nend\n"
        apart = index + forget
        name = f"headgate_{digest_of(fast + rest + apart)}"
        self.text = (
            f"#!lua name={name}\nlocal NAME = '{name}'\nlocal function make_programs()\n"
            f"{fast}{rest}{apart}"
            "ReplyCache.begin_run()\n"
            "local function whole(keys, args)\n"
            "return FastAcquire.run(keys, args) or Main.run(keys, args)\nend\n"
            "return { whole = whole, fast = FastAcquire.run, index = Index.run, "
            "forget = Forget.run }\nend\n"
            f"{sources['library']}"
        ).encode()
        # As a script, the rest is defined only if the fast path does not carry the call out.
        at_once = "local reply = FastAcquire.run(KEYS, ARGV)\n"
        whole = f"{fast}{at_once}if reply then return reply end\n{rest}return Main.run(KEYS, ARGV)"
        self.whole = script(name, whole)
        # As a function, it has the flag allow-oom (library.lua). As a script, it is the same.
        self.without_acquires = self.whole._replace(function=f"{name}_back")
        self.fast = script(f"{name}_fast", f"{fast}{at_once}return reply")
        self.index = script(
            f"{name}_index", f"{sources['clock']}{index}return Index.run(KEYS, ARGV)"
        )
        self.forget = script(f"{name}_forget", f"{fast}{forget}return Forget.run(KEYS)")


def composed(sources: Mapping[str, str], parts: tuple[str, ...]) -> str:
    """The beginning of all Lua, and `parts`. The rules of a kind are made when needed."""
    kinds = [f"Kinds.{kind} = function()\n{sources[file]}\nend" for kind, file in KINDS.items()]
    return "\n".join([sources["clock"], sources["prelude"], *kinds, blocks(sources, parts)])


def blocks(sources: Mapping[str, str], parts: tuple[str, ...]) -> str:
    """Each part in a block of its own, which hides its local names."""
    return "".join(f"do\n{sources[part]}\nend\n" for part in parts)


def script(function: str, text: str) -> Script:
    return Script(function, text.encode(), digest_of(text))


def digest_of(text: str) -> str:
    """SHA-1, by which EVALSHA knows a script: the protocol's choice, and no secret."""
    return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


@cache
def library() -> Library:
    return Library(sources())


library()  # Read it with this module, because a call must not fail for want of a file or an import.
