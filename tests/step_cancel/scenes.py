"""The scenes in which a visit is interrupted, and the check that it leaves nothing behind.

This module has the callers before and behind the visit, and the looks at capacity, queue, tasks,
timers and futures afterwards.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from math import inf
from typing import Any

from headgate import Rate
from headgate.internals import queue_of
from headgate.request import Request
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.redis.session.loop_session import on_time
from headgate.stores.redis.session.session import Session
from tests.local_waiters import waiters_of
from tests.step_cancel.visits import CAPACITY, MORE, NOWHERE, Visit
from tests.stepping import Around, Stepped
from tests.world import World, soon, until

ONE = Request({})
OURS = "headgate-"  # the tasks of a client in its loop begin so, one of each
# Timers that a session and a client may have when no caller wants anything: renewals, and whether a
# server answers.
STANDING = (
    "on_time",  # of a session: for a renewal, or for a call that reports a hand-off
    "Node._look_at_calls",
    "Node._rest",
    "Subscriber.check_alive",
    "Eviction._ask",
    "refresh_index",  # of the index of names
)
# Timers that they may have while a store is away: they send their backlog again and look for the
# store, with pauses.
SEEKING = ("Backlog.poll_all", "_set_result_unless_cancelled")
RESTING = {f"{OURS}client", f"{OURS}revive"}  # between two attempts


class Scene:
    """No caller holds a permit: the visit comes first, and others behind it."""

    paced = False

    def __init__(self, world: World, visit: Visit, name: str) -> None:
        self.world = world
        self.visit = visit
        self.noun = visit.make(world, name, *([Rate(1, per=world.beat)] if self.paced else []))
        self.line = queue_of(self.noun)
        self.nowhere = visit.stores == NOWHERE
        self.taken: list[int] = []
        self.around = Around(let_go=self.let_go)
        self._before: list[Callable[[], object]] = []
        self._inside = 0
        self._all_inside = asyncio.Event()

    async def begin(self) -> None:
        self.start = self.world.now()

    def let_go(self) -> None:
        """Let each holder before the visit leave, in this turn of the loop."""
        while self._before:
            self._before.pop()()

    async def play(self, way: str, at: int, looks: bool = False) -> Stepped:
        """Run until no caller is left. The callers behind the visit have been inside, all of them
        together.
        """
        await self.begin()
        stepped = Stepped(self.visit.ask(self.noun, self.taken), way, at, self.around)
        stepped.looks = looks
        driven = asyncio.create_task(stepped.run())
        behind = [asyncio.create_task(self._follow()) for _ in range(CAPACITY)]
        for _ in range(2):  # to be sent, and the answer comes behind those of all callers
            await asyncio.sleep(0)
        await self.line.astatus()
        self.around.settled.set()
        for _ in range(5):
            await asyncio.sleep(0)
        self.let_go()
        await soon(driven)
        await soon(asyncio.gather(*behind))
        return stepped

    async def _follow(self) -> None:
        """Stay inside until all callers behind the visit are."""
        async with self.noun:
            self._inside += 1
            if self._inside == CAPACITY:
                self._all_inside.set()
            await self._all_inside.wait()

    # Checks ---------------------------------------------------------------------------------------

    async def assert_nothing_is_left(self, stepped: Stepped) -> None:
        status = await until(lambda status: status.waiting == 0 and places(status) == 0, self.line)
        charged = [limit.used for limit in status.limits if limit.unit == "tokens"]
        assert charged in ([], [sum(self.taken)]), f"T5: charged {charged}, taken {self.taken}"
        if isinstance(self.line, MemoryQueue):
            waiting = waiters_of(self.line)
            local = waiting.local.futures, waiting.local.migrated
            left = waiting.gate.queue, *local, waiting.starting
            assert not any(left), left
        if not self.paced:
            await self.assert_whole(
                sum(limit.capacity for limit in status.limits if limit.kind == "Concurrency")
            )
        if self.nowhere:
            await attempts_failed()
        await self.assert_no_task_is_left(stepped)

    async def assert_whole(self, capacity: int) -> None:
        """S1, S7: all permits can be had at once, and not one more."""
        assert capacity in ((0,) if not self.visit.holds else (CAPACITY, MORE))
        permits = [await self.line.atake(ONE) for _ in range(capacity)]
        assert all(permits), "S7: a permit is missing"
        assert not (capacity and await self.line.atake(ONE)), "S1: there is one permit too many"
        for permit in permits:
            await permit.arelease()

    async def assert_no_task_is_left(self, stepped: Stepped) -> None:
        """L6: no task, no timer, no future of any caller is left."""
        await connected()
        assert all(name.startswith(OURS) and number == 1 for name, number in tasks().items()), (
            tasks()
        )
        assert not planned() - Counter(STANDING + SEEKING * self.nowhere), planned()
        if pending(stepped):  # an error's frames may keep it
            gc.collect()
        assert not pending(stepped)


class Held(Scene):
    """All permits are taken: in memory one by a caller that entered, and the others by permits."""

    async def begin(self) -> None:
        await super().begin()
        if isinstance(self.line, MemoryQueue):
            await self.noun.__aenter__()
            self._before.append(self.line.leave)
        while len(self._before) < CAPACITY:
            permit = await self.line.acquire(ONE)
            self._before.append(permit.release)


class Paced(Scene):
    """One caller may pass in a beat, and one has just passed. So the visit and the callers behind
    it get reservations.
    """

    paced = True

    async def begin(self) -> None:
        await super().begin()
        async with self.noun:
            pass

    async def assert_nothing_is_left(self, stepped: Stepped) -> None:
        await super().assert_nothing_is_left(stepped)
        gave_up_in_time = (
            stepped.ended and not self.taken and stepped.moment < self.start + self.world.beat
        )
        if self.world.virtual and gave_up_in_time:
            assert self.world.now() - self.start <= CAPACITY * self.world.beat + 1e-6, (
                "T5: those behind it did not move forward"
            )


class Unlimited(Scene):
    """No caller delays another one, and none is counted."""

    async def play(self, way: str, at: int, looks: bool = False) -> Stepped:
        stepped = Stepped(self.visit.ask(self.noun, self.taken), way, at, self.around)
        stepped.looks = looks
        self.around.settled.set()
        await soon(asyncio.create_task(stepped.run()))
        return stepped

    async def assert_nothing_is_left(self, stepped: Stepped) -> None:
        await attempts_failed()
        await self.assert_no_task_is_left(stepped)


SCENES: dict[str, type[Scene]] = {"free": Scene, "held": Held, "paced": Paced}


def scenes_of(visit: Visit) -> list[str]:
    return [
        name
        for name in SCENES
        if (visit.holds or name != "held") and (visit.paced or name != "paced")
    ]


def places(status: Any) -> int:
    return sum(limit.used for limit in status.limits if limit.kind == "Concurrency")


def tasks() -> Counter[str]:
    """The tasks at work in the running loop, except for the test's own."""
    return Counter(
        task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()
    )


