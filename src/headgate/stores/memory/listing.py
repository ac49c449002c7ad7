"""Which names, keys and queues the store of one process has. To look here declares nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from urllib.parse import unquote

from headgate.keys import encoded
from headgate.stores.members import Members
from headgate.stores.memory.queue import MemoryQueue, has_limits, members, oldest_wait, waiters
from headgate.stores.status import QueueLength, longest


class MemoryLists:
    def __init__(self, queues: Callable[[], list[MemoryQueue]]) -> None:
        self._queues = queues

    def _known(self) -> Iterator[MemoryQueue]:
        return filter(is_listed, self._queues())

    def names(self) -> list[str]:
        names = {queue.name.partition(":")[0] for queue in self._known()}
        return sorted(map(unquote, names))

    async def anames(self) -> list[str]:
        return self.names()

    def keys(self, name: str) -> list[str]:
        start = f"{encoded(name)}:"
        names = [queue.name for queue in self._known() if queue.name.startswith(start)]
        return sorted(unquote(name.removeprefix(start)) for name in names)

    async def akeys(self, name: str) -> list[str]:
        return self.keys(name)

    def longest(self) -> list[QueueLength]:
        """There may be very many queues, and mostly few with waiters."""
        waiting = [queue for queue in self._queues() if waiters(queue)]
        return longest(length_of(queue) for queue in waiting if is_listed(queue))

    async def alongest(self, among: Sequence[str] | None = None) -> list[QueueLength]:
        return self.longest()

    async def amembers(self, name: str) -> Members:
        """As of the last look at the status: it puts local waiters into the queue."""
        found = [members(queue) for queue in self._queues() if queue.name == name]
        return found[0] if found else Members((), (), 0, 0)

    async def aoldest_waits(self, names: Sequence[str]) -> list[float | None]:
        queues = {queue.name: queue for queue in self._queues()}
        return [oldest_wait(queues[name]) if name in queues else None for name in names]


def is_listed(queue: MemoryQueue) -> bool:
    """Whether it is the queue of a limiter with limits, and not that of a classic."""
    return "/" not in queue.name and has_limits(queue)


def length_of(queue: MemoryQueue) -> QueueLength:
    name, keyed, key = queue.name.partition(":")
    return QueueLength(unquote(name), unquote(key) if keyed else None, waiters(queue))
