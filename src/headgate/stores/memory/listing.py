"""Which names, keys and queues the store of one process has. To look here declares nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headgate.gate.compile import Declaration
from headgate.keys import encoded, unquoted
from headgate.stores.members import Members
from headgate.stores.memory.queue import MemoryQueue, members, oldest_wait, waiters
from headgate.stores.status import QueueLength, longest


class ListedStore(Protocol):
    def queues(self) -> list[MemoryQueue]: ...
    def declarations(self) -> list[tuple[str, Declaration]]: ...
    def open_queue(self, name: str, declared: Declaration) -> MemoryQueue: ...


class MemoryLists:
    def __init__(self, store: ListedStore) -> None:
        self._store = store

    def _known(self) -> list[str]:
        return [name for name, _ in self._store.declarations() if is_listed(name)]

    def names(self) -> list[str]:
        return sorted({unquoted(name.partition(":")[0]) for name in self._known()})

    async def anames(self) -> list[str]:
        return self.names()

    def keys(self, name: str) -> list[str]:
        start = f"{encoded(name)}:"
        names = [each.removeprefix(start) for each in self._known() if each.startswith(start)]
        return sorted(map(unquoted, names))

    async def akeys(self, name: str) -> list[str]:
        return self.keys(name)

    def longest(self) -> list[QueueLength]:
        """There may be very many queues. Most have no waiters, and are left out first."""
        waiting = [queue for queue in self._store.queues() if waiters(queue)]
        return longest(length_of(queue) for queue in waiting if is_listed(queue.name))

    async def alongest(self, among: Sequence[str] | None = None) -> list[QueueLength]:
        return self.longest()

    async def amembers(self, name: str) -> Members:
        """Local waiters are missing until a step of the queue, such as `status`, queues them."""
        limits = dict(self._store.declarations())
        if name not in limits:
            return Members((), (), 0, 0)
        return members(self._store.open_queue(name, limits[name]))

    async def aoldest_waits(self, names: Sequence[str]) -> list[float | None]:
        queues = {queue.name: queue for queue in self._store.queues()}
        return [oldest_wait(queues[name]) if name in queues else None for name in names]


def is_listed(name: str) -> bool:
    """Whether it is the queue of a limiter, and not that of a classic."""
    return "/" not in name


def length_of(queue: MemoryQueue) -> QueueLength:
    name, keyed, key = queue.name.partition(":")
    return QueueLength(unquoted(name), unquoted(key) if keyed else None, waiters(queue))
