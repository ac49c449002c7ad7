"""The one place where a user's name becomes part of a key.

Every character but letters, digits, `_`, `.`, `-` and `~` is percent-encoded, byte by byte. So no
name can break a key, leave its hash tag or equal another name.
"""

from __future__ import annotations

import re
from functools import lru_cache

PLAIN = re.compile("[A-Za-z0-9_.~-]*")  # texts that `quote` does not change
is_plain_key = re.compile("[A-Za-z0-9_.~-]{1,256}").fullmatch  # and of a key's length


def encoded(name: str, key: str | None = None) -> str:
    """`name` and the key of a keyed limiter as one text, different for each pair."""
    whole = encoded_name(name)
    return whole if key is None else f"{whole}:{quoted(key)}"


def quoted(text: str) -> str:
    if PLAIN.fullmatch(text):
        return text
    from urllib.parse import quote  # most names do not need it, and its import takes long

    return quote(text, safe="")


def unquoted(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote  # as above

    return unquote(text)


encoded_name = lru_cache(maxsize=1024)(quoted)  # not of keys: there may be too many


def title(name: str) -> str:
    """An encoded name as messages show it: `limiter 'api'['key']`, or `Semaphore 'api'`."""
    kind, slash, rest = name.partition("/")
    if slash:  # a classic, or a call such as "headgate.names()/": no encoded name has a "/"
        return f"{kind} {unquoted(rest)!r}" if rest else kind
    whole, colon, key = name.partition(":")
    return f"limiter {unquoted(whole)!r}" + (f"[{unquoted(key)!r}]" if colon else "")


def whole_of(queue: str) -> str | None:
    """The encoded name of the whole limiter, if `queue` is that of a key."""
    whole, colon, _ = queue.partition(":")
    return whole if colon else None


def names_of(queue: str) -> tuple[str, str | None]:
    """The name and the key of a queue, from its encoded name."""
    name, colon, key = queue.partition(":")
    return unquoted(name), unquoted(key) if colon else None
