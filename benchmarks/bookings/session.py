"""One process of a work: `python -m benchmarks.bookings.session SESSION WAY URL NAME CALLERS APART
GIVE_UP`, started by works.py.

Here are callers that ask, every other one of which gives up, and then a last one; the same lines
for both ways. Here are no figures of the server, and no checks. The process says when it is ready,
when all callers have asked, and when all that give up have done so. Then it lists the granted
callers, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import NamedTuple, Protocol

from benchmarks.bookings.shifts import ShiftingBucket

RATE = 100  # tokens a second
STEP = 1_000_000 // RATE


class Through(NamedTuple):
    """A granted caller: its order by the store, the moment of its grant, and the moment when it
    went on. Moments are microseconds of this machine's clock.
    """

    session: int
    place: int
    order: int
    moment: int
    gone: int


class Side(Protocol):
    """One way to move reservations."""

    async def open(self) -> None: ...
    async def acquire(self) -> tuple[int, int]: ...
    async def look(self) -> None: ...
    async def close(self) -> None: ...


class Shifts:
    """Way (a)."""

    def __init__(self, url: str, name: str) -> None:
        self._bucket = ShiftingBucket(url, name, STEP, RATE)
        self.open, self.look, self.close = self._bucket.open, self._bucket.look, self._bucket.close

    async def acquire(self) -> tuple[int, int]:
        booking = await self._bucket.acquire()
        return booking.number, booking.moment


class Queue:
    """Way (b): headgate as it is."""

    def __init__(self, url: str, name: str) -> None:
        from headgate import Limiter, Rate

        self._first = Limiter(f"{name}-first", Rate(1_000_000, per=1), store=url)
        self._limiter = Limiter(name, Rate(RATE, per=1, initial=0), store=url)

    async def open(self) -> None:
        for _ in range(2):  # connects, and lets the server know both scripts
            async with self._first:
                pass

    async def acquire(self) -> tuple[int, int]:
        permit = await self._limiter.acquire()
        return permit.fence, permit.t

    async def look(self) -> None:
        await self._limiter.astatus()

    async def close(self) -> None:
        """The loop's end closes everything."""


async def main(
    session: int, way: str, url: str, name: str, callers: int, apart: float, give_up: float
) -> None:
    """`apart`: seconds between two callers that ask; `give_up`: seconds between two that give up,
    or less than 0 when none does.
    """
    side: Side = Shifts(url, name) if way == "a" else Queue(url, name)
    await side.open()
    through: list[Through] = []

    async def caller(index: int) -> None:
        order, moment = await side.acquire()
        through.append(Through(session, index, order, moment, time.time_ns() // 1000))

    await said("ready")
    tasks = []
    for index in range(callers):
        tasks.append(asyncio.create_task(caller(index)))
        if apart:
            await asyncio.sleep(apart)
    await asyncio.sleep(0)
    await side.look()
    await said("asked")
    for task in tasks[1::2] if give_up >= 0 else []:
        task.cancel()
        if give_up:
            await asyncio.sleep(give_up)
    if give_up >= 0:  # one more comes last
        tasks.append(asyncio.create_task(caller(callers)))
    await asyncio.sleep(0)
    await side.look()
    await said("given up")
    await asyncio.wait(tasks)
    print(json.dumps(through), flush=True)
    await side.close()


async def said(line: str) -> None:
    """Say it, and wait for the word to go on."""
    print(line, flush=True)
    await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    _, number, its_way, its_url, its_name, its_callers, *times = sys.argv
    asyncio.run(main(int(number), its_way, its_url, its_name, int(its_callers), *map(float, times)))
