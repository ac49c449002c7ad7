"""A world for a test: a store and the time that passes in it.

In memory the time is virtual and a test may wait for hours; on Redis it is real, and a beat is
milliseconds. A test is written once and runs in both.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from itertools import pairwise
from time import monotonic
from typing import Any, TypeVar

from headgate import Limiter, Status
from headgate.internals import queue_of, store_of
from headgate.stores.memory.store import MemoryStore
from tests.machine import Stalls, scaled, scaled_now
from tests.virtual import VirtualClock, run

T = TypeVar("T")
HOUR = 3600.0
LONG = scaled(5.0)  # real seconds after which something that should be there is not
Story = Callable[..., Coroutine[Any, Any, None]]


class World:
    """`store`: for limiters; `beat`: the seconds by which a test counts; `virtual`: they take no
    real time.
    """

    def __init__(self, name: str, redis_url: str | None = None, virtual: bool = True) -> None:
        self.name = name
        self.in_memory = redis_url is None
        self.virtual = self.in_memory and virtual
        self.clock = VirtualClock()
        self.store: Any = (
            MemoryStore(self.clock if self.virtual else None) if redis_url is None else redis_url
        )
        self.beat = 1.0 if self.virtual else scaled(0.02)
        self._stalls = None if self.virtual else Stalls()

    @property
    def place(self) -> dict[str, Any]:
        """The world as arguments of the classics."""
        return {"store": self.store} if self.in_memory else {"redis_url": self.store}

    @property
    def slack(self) -> float:
        """By how many seconds a test may be late where a time is promised."""
        return 0.0 if self._stalls is None else self._stalls.slack()

    @property
    def ticks(self) -> int:
        """A beat in microseconds."""
        return round(self.beat * 1_000_000)

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        """Run one test, in an event loop of its own."""
        return run(story, self.clock) if self.virtual else asyncio.run(story)

    def limiter(self, *limits: Any, name: str | None = None, **options: Any) -> Limiter:
        """A limiter in this world, under the test's own name."""
        return Limiter(name or self.name, *limits, store=self.store, **options)

    def now(self) -> float:
        return asyncio.get_running_loop().time() if self.virtual else monotonic()

    async def sleep(self, seconds: float) -> None:
        """And not a moment less: uvloop's timers count whole milliseconds."""
        end, left = self.now() + seconds, seconds
        while left > 0:
            await asyncio.sleep(left)
            left = end - self.now()


def told(story: Story) -> Callable[..., None]:
    """The coroutine function `story`, run in `world`."""

    @functools.wraps(story)
    def test(world: World, **others: Any) -> None:
        world.run(story(world=world, **others))

    return test


async def until(met: Callable[[Status], bool], limiter: Limiter) -> Status:
    """The status once it is as it should be: an operation that was sent without waiting takes a
    round trip to arrive.
    """
    status = await limiter.astatus()
    async with asyncio.timeout(long()):
        while not met(status):
            await asyncio.sleep(0.001)
            status = await limiter.astatus()
    return status


async def waiting(limiter: Limiter, count: int) -> Status:
    """Go on when `count` callers wait."""
    return await until(lambda status: status.waiting == count, limiter)


async def at_rest(limiter: Limiter) -> Status:
    """Go on when no caller waits and no permit is held (L6)."""
    return await until(lambda status: status.waiting == 0 and held(status) == 0, limiter)


def session_of(limiter: Any) -> Any:
    """Return the session of a limiter on Redis in the running loop."""
    queue = queue_of(limiter)
    return store_of(queue).session(queue)


def renew_now(session: Any) -> None:
    """Renew all permits of a session at once: its timer would take as long as it says, or be late
    when the machine stalls.
    """
    session.machine.renewal.renew(monotonic())
    session.poll()


def held(status: Status) -> int:
    """How much of all concurrency limits is in use."""
    return sum(limit.used for limit in status.limits if limit.kind == "Concurrency")


def used(status: Status) -> list[int]:
    return [limit.used for limit in status.limits]


def long() -> float:
    """LONG by the load of this moment."""
    return scaled_now(5.0)


async def soon(asked: Awaitable[T]) -> T:
    """`asked`, which needs nothing but a round trip."""
    async with asyncio.timeout(long()):
        return await asked


async def declare(limiter: Limiter) -> None:
    """Acquire once: that declares the limits of the limiter, and nothing else does."""
    permit = await limiter.acquire()
    await permit.arelease()


def assert_paced(world: World, moments: list[int], gaps: list[int]) -> None:
    """The moments lie `gaps` microseconds apart: exactly in virtual time; on a busy machine later,
    but never sooner.
    """
    seen = [after - before for before, after in pairwise(moments)]
    assert all(gap >= wanted for gap, wanted in zip(seen, gaps, strict=True)), (seen, gaps)
    assert sum(seen) - sum(gaps) <= world.slack * 1_000_000, (seen, gaps)
