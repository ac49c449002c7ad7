"""The Lua scripts, put together from their files: the gate's twins and what surrounds them on a server.

Here lives the only loader of Lua. The text is constant: whatever a user names or numbers travels as an argument.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

KINDS = ("bucket", "window", "quota", "slots")
WHOLE = ("state", "rules", "promises", "queue", "declare", "gate", "sessions", "requests", "call")
QUICK = ("state", "rules", "promises", "quick")


def source(part: str) -> str:
    folder = "gate" if part in (*KINDS, "gate") else "stores/redis"
    return files("headgate").joinpath(f"{folder}/{part}.lua").read_text(encoding="utf-8")


def composed(clock: str, parts: tuple[str, ...] = WHOLE) -> bytes:
    """A script, told the time by `clock`. A kind is made only when a limiter has it: most of a call is the making of functions."""
    text = [clock, source("shared")]
    text += [f"Kinds.{kind} = function()\n{source(kind)}\nend" for kind in KINDS]
    text += [f"do\n{source(part)}\nend" for part in parts[:-1]]
    return "\n".join([*text, source(parts[-1])]).encode()


class Script:
    """A script and the name that EVALSHA knows it by: SHA-1 is the protocol's choice, and no secret."""

    def __init__(self, parts: tuple[str, ...]) -> None:
        self.text = composed(source("clock"), parts)
        self.digest = hashlib.sha1(self.text, usedforsecurity=False).hexdigest()


@cache
def whole() -> Script:
    """Any call."""
    return Script(WHOLE)


@cache
def quick() -> Script:
    """One acquire that can pass this instant; otherwise it does nothing."""
    return Script(QUICK)
