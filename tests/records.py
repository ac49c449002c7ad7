"""The records of sessions, as a server keeps them (reply_cache.lua)."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack
from redis import Redis


class Record(NamedTuple):
    """`life`: 0 if the session is over. `words`: the verdict, or the words after "ok now"."""

    now: int
    last: int
    life: int
    run: int
    words: bytes

    @property
    def is_notified(self) -> bool:
        """Whether the server that wrote the record notifies the session."""
        return self.run != -1


def records(raw: Redis, key: str) -> dict[bytes, Record]:
    """The records in the hash of a name, by session. `raw` decodes nothing."""
    fields: dict[bytes, bytes] = raw.hgetall(key)
    return {field[1:]: record(text) for field, text in fields.items() if field[:1] == b"r"}


def record(text: bytes) -> Record:
    unpacker: Any = msgpack.Unpacker(raw=True)
    unpacker.feed(text)
    return Record(*unpacker)
