"""Threads and event loops that meet at one limiter, interleaved wherever a seed says (S1, S6, S7,
L2, L6).
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
from tests.local_waiters import assert_all_free, declared, replace_lock, waiters_of

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
    """Tasks of several loops, threads and declarations, all at one limiter, and the invariants that
    must hold among them.
    """

    def __init__(
        self, seed: int, loops: int, threads: int = 0, kinds: bool = False, changes: str = ""
    ) -> None:
        self.interleaving = Interleaving(seed)
        self.chance = self.interleaving.chance
        self.capacity = self.most = self.chance.randint(1, 3)
        self.store = MemoryStore(self.interleaving.clock)
        self.store._lock = Lock("store", lambda: None, self.interleaving.lock())
        plain = self.declared()
        replace_lock(plain, self.interleaving.lock())
        self.limiters = [plain]
        if kinds:
            self.limiters += [self.declared(max_sleep=5), self.declared(max_waiters=3)]
        self.kinds, self.changes = kinds, changes
        self.inside = 0
        # The tasks that have not entered yet, in order of arrival.
        self.arrived: list[asyncio.Task[Any] | None] = []
        self.works = (
            [lambda: self.interleaving.tell(self.run_tasks())] * loops
            + [self.run_thread] * threads
            + [self.change] * bool(changes)
        )

    def declared(self, kind: str = "p", **options: Any) -> Limiter:
        """A limiter of a Concurrency ("p", for permits), of a rate ("r"), or of both ("b")."""
        limits = {
            "p": (Concurrency(self.capacity),),
            "r": (Rate(1000, per=1),),
            "b": (Concurrency(self.capacity), Rate(1000, per=1)),
        }
        return declared(Limiter("story", *limits[kind], store=self.store, **options))

    def count_entry(self) -> None:
        """Count a caller that enters. S1: no more are inside than the highest capacity so far."""
        self.inside += 1
        assert self.inside <= self.most

    def count_leave(self) -> None:
        self.inside -= 1

    async def run_tasks(self) -> None:
        """Run the tasks of one loop, and cancel some of them at some time."""
        tasks = [asyncio.create_task(self.run_task()) for _ in range(self.chance.randint(2, 5))]
        for _ in range(self.chance.randint(0, 3)):
            for _ in range(self.chance.randint(0, 6)):
                await asyncio.sleep(0)
            self.chance.choice(tasks).cancel()
        await asyncio.wait(tasks)
        assert [
            task.exception() for task in tasks if not task.cancelled() and task.exception()
        ] == []

    async def run_task(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            limiter = self.chance.choice(self.limiters)
            kind = self.chance.random() if self.kinds else 1.0
            if kind < 0.1:
                repr(limiter)
            elif kind < 0.2:
                self.try_once(limiter)
            else:
                await self.enter(limiter.acquire() if kind < 0.5 else limiter)

    def try_once(self, limiter: Limiter) -> None:
        permit = limiter.try_acquire()
        if permit:
            self.count_entry()
            self.count_leave()
            permit.release()

    async def enter(self, entrance: Any) -> None:
        me = asyncio.current_task()
        self.arrived.append(me)
        try:
            async with entrance:
                self.check_order(me)
                self.count_entry()
                try:
                    for _ in range(self.chance.randint(0, 2)):
                        await asyncio.sleep(0)
                finally:
                    self.count_leave()
        except (MaxSleepExceededError, QueueFullError):
            assert self.kinds
        finally:
            if me in self.arrived:
                self.arrived.remove(me)

    def check_order(self, me: asyncio.Task[Any] | None) -> None:
        """S6: no task of this loop that arrived before `me` still stands in a queue."""
        before = self.arrived[: self.arrived.index(me)]
        self.arrived.remove(me)
        waiting = waiters_of(self.limiters[0])
        queued = [*waiting.local.futures]
        queued += [getattr(each, "future", None) for each in waiting.gate.queue]
        for task in before:
            if (
                task is not None
                and me is not None
                and task.get_loop() is me.get_loop()
                and not task.cancelling()
            ):
                assert task._fut_waiter not in queued  # type: ignore[attr-defined]  # no public attribute has it

    def run_thread(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            try:
                with self.chance.choice(self.limiters):
                    self.count_entry()
                    self.interleaving.switch()
                    self.count_leave()
            except (MaxSleepExceededError, QueueFullError):
                assert self.kinds

    def change(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            self.interleaving.switch()
            self.capacity = self.chance.randint(1, 3)
            self.most = max(self.most, self.capacity if self.changes == "p" else 99)
            self.declared(self.chance.choice(self.changes))


@pytest.mark.parametrize("world", WORLDS)
def test_callers_that_are_interleaved_at_any_opcode_keep_capacity_and_order(
    world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S6, S7, L2, L6: never is one caller too many inside. No caller is passed or left waiting,
    and all permits are free in the end.
    """
    gc.disable()
    try:
        for seed in range(STORIES):
            story = Story(seed, **WORLDS[world])
            monkeypatch.setattr(waiters, "Event", story.interleaving.event)
            try:
                story.interleaving.run(*story.works)
                assert_all_free(story.declared())
            except BaseException as error:
                error.add_note(f"world {world!r}, seed {seed}")
                raise
    finally:
        gc.enable()
