"""The one Lua script, put together from its files: the gate's twins and what surrounds them on a server.

Here lives the only loader of Lua. The text is constant: whatever a user names or numbers travels as an argument.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

PARTS = (
    "stores/redis/clock.lua",
    "stores/redis/state.lua",
    "gate/bucket.lua",
    "gate/window.lua",
    "gate/quota.lua",
    "gate/slots.lua",
    "stores/redis/rules.lua",
    "gate/gate.lua",
    "stores/redis/sessions.lua",
    "stores/redis/call.lua",
)


@cache
def source(part: str) -> str:
    return files("headgate").joinpath(part).read_text(encoding="utf-8")


@cache
def script() -> bytes:
    return "\n".join(source(part) for part in PARTS).encode()


@cache
def digest() -> str:
    """What EVALSHA asks for: SHA-1 is the protocol's name of a script, no secret."""
    return hashlib.sha1(script(), usedforsecurity=False).hexdigest()
