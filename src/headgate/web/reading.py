"""One read of the store for all viewers, and the part of it that each viewer gets.

A read asks for all names and the longest queues. It asks for the status of the names that a viewer
sees, and for no other. It declares and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from time import time
from typing import Any, TypeAlias

from headgate.errors import StoreError, UnknownLimiterError
from headgate.internals import status_in_use
from headgate.keys import encoded
from headgate.limiter import Limiter
from headgate.listing import LastNames
from headgate.stores.members import Label, Members
from headgate.stores.memory.store import MemoryStore
from headgate.stores.registry import StoreLike, store_of
from headgate.stores.status import LimitStatus, QueueLength, Status
from headgate.web.history import History, Sample, Target

PAGE = 50  # names
TIMEOUT = 2.0  # seconds for the index, and for the status of what viewers see
# Of a permit or waiter: its process, its cost, and for how many seconds it holds or waits. The last
# are the seconds that are left of a permit's lease.
Member: TypeAlias = "tuple[Label | None, dict[str, int], float | None, float | None]"


@dataclass(frozen=True)
class View:
    """A viewer sees one name or key, or else a page of the names that contain `search`."""

    search: str = ""
    page: int = 0
    target: Target | None = None


@dataclass(frozen=True)
class Known:
    """A name or key at one moment. `oldest`: for how many seconds its first waiter waits."""

    status: Status
    oldest: float | None = None


@dataclass
class Snapshot:
    """The answers of one read. `trouble`: why there are none, or why some are missing. A target is
    in `unread` if its server has not answered.
    """

    trouble: str = ""
    names: list[str] = field(default_factory=list)
    longest: list[QueueLength] = field(default_factory=list)
    known: dict[Target, Known] = field(default_factory=dict)
    members: dict[Target, dict[str, Any]] = field(default_factory=dict)
    unread: set[Target] = field(default_factory=set)


class Reader:
    def __init__(self, where: StoreLike) -> None:
        store = store_of(where)
        self.store = "this process" if isinstance(store, MemoryStore) else str(store)
        self._where, self._lists = where, store.lists
        self._names = LastNames(store.lists.anames, TIMEOUT)
        self.history = History()

    async def read(self, views: Iterable[View]) -> Snapshot:
        names = await self._names.read()
        longest = await self._lists.alongest(names)
        snapshot = Snapshot(trouble=self._names.trouble, names=names, longest=longest)
        details = {view.target for view in views if view.target is not None}
        shown = {(queue.name, queue.key) for queue in longest} | details
        for view in views:
            shown |= {(name, None) for name in page_of(view, names)[0]}
        await self._read_known(snapshot, shown)
        for target in details & snapshot.known.keys():
            snapshot.members[target] = rows_of(await self._lists.amembers(encoded(*target)))
        return snapshot

    async def _read_known(self, snapshot: Snapshot, targets: Iterable[Target]) -> None:
        for target, status in (await self._statuses(targets)).items():
            if isinstance(status, Status):
                snapshot.known[target] = Known(status)
            elif isinstance(status, StoreError):
                snapshot.unread.add(target)
                snapshot.trouble = snapshot.trouble or str(status)
            elif isinstance(status, UnknownLimiterError):
                continue  # the name has no limits, or none any more
            else:
                raise status
        await self._read_oldest_waits(snapshot)
        moment = time()
        for target, known in snapshot.known.items():
            self.history.add(target, sample_of(known.status, moment))

    async def _statuses(self, targets: Iterable[Target]) -> dict[Target, Status | BaseException]:
        """The status of each target, or its error."""

        async def ask(target: Target) -> Status:
            try:
                async with asyncio.timeout(TIMEOUT):
                    return await status_in_use(self._limiter(target))
            except TimeoutError:
                raise StoreError(f"A server has not answered within {TIMEOUT:g} s.") from None

        targets = list(targets)
        found = await asyncio.gather(*map(ask, targets), return_exceptions=True)
        return dict(zip(targets, found, strict=True))

    async def _read_oldest_waits(self, snapshot: Snapshot) -> None:
        waiting = [target for target, known in snapshot.known.items() if known.status.waiting]
        if waiting:
            waits = await self._lists.aoldest_waits([encoded(*target) for target in waiting])
            for target, oldest in zip(waiting, waits, strict=True):
                snapshot.known[target] = Known(snapshot.known[target].status, oldest)

    def _limiter(self, target: Target) -> Limiter:
        """A store that is away is an error at once: the next read tries again."""
        name, key = target
        whole = Limiter.attach(name, store=self._where, retry_for=0.0)
        return whole if key is None else whole[key]


def rows_of(members: Members) -> dict[str, Any]:
    return {
        "holding": members.holding,
        "holders": grouped(
            (each.label, each.units, each.held, each.lease_left) for each in members.holders
        ),
        "waiters": grouped((each.label, each.units, each.waited, None) for each in members.waiters),
    }


def grouped(members: Iterable[Member]) -> list[dict[str, Any]]:
    """One row for all permits or waiters of one process with one cost, in the order of the first.

    A row has the longest of their `seconds`, and the least that is left of a lease.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for label, units, seconds, lease in members:
        process = " ".join(map(str, label or ()))
        row = rows.setdefault(
            (process, str(units)),
            {
                "process": process,
                "units": units,
                "count": 0,
                "seconds": seconds,
                "lease_left": lease,
            },
        )
        row["count"] += 1
        if seconds is not None:
            row["seconds"] = max(seconds, row["seconds"] or 0.0)
        if lease is not None:
            row["lease_left"] = min(lease, row["lease_left"])
    return list(rows.values())


