"""The scenes in which a visit is interrupted, and what may be left of it: nothing.

Here lives who stands before it and behind it, and how capacity, queue, tasks, timers and futures
are looked at afterwards.
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
from tests.step_cancel.visits import CAPACITY, MORE, NOWHERE, Visit
from tests.stepping import Around, Stepped
from tests.world import World, soon, until

ONE = Request({})
OURS = "headgate-"  # so the tasks begin that a link has in its loop, one of each
# What a lane and a link may have planned when nobody asks for anything: a look at who holds,
# whether a server answers.
STANDING = (
    "on_time",  # of a session: for a renewal, or for a call that tells of a hand-off
    "Node._look_at_calls",
    "Node._rest",
    "Subscriber.make_sure",
    "Eviction._ask",
)
# And what they may have while a store is away: what is owed to it is offered again, and it is
# looked for, with pauses.
SEEKING = ("Offers.send_all", "_set_result_unless_cancelled")
RESTING = {f"{OURS}client", f"{OURS}revive"}  # between two attempts


class Scene:
    """Nobody is there: the visit comes first, and others behind it."""

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
        """Whoever is before the visit goes, in this turn of the loop."""
        while self._before:
            self._before.pop()()

    async def play(self, way: str, at: int, looks: bool = False) -> Stepped:
        """Until nobody is there any more; whoever came behind was inside, all of them together."""
        await self.begin()
        stepped = Stepped(self.visit.ask(self.noun, self.taken), way, at, self.around)
        stepped.looks = looks
        driven = asyncio.create_task(stepped.run())
        behind = [asyncio.create_task(self._follow()) for _ in range(CAPACITY)]
        for _ in range(2):  # to be sent, and the answer comes behind those of all of them
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
        """Inside until all who came behind are."""
        async with self.noun:
            self._inside += 1
            if self._inside == CAPACITY:
                self._all_inside.set()
            await self._all_inside.wait()

    # What is left ---------------------------------------------------------------------------------

    async def assert_nothing_is_left(self, stepped: Stepped) -> None:
        status = await until(lambda status: status.waiting == 0 and places(status) == 0, self.line)
        charged = [limit.used for limit in status.limits if limit.unit == "tokens"]
        assert charged in ([], [sum(self.taken)]), f"T5: charged {charged}, taken {self.taken}"
        if isinstance(self.line, MemoryQueue):
            left = self.line._gate.queue, self.line._crowd, self.line._moved, self.line.starting
            assert not any(left), left
        if not self.paced:
            await self.assert_whole(
                sum(limit.capacity for limit in status.limits if limit.kind == "Concurrency")
            )
        if self.nowhere:
            await attempts_failed()
        await self.assert_nobody_works(stepped)

    async def assert_whole(self, capacity: int) -> None:
        """S1, S7: all permits can be had at once, and not one more."""
        assert capacity in ((0,) if not self.visit.holds else (CAPACITY, MORE))
        permits = [await self.line.atake(ONE) for _ in range(capacity)]
        assert all(permits), "S7: a permit is missing"
        assert not (capacity and await self.line.atake(ONE)), "S1: there is one permit too many"
        for permit in permits:
            await permit.arelease()

    async def assert_nobody_works(self, stepped: Stepped) -> None:
        """L6: no task, no timer, no future of anybody who asked."""
        await connected()
        assert all(name.startswith(OURS) and number == 1 for name, number in tasks().items()), (
            tasks()
        )
        assert not planned() - Counter(STANDING + SEEKING * self.nowhere), planned()
        if pending(stepped):  # or it is in an error's frames
            gc.collect()
        assert not pending(stepped)


class Held(Scene):
    """All places are taken: one by who entered, in memory, and the others by permits."""

    async def begin(self) -> None:
        await super().begin()
        if isinstance(self.line, MemoryQueue):
            await self.noun.__aenter__()
            self._before.append(self.line.leave)
        while len(self._before) < CAPACITY:
            permit = await self.line.acquire(ONE)
            self._before.append(permit.release)


class Paced(Scene):
    """One may pass in a beat, and somebody has just passed: the visit books, and those behind it
    do.
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
    """Nobody stands in anybody's way, and nobody is counted."""

    async def play(self, way: str, at: int, looks: bool = False) -> Stepped:
        stepped = Stepped(self.visit.ask(self.noun, self.taken), way, at, self.around)
        stepped.looks = looks
        self.around.settled.set()
        await soon(asyncio.create_task(stepped.run()))
        return stepped

    async def assert_nothing_is_left(self, stepped: Stepped) -> None:
        await attempts_failed()
        await self.assert_nobody_works(stepped)


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
    """Who is at work in the running loop, but for the story."""
    return Counter(
        task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()
    )


async def connected() -> None:
    """Go on when a connection that is being made, to listen, stands: it has a timer for as long."""
    for _ in range(1000):
        if not planned()["Timeout._on_timeout"]:
            break
        await asyncio.sleep(0.001)


async def attempts_failed() -> None:
    """Go on when nobody is connecting to a server that is not there; a moment is enough, or the
    test says who is.
    """
    for _ in range(1000):
        if set(tasks()) <= RESTING and not planned() - Counter(STANDING + SEEKING):
            break
        await asyncio.sleep(0.001)


def pending(stepped: Stepped) -> list[Any]:
    """What it waited for, and is still there to be waited for."""
    futures = [future() for future in stepped.waited_for]
    return [future for future in futures if future is not None and not future.done()]


def planned() -> Counter[str]:
    """What the running loop has timers for."""
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
    """What the callers of a session wait for."""
    moments = {
        "the next look": session.look_at,
        "the moment of a grant": session.traffic.reserved.moment,
        "the end of a wait": session.timeouts.moment,
    }
    return [name for name, moment in moments.items() if moment < inf]
