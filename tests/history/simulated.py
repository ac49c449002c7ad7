"""The history of a simulated run: the calls that its server has run, and the keys that it has lost,
as they happen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from tests.history.events import Commit, Copied, History, Lost, Restored
from tests.simulation.server import Call, Server, is_of_index

PARTS = {":who": "who"}


class Recorder:
    """Gets the events of a simulated server, before its watchers do."""

    def __init__(
        self, server: Server, ran: Callable[[Call], None], expired: Callable[[bytes, Any], None]
    ) -> None:
        self.history: History = []
        self._watchers = ran, expired
        self._server = server
        self._commits = 0
        self._copies: dict[Hashable, int] = {}
        server.ran, server.keys.expired = self._ran, self._expired

    def _ran(self, call: Call) -> None:
        self._note(call)
        self._watchers[0](call)

    def _expired(self, key: bytes, value: Any) -> None:
        if is_of_index(key):
            return
        self.lost(key)
        self._watchers[1](key, value)

    def _note(self, call: Call) -> None:
        if isinstance(call.reply, bytes):  # otherwise the server did nothing
            self._commits += 1
            now = self._server.keys.microseconds()
            key, reply = call.keys[0].decode(), call.reply.decode()
            self.history.append(
                Commit(self._commits, now, key, call.args, reply, call.unheard, call.run)
            )

    def lost(self, key: bytes) -> None:
        name = key.decode()
        part = next((part for ending, part in PARTS.items() if name.endswith(ending)), "")
        self.history.append(Lost(name.removesuffix(f":{part}") if part else name, part))

    def copied(self, copy: Hashable) -> None:
        self._copies[copy] = len(self._copies)
        self.history.append(Copied(self._copies[copy]))

    def restored(self, copy: Hashable | None, key: str | None = None) -> None:
        self.history.append(Restored(None if copy is None else self._copies[copy], key))