def sample_of(status: Status, moment: float) -> Sample:
    return Sample(moment, status.waiting, tuple(map(fullness, status.limits)))


def fullness(limit: LimitStatus) -> float:
    return round(max(0, limit.used) / max(1, limit.capacity), 4)


def page_of(view: View, names: list[str]) -> tuple[list[str], int, int]:
    """The names of a page, the number of the page, and how many names there are on all pages.

    A page beyond the last one is the last one.
    """
    if view.target is not None:
        return [], 0, 0
    search = view.search.casefold()
    found = [name for name in names if search in name.casefold()] if search else names
    page = max(0, min(view.page, (len(found) - 1) // PAGE))
    return found[page * PAGE : (page + 1) * PAGE], page, len(found)


# The part of a viewer -----------------------------------------------------------------------------


def part_of(snapshot: Snapshot, view: View) -> dict[str, Any]:
    """The snapshot as this viewer sees it, for JSON."""
    trouble = {"trouble": snapshot.trouble} if snapshot.trouble else {}
    if trouble and not snapshot.known:
        return trouble
    if view.target is not None:
        members = snapshot.members.get(view.target, {})
        return {**trouble, "one": row_of(view.target, snapshot), **members}
    names, page, found = page_of(view, snapshot.names)
    longest = [(queue.name, queue.key) for queue in snapshot.longest]
    return {
        **trouble,
        "total": len(snapshot.names),
        "found": found,
        "page": page,
        "pages": max(1, -(-found // PAGE)),
        "rows": [row_of((name, None), snapshot) for name in names],
        "longest": [row_of(target, snapshot) for target in longest],
    }


def row_of(target: Target, snapshot: Snapshot) -> dict[str, Any]:
    name, key = target
    known = snapshot.known.get(target)
    if known is None:
        return {"name": name, "key": key, "known": False, "unread": target in snapshot.unread}
    status = known.status
    return {
        "name": name,
        "key": key,
        "known": True,
        "limits": [
            {
                "text": str(each.limit),
                "unit": each.unit,
                "used": each.used,
                "capacity": each.capacity,
            }
            for each in status.limits
        ],
        "waiting": status.waiting,
        "oldest": known.oldest,
        "paused": status.paused,
        "retry_after": status.retry_after,
    }
