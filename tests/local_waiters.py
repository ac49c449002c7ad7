"""Who waits in a crowd and who is inside, for stories of memory alone.

Here lives what such stories are told with.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from headgate import Limiter
from headgate.declaring import Undeclared
from headgate.entrance import Entrance
from headgate.internals import queue_of
from headgate.stores.memory.lock import Lock
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.memory.wait_queue import WaitQueue
from tests.world import held

Held = TypeVar("Held", bound=Entrance)


def declared(limiter: Held) -> Held:
    """Return `limiter`.

    Its limits are declared, as by its first acquire, and it uses its line directly.
    """
    line = queue_of(limiter)
    if isinstance(line, Undeclared):
        line._begin()
    return limiter


def waiters_of(owner: Entrance | MemoryQueue) -> WaitQueue:
    """Return the waiters and holders of a limiter in memory, or of a queue."""
    queue: Any = owner if isinstance(owner, MemoryQueue) else queue_of(owner)
    found: WaitQueue = queue._state.waiting
    return found


class Visitors:
    """Who waits, who is inside, and in which order they came in; each stays until it is let out."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.order: list[object] = []
        self.inside: dict[object, asyncio.Event] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}

    def come(self, *names: object, by: Any = None) -> None:
        """Each in a task of its own: into the limiter, or by whatever `by` says."""
        for name in names:
            self.tasks[name] = asyncio.get_running_loop().create_task(
                self._visit(name, self.limiter if by is None else by)
            )

    async def _visit(self, name: object, entrance: Any) -> None:
        async with entrance:
            self.order.append(name)
            out = self.inside[name] = asyncio.Event()
            try:
                await out.wait()
            finally:
                del self.inside[name]

    async def let_out(self) -> None:
        """Whoever is inside goes, one after another, until nobody comes in any more."""
        await settled()
        while self.inside:
            next(iter(self.inside.values())).set()
            await settled()


async def settled() -> None:
    """Whatever can happen without time has happened."""
    for _ in range(10):
        await asyncio.sleep(0)


def assert_all_free(limiter: Limiter) -> None:
    """S7, L6."""
    status = limiter.status()
    assert (held(status), status.waiting, len(waiters_of(limiter).local.futures)) == (0, 0, 0)


def nothing(limiter: Limiter) -> None:
    """Nobody looks."""


def lock_by(limiter: Limiter, lock: Any) -> None:
    """Have the line locked by `lock` from now on."""
    queue = queue_of(limiter)
    queue._lock = waiters_of(limiter)._lock = Lock(queue.name, queue._repair, lock)
    queue._build_fast_path()
