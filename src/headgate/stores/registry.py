"""The choice of a store from the user's argument. redis-py is imported only for a Redis store.

It also registers the last delivery of releases and changes, at the interpreter's end.
"""

from __future__ import annotations

import atexit
import sys
from typing import TYPE_CHECKING, Any

from headgate.stores.memory.store import MemoryStore

if TYPE_CHECKING:
    from headgate.interfaces import Store

REDIS_SCHEMES = (
    "redis",
    "rediss",
    "unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
)
# None, a URL, a redis.Redis or a redis.asyncio.Redis. The core does not import their types.
StoreLike = Any

LONGEST_SHOWN = 64  # characters of a wrong URL in a message

MEMORY = MemoryStore()
by_url: dict[str, Store] = {}  # stores by their URLs


def store_of(where: StoreLike) -> Store:
    """The store that `where` names.

    Sends nothing. The first acquire connects.
    """
    if where is None:
        return MEMORY
    if isinstance(where, str):
        return by_url.get(where) or by_url.setdefault(where, _find_or_make(where))
    return where if isinstance(where, MemoryStore) else _find_or_make(where)


def _find_or_make(where: StoreLike) -> Store:
    """The store of a URL or a client object: one for the same servers and settings."""
    if isinstance(where, str):
        if where == "memory://":
            return MEMORY
        scheme, separator, _ = where.partition("://")
        if not separator or scheme not in REDIS_SCHEMES:
            raise ValueError(
                f"store={without_password(where)!r} names no store that headgate knows; write "
                "'memory://', or a redis://, rediss://, unix://, redis+sentinel:// or "
                "redis+cluster:// URL."
            )
    try:
        from headgate.stores.redis import redis_store
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("redis", "hiredis"):
            raise
        raise ImportError(
            f"A Redis store needs redis-py and hiredis, and {missing.name} is not installed: "
            "pip install 'headgate[redis]' brings both."
        ) from missing
    return redis_store(where)


def _end() -> None:
    shutdown = sys.modules.get("headgate.stores.redis.transport.shutdown")
    if shutdown is not None:
        shutdown.deliver_at_exit()


# Python calls the callbacks of atexit in reverse order. The import of headgate registers this one,
# so it runs after the program's own callbacks. One of those may be the first use of a Redis store.
atexit.register(_end)


def check_portable(call: str, where: StoreLike) -> None:
    """TypeError for a store that another process cannot find: a pickle names its store by a URL."""
    if not (where is None or isinstance(where, str)):
        raise TypeError(
            f"{call} cannot be pickled: its store is a {type(where).__name__} object, which "
            "belongs to this process; make it with the URL of the store, such as "
            "store='redis://localhost:6379'."
        )


def without_password(text: str) -> str:
    """A wrong URL for a message, without the parts that may hold a password."""
    plain = text.partition("?")[0].partition("#")[0]
    if "@" in text[len(plain) :]:  # "?" or "#" may be part of a password
        return "..."
    _, at, host = plain.rpartition("@")
    shown = f"...@{host}" if at else host
    return shown if len(shown) <= LONGEST_SHOWN else f"{shown[:LONGEST_SHOWN]}..."
