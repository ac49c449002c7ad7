"""Way (a) from the caller's side: a session that reserves on arrival, sleeps, and moves its
sleepers when it receives shifts.

Here are one session's calls, reservations and shifts, its subscriber and its heartbeat. It is a
prototype: one bucket, one token each, no refusals, no reconnecting, and shifts are remembered for
as long as the session lives.
"""

from __future__ import annotations

import asyncio
import secrets
from bisect import bisect_left
from collections import deque
from pathlib import Path

from redis.asyncio import Redis
from redis.asyncio.client import PubSub

SCRIPT = Path(__file__).with_suffix(".lua")
HEARTBEAT = 3.0  # seconds: as in headgate
MOST = 1000  # callers in one call: as in headgate


class Booking:
    """One caller: a number and a moment, both known once it has its reservation."""

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future
        self.number = 0
        self.moment = 0  # microseconds, the server's clock
        self.due = 0.0  # seconds, the loop's clock

    def move(self, microseconds: int) -> None:
        self.moment -= microseconds
        self.due -= microseconds / 1_000_000


class ShiftingBucket:
    """One session of one bucket on Redis.

    At most one call is in flight; requests that come meanwhile travel in the next.
    """

    def __init__(self, url: str, name: str, step: int, capacity: int) -> None:
        self._client: Redis = Redis.from_url(url)
        self._digest = ""
        self._name, self._step, self._capacity = f"shifts:{{{name}}}", step, capacity
        self._session, self._call = secrets.token_hex(16), 0
        self._asking: list[Booking] = []
        self._booked: deque[Booking] = deque()  # sleeping, in order
        self._cancelled: list[int] = []
        self._shifts: list[int] = []  # the i-th is the number that shift i + 1 was recorded for
        self._curious = False  # a call is wanted even if there is nothing to ask for
        self._talking: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        ears = self._client.pubsub()
        await ears.subscribe(self._name)
        await ears.get_message(timeout=None)
        self._digest = await self._client.script_load(SCRIPT.read_text())
        self._tasks = [asyncio.create_task(self._hear(ears)), asyncio.create_task(self._beat())]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self._client.aclose()

    async def acquire(self) -> Booking:
        booking = Booking(asyncio.get_running_loop().create_future())
        self._asking.append(booking)
        self._talk()
        try:
            await booking.future
        except asyncio.CancelledError:
            if booking.number:
                self._give_up(booking)
            raise
        return booking

    async def look(self) -> None:
        """Make a call, and wait until everything that was asked before it is answered."""
        self._curious = True
        while self._talk():
            assert self._talking is not None
            await self._talking

    # Talking

    def _talk(self) -> bool:
        if not (self._asking or self._cancelled or self._curious):
            return False
        if self._talking is None or self._talking.done():
            self._talking = asyncio.create_task(self._calls())
        return True

    async def _calls(self) -> None:
        while self._asking or self._cancelled or self._curious:
            asking, self._asking = self._asking[:MOST], self._asking[MOST:]
            cancelled, self._cancelled = self._cancelled[:MOST], self._cancelled[MOST:]
            heard, self._curious = len(self._shifts), False
            self._call += 1
            words: tuple[str | int, ...] = (
                self._step,
                self._capacity,
                self._session,
                self._call,
                heard,
                len(asking),
                *cancelled,
            )
            keys = (self._name, f"{self._name}:ahead", f"{self._name}:shifts")
            reply = await self._client.evalsha(self._digest, len(keys), *keys, *words)
            self._replied(asking, heard, reply.decode())

    def _replied(self, asking: list[Booking], heard: int, reply: str) -> None:
        session, call, index, now, first, start, *shifts = reply.split()
        assert (session, int(call)) == (self._session, self._call), "the reply to another call"
        self._learn(heard, [int(number) for number in shifts])
        later = sorted(
            self._shifts[int(index) :]
        )  # notified before this reply, recorded after these were reserved
        for offset, booking in enumerate(asking):
            booking.number = int(first) + offset
            booking.moment = max(int(now), int(start) + (offset + 1) * self._step)
            booking.due = (
                asyncio.get_running_loop().time() + (booking.moment - int(now)) / 1_000_000
            )
            booking.move(self._step * bisect_left(later, booking.number))
            self._booked.append(booking)
        for booking in asking:
            if booking.future.cancelled():
                self._give_up(booking)
        self._let_go()

    def _give_up(self, booking: Booking) -> None:
        if booking in self._booked:
            self._booked.remove(booking)
            self._cancelled.append(booking.number)
            self._talk()

    # Hearing

    async def _hear(self, ears: PubSub) -> None:
        async for message in ears.listen():
            index, *numbers = map(int, message["data"].split())
            before = index - len(numbers)
            if before <= len(self._shifts):
                self._learn(before, numbers)
                self._let_go()
            else:  # one was lost
                self._curious = True
                self._talk()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT)
            self._curious = bool(self._booked)
            self._talk()

    def _learn(self, before: int, numbers: list[int]) -> None:
        """Shifts `before + 1` and following: those that were not received before move the sleepers
        behind them.
        """
        news = numbers[len(self._shifts) - before :]
        self._shifts += news
        news.sort()
        for booking in self._booked:
            booking.move(self._step * bisect_left(news, booking.number))

    # Sleeping

    def _let_go(self) -> None:
        """Wake the sleepers whose moment has come, in order, and sleep until the next."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        loop = asyncio.get_running_loop()
        while self._booked and self._booked[0].due <= loop.time():
            booking = self._booked.popleft()
            if not booking.future.done():
                booking.future.set_result(None)
        if self._booked:
            self._alarm = loop.call_at(self._booked[0].due, self._let_go)
