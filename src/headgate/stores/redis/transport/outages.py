"""Logs one line when a server becomes unavailable, and one when it answers again.

Each line appears once in a process, however many callers and event loops notice the outage.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from headgate.errors import StoreError
from headgate.hooks import emit, has_hooks
from headgate.log_writer import log

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Hashable

    from headgate.stores.redis.transport.topology import Topology

# A server counts as recovered after these seconds without a failure: a flapping one would fill the
# log.
CALM = 1.0


class Outages:
    """The outages of one store. A part is one server of a Cluster. Elsewhere it is None."""

    def __init__(self, store: str) -> None:
        # A server of the store has answered this process.
        self.met = False
        self.present: dict[Hashable, float] = {}  # The begin of each present outage.
        self._last: dict[Hashable, float] = {}  # The last failure of each part.
        self._looked: dict[Hashable, float] = {}  # The last check of each part was scheduled then.
        self._store = store

    def begins(self, part: Hashable, error: StoreError) -> None:
        """Log `error` if it is the first of an outage."""
        self._last[part] = now = monotonic()
        # Of several threads, only the one that stored its `now` logs the error.
        if self.present.setdefault(part, now) is now:
            where, text = self._name_of(part), f"{error}"  # a record would keep the error's frames
            message = "%s Acquires raise StoreError until it answers again."
            log(logging.WARNING, message, text, kind="store_away", name=where, every_time=True)
            if has_hooks():
                from headgate.events import StoreAway

                emit(StoreAway(where, text))

    def ends(self, part: Hashable, loop: AbstractEventLoop) -> None:
        """A call was answered. The outage ends if no call fails in the next CALM seconds."""
        now = monotonic()
        if part in self.present and now - self._looked.get(part, 0.0) > CALM:
            self._looked[part] = now
            loop.call_later(CALM, self._look, part)

    def _look(self, part: Hashable) -> None:
        now = monotonic()
        if now - self._last[part] >= CALM and (since := self.present.pop(part, None)) is not None:
            where, away = self._name_of(part), now - since
            # "at SERVER, Cluster at SEEDS, answers again": the store of a part is between commas.
            at = where if part is None else f"{where},"
            message = "The Redis server at %s answers again, after %.1f s."
            log(logging.WARNING, message, at, away, kind="store_back", name=where, every_time=True)
            if has_hooks():
                from headgate.events import StoreBack

                emit(StoreBack(where, away))

    def _name_of(self, part: Hashable) -> str:
        return self._store if part is None else f"{part}, {self._store}"


_outages: WeakKeyDictionary[Topology, Outages] = WeakKeyDictionary()


def outages_of(topology: Topology) -> Outages:
    """The outages of a store. All event loops share them."""
    return _outages.get(topology) or _outages.setdefault(topology, Outages(f"{topology}"))
