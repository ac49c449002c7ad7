"""Names are data: the one place where a user's name becomes part of a key.

Everything but letters, digits, `_`, `.`, `-` and `~` is percent-encoded, byte by byte, so that no name can break a key, leave
its hash tag or meet another name.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote


@lru_cache(maxsize=1024)
def encoded(name: str, key: str | None = None) -> str:
    """`name`, and the key of a keyed limiter, as text that two different pairs never share."""
    return quote(name, safe="") if key is None else f"{quote(name, safe='')}:{quote(key, safe='')}"
