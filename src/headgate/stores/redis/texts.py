"""Texts that processes share, read and written in the background: no caller waits for them.

Each text has a key of its own, which expires. A failure is logged at DEBUG, and changes nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headgate.log_writer import log
from headgate.stores.redis.transport.portal import portal
from headgate.stores.redis.transport.questions import replies_to
from headgate.stores.redis.transport.tasks import begun, trouble_of

if TYPE_CHECKING:
    import asyncio

    from headgate.stores.redis.transport.topology import Topology

LIFETIME = 86_400_000  # milliseconds from the last write
FIELD = "text"


class RedisTexts:
    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._tasks: set[asyncio.Task[None]] = set()
        # By process and key: the latest text, while a task of that process writes the key.
        self._unwritten: dict[tuple[int, str], str] = {}

    def read_later(self, kind: str, name: str, on_text: Callable[[str], None]) -> None:
        """Read a text, and call `on_text` with it in another thread. Without a text, do nothing."""
        key = key_of(kind, name)

        async def read() -> None:
            [text] = await replies_to(self._topology, kind, [(key, ("HGET", key, FIELD))])
            if text is not None:
                on_text(text.decode())

        self._begin(kind, read)

    def write_later(self, kind: str, name: str, text: str) -> None:
        """Write a text. Of several, the latest stays."""
        key = key_of(kind, name)

        async def write() -> None:
            own = os.getpid(), key
            is_writing, tried = own in self._unwritten, None
            self._unwritten[own] = text
            if is_writing:  # That task goes on with this text: two writes could change places.
                return
            try:
                while (latest := self._unwritten[own]) != tried:
                    tried = latest
                    commands = ("HSET", key, FIELD, latest), ("PEXPIRE", key, str(LIFETIME))
                    try:
                        await replies_to(self._topology, kind, [(key, each) for each in commands])
                    except Exception:
                        if self._unwritten[own] == tried:  # otherwise the later text is tried
                            raise
            finally:
                del self._unwritten[own]

        self._begin(kind, write)

    def _begin(self, kind: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            error = await trouble_of(work())
            if error is not None:
                log(logging.DEBUG, "Shared %s could not be read or written.", kind, error=error)

        def begin() -> None:
            task = begun(run(), "headgate-texts")
            self._tasks.add(task)  # asyncio itself keeps none alive
            task.add_done_callback(self._tasks.discard)

        with suppress(RuntimeError):  # the process ends
            portal().tell(begin)


def key_of(kind: str, name: str) -> str:
    return f"headgate:{{/{kind}}}:{quote(name, safe='', errors='replace')}"
