"""Whatever meets whatever at one limiter: threads and loops that are interleaved wherever a seed
says (S1, S6, S7, L2, L6).
"""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, QueueFullError, Rate
from headgate.stores.memory import waiters
from headgate.stores.memory.lock import Lock
from headgate.stores.memory.store import MemoryStore
from tests.interleaving import Interleaving
from tests.local_waiters import assert_all_free, declared, lock_by, waiters_of

WORLDS: dict[str, dict[str, Any]] = {
    "one loop": {"loops": 1},
    "loops": {"loops": 2},
    "threads": {"loops": 1, "threads": 2},
    "all kinds": {"loops": 2, "threads": 1, "kinds": True},
    "new limits": {"loops": 1, "threads": 1, "changes": "p"},
    "new kinds": {"loops": 1, "threads": 1, "changes": "prb"},
}
STORIES = 20  # of each world


class Story:
    """Tasks of several loops, threads and declarations, all at one limiter, and what must hold
    among them.
    """

    def __init__(
        self, seed: int, loops: int, threads: int = 0, kinds: bool = False, changes: str = ""
    ) -> None:
        self.among = Interleaving(seed)
        self.chance = self.among.chance
        self.capacity = self.most = self.chance.randint(1, 3)
        self.store = MemoryStore(self.among.clock)
        self.store._lock = Lock("store", lambda: None, self.among.lock())
        plain = self.declared()
        lock_by(plain, self.among.lock())
        self.ways = [plain]
        if kinds:
            self.ways += [self.declared(max_sleep=5), self.declared(max_waiters=3)]
        self.kinds, self.changes = kinds, changes
        self.inside = 0
        self.asked: list[
            asyncio.Task[Any] | None
        ] = []  # who waits, in the order in which they asked
        self.works = (
            [lambda: self.among.tell(self.loop())] * loops
            + [self.thread] * threads
            + [self.change] * bool(changes)
        )

    def declared(self, kind: str = "p", **options: Any) -> Limiter:
        """Of places, of a rate, or of both."""
        limits = {
            "p": (Concurrency(self.capacity),),
            "r": (Rate(1000, per=1),),
            "b": (Concurrency(self.capacity), Rate(1000, per=1)),
        }
        return declared(Limiter("story", *limits[kind], store=self.store, **options))

    def entered(self) -> None:
        """S1."""
        self.inside += 1
        assert self.inside <= self.most

    def left(self) -> None:
        self.inside -= 1

    async def loop(self) -> None:
        """Tasks, some of which are cancelled at some time."""
        tasks = [asyncio.create_task(self.task()) for _ in range(self.chance.randint(2, 5))]
        for _ in range(self.chance.randint(0, 3)):
            for _ in range(self.chance.randint(0, 6)):
                await asyncio.sleep(0)
            self.chance.choice(tasks).cancel()
        await asyncio.wait(tasks)
        assert [
            task.exception() for task in tasks if not task.cancelled() and task.exception()
        ] == []

    async def task(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            limiter = self.chance.choice(self.ways)
            asked = self.chance.random() if self.kinds else 1.0
            if asked < 0.1:
                repr(limiter)
            elif asked < 0.2:
                self.tries(limiter)
            else:
                await self.enters(limiter.acquire() if asked < 0.5 else limiter)

    def tries(self, limiter: Limiter) -> None:
        permit = limiter.try_acquire()
        if permit:
            self.entered()
            self.left()
            permit.release()

    async def enters(self, entrance: Any) -> None:
        me = asyncio.current_task()
        self.asked.append(me)
        try:
            async with entrance:
                self.goes_before(me)
                self.entered()
                try:
                    for _ in range(self.chance.randint(0, 2)):
                        await asyncio.sleep(0)
                finally:
                    self.left()
        except (MaxSleepExceededError, QueueFullError):
            assert self.kinds
        finally:
            if me in self.asked:
                self.asked.remove(me)

    def goes_before(self, me: asyncio.Task[Any] | None) -> None:
        """S6: nobody of its own loop who asked before it still stands in a queue."""
        before = self.asked[: self.asked.index(me)]
        self.asked.remove(me)
        waiting = waiters_of(self.ways[0])
        queued = [*waiting.local.futures]
        queued += [getattr(each, "future", None) for each in waiting.gate.queue]
        for task in before:
            if (
                task is not None
                and me is not None
                and task.get_loop() is me.get_loop()
                and not task.cancelling()
            ):
                assert task._fut_waiter not in queued  # type: ignore[attr-defined]  # what a task waits for is told to nobody

    def thread(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            try:
                with self.chance.choice(self.ways):
                    self.entered()
                    self.among.switch()
                    self.left()
            except (MaxSleepExceededError, QueueFullError):
                assert self.kinds

    def change(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.among.switch()
            self.capacity = self.chance.randint(1, 3)
            self.most = max(self.most, self.capacity if self.changes == "p" else 99)
            self.declared(self.chance.choice(self.changes))


@pytest.mark.parametrize("world", WORLDS)
def test_whatever_meets_whatever(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, S6, S7, L2, L6: interleaved at any opcode: never one too many, nobody is passed or left
    waiting, all free in the end.
    """
    gc.disable()
    try:
        for seed in range(STORIES):
            story = Story(seed, **WORLDS[world])
            monkeypatch.setattr(waiters, "Event", story.among.event)
            try:
                story.among.run(*story.works)
                assert_all_free(story.declared())
            except BaseException as error:
                error.add_note(f"world {world!r}, seed {seed}")
                raise
    finally:
        gc.enable()
