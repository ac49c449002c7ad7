"""The one Lua script, put together from its files: the gate's twins and what surrounds them on a server.

Here lives the only loader of Lua. The text is constant: whatever a user names or numbers travels as an argument.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

KINDS = ("bucket", "window", "quota", "slots")
PARTS = ("state", "rules", "gate", "sessions", "requests")


def source(part: str) -> str:
    folder = "gate" if part in (*KINDS, "gate") else "stores/redis"
    return files("headgate").joinpath(f"{folder}/{part}.lua").read_text(encoding="utf-8")


def composed(clock: str) -> bytes:
    """The script, told the time by `clock`. A kind is made only when a limiter has it: most of a call is the making of functions."""
    text = [clock, source("shared")]
    text += [f"Kinds.{kind} = function()\n{source(kind)}\nend" for kind in KINDS]
    text += [f"do\n{source(part)}\nend" for part in PARTS]
    return "\n".join([*text, source("call")]).encode()


@cache
def script() -> bytes:
    return composed(source("clock"))


@cache
def digest() -> str:
    """What EVALSHA asks for: SHA-1 is the protocol's name of a script, no secret."""
    return hashlib.sha1(script(), usedforsecurity=False).hexdigest()
