"""Helpers for tests of the memory store: its local waiters, its callers inside, and its lock."""

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

AnyEntrance = TypeVar("AnyEntrance", bound=Entrance)


def declared(limiter: AnyEntrance) -> AnyEntrance:
    """Return `limiter`.

    Its limits are declared, as by its first acquire, and it uses its queue directly.
    """
    queue = queue_of(limiter)
    if isinstance(queue, Undeclared):
        queue._declare()
    return limiter


def waiters_of(owner: Entrance | MemoryQueue) -> WaitQueue:
    """Return the waiters and holders of a limiter in memory, or of a queue."""
    queue: Any = owner if isinstance(owner, MemoryQueue) else queue_of(owner)
    found: WaitQueue = queue._state.waiting
    return found


class Callers:
    """Callers of a limiter, each in a task of its own. Each stays inside until it is released.

    `order` has the names of those that have entered, in that order. Those in `inside` have not left
    yet: setting its event makes a caller leave.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.order: list[object] = []
        self.inside: dict[object, asyncio.Event] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}

    def arrive(self, *names: object, by: Any = None) -> None:
        """Start a task for each name. It enters the limiter, or `by` if there is one."""
        for name in names:
            self.tasks[name] = asyncio.get_running_loop().create_task(
                self._call(name, self.limiter if by is None else by)
            )

    async def _call(self, name: object, entrance: Any) -> None:
        async with entrance:
            self.order.append(name)
            release = self.inside[name] = asyncio.Event()
            try:
                await release.wait()
            finally:
                del self.inside[name]

    async def release_all(self) -> None:
        """Make the callers inside leave, one after another, until no further caller enters."""
        await settled()
        while self.inside:
            next(iter(self.inside.values())).set()
            await settled()


async def settled() -> None:
    """Let the loop turn until only the passing of time could change anything."""
    for _ in range(10):
        await asyncio.sleep(0)


def assert_all_free(limiter: Limiter) -> None:
    """S7, L6: no permit is held, and no caller waits."""
    status = limiter.status()
    assert (held(status), status.waiting, len(waiters_of(limiter).local.futures)) == (0, 0, 0)


def do_nothing(limiter: Limiter) -> None:
    """Take no look at the limiter."""


def replace_lock(limiter: Limiter, lock: Any) -> None:
    """Make `lock` the lock of the limiter's queue from now on."""
    queue = queue_of(limiter)
    queue._lock = waiters_of(limiter)._lock = Lock(queue.name, queue._state.repair, lock)
    queue._build_fast_path()
