"""Which names, keys and queues the store of one process has. To look here declares nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import unquote

from headgate.errors import UnknownLimiterError
from headgate.keys import encoded
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.status import QueueLength, longest


class MemoryLists:
    def __init__(self, queues: Callable[[], list[MemoryQueue]]) -> None:
        self._queues = queues

    def _known(self) -> Iterator[MemoryQueue]:
        """The queues of limiters with limits, and not those of classics."""
        return (queue for queue in self._queues() if "/" not in queue.name and is_known(queue))

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
        return longest(map(length_of, self._known()))

    async def alongest(self) -> list[QueueLength]:
        return self.longest()


def is_known(queue: MemoryQueue) -> bool:
    try:
        queue.learn_sync()
    except UnknownLimiterError:
        return False
    return True


def length_of(queue: MemoryQueue) -> QueueLength:
    name, keyed, key = queue.name.partition(":")
    return QueueLength(unquote(name), unquote(key) if keyed else None, queue.status().waiting)
