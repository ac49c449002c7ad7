"""Outages: the log has one line when a server cannot be asked any more, and one when it answers again.

Here lives the rule that each comes once, however many callers, limiters and event loops notice it.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from headgate.errors import StoreError
from headgate.logs import log

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Hashable

    from headgate.stores.redis.transport.topology import Topology

CALM = 1.0  # seconds without a failure after which a server is said to answer again: a flapping one fills no log


class Outages:
    """The outages of one store. A part is one server of a Cluster, which keeps names of its own; otherwise None."""

    def __init__(self, store: str) -> None:
        self.since: dict[Hashable, float] = {}  # when the present outage of each part began
        self._last: dict[Hashable, float] = {}  # when each part failed last
        self._looked: dict[Hashable, float] = {}  # when each part answered first after that
        self._store = store

    def begins(self, part: Hashable, error: StoreError) -> None:
        """A caller gets `error`: log it if it is the first of an outage."""
        self._last[part] = now = monotonic()
        if self.since.setdefault(part, now) is now:
            log(logging.WARNING, "%s Acquires raise StoreError until it answers again.", error)

    def ends(self, part: Hashable, loop: AbstractEventLoop) -> None:
        """A call was answered. A look some time later, in `loop`, shows whether more failed since."""
        now = monotonic()
        if part in self.since and now - self._looked.get(part, 0.0) > CALM:
            self._looked[part] = now
            loop.call_later(CALM, self._look, part)

    def _look(self, part: Hashable) -> None:
        now = monotonic()
        if now - self._last[part] >= CALM and (since := self.since.pop(part, None)) is not None:
            where = self._store if part is None else f"{part}, {self._store},"
            log(
                logging.WARNING,
                "The Redis server at %s answers again, after %.1f s.",
                where,
                now - since,
            )


_outages: WeakKeyDictionary[Topology, Outages] = WeakKeyDictionary()


def outages_of(topology: Topology) -> Outages:
    """The outages of a store, shared by all event loops."""
    found = _outages.get(topology)
    return found or _outages.setdefault(topology, Outages(f"{topology}"))