async def connected() -> None:
    """Go on when a connection for notifications stands. While it is being made, it has a timer."""
    for _ in range(1000):
        if not planned()["Timeout._on_timeout"]:
            break
        await asyncio.sleep(0.001)


async def attempts_failed() -> None:
    """Go on when no task connects to a server that is not there. A moment is enough, or the test
    names the task.
    """
    for _ in range(1000):
        if set(tasks()) <= RESTING and not planned() - Counter(STANDING + SEEKING):
            break
        await asyncio.sleep(0.001)


def pending(stepped: Stepped) -> list[Any]:
    """The futures that it waited for and that are still pending."""
    futures = [future() for future in stepped.waited_for]
    return [future for future in futures if future is not None and not future.done()]


def planned() -> Counter[str]:
    """The timers of the running loop."""
    timers = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]  # there is no public way
    left = [timer for timer in timers if not timer.cancelled()]
    sessions = [timer._args[0]() for timer in left if timer._callback is on_time]
    return Counter(
        [
            *(getattr(timer._callback, "__qualname__", f"{timer}") for timer in left),
            *(moment for each in filter(None, sessions) for moment in moments_of(each.machine)),
        ]
    )


def moments_of(session: Session) -> list[str]:
    """The moments that the callers of a session wait for."""
    asleep = session.traffic.reserved.sleepers
    moments = {
        "the next poll": session.polls.moment,
        "the moment of a grant": asleep[0][0] if asleep else inf,
        "the end of a wait": session.deadlines.moment,
    }
    return [name for name, moment in moments.items() if moment < inf]
