"""The ears of a link: a subscription, made when somebody waits for the first time, to what other processes grant to this one.

Here lives that one connection. What is heard is a hint: it may come late, twice or never, and every lane asks by itself in time.
Nothing else is said on it, and a network may forget it without a word: while anybody waits it is asked from time to time.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, Any

from headgate.stores.redis.chores import begun, pause, trouble_of
from headgate.stores.redis.endpoint import REPLY_TIMEOUT
from headgate.stores.redis.wire import Wire, packed

if TYPE_CHECKING:
    from headgate.stores.redis.link import Link

LONGEST = 5.0  # seconds before another attempt, at most


class Ears:
    """The subscription of one event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._wire: Wire | None = None
        self._attempts = 0  # that were over since the last one at which something was heard
        self._asked: float | None = inf  # when, by the loop's clock, if that was not answered since; inf: nobody is there
        self._new = True  # nothing was heard on this connection yet
        self._doubt: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        """Somebody waits."""
        if self.task is None or self.task.done():
            self.task = begun(self._hear(), "headgate-ears")
        if self._doubt is None:
            self._doubt = self._link.loop.call_later(REPLY_TIMEOUT, self._make_sure)

    def _make_sure(self) -> None:
        """A server that does not answer in time is as good as gone, here too. Who has subscribed may do so again."""
        self._doubt = None
        if self._wire is None:
            return
        if self._asked is None:
            self._subscribe(self._wire)
        elif self._link.loop.time() - self._asked >= REPLY_TIMEOUT:
            self._wire.cut(TimeoutError(f"no reply within {REPLY_TIMEOUT:g} s"))

    def _subscribe(self, wire: Wire) -> None:
        self._asked = self._link.loop.time()
        wire.send(packed("SUBSCRIBE", f"headgate:{self._link.id}"))

    async def _hear(self) -> None:
        """Until the connection is lost at a time when nobody waits: the next who does listens again."""
        while True:
            if self._attempts:
                await asyncio.sleep(pause(self._attempts, LONGEST))
            await trouble_of(self._listen(again=self._attempts > 1))
            self._attempts += 1
            if not any(lane.waits for lane in self._link.lanes.values()):
                return

    async def _listen(self, again: bool) -> None:
        """Until the connection is lost."""
        server = await self._link.anybody(again)
        over: asyncio.Future[None] = self._link.loop.create_future()
        self._wire = Wire(await server.connected(), self._replied, lambda lost: finished(over))
        try:
            self._new = True
            self._subscribe(self._wire)
            await over
        finally:
            self._asked = inf
            with suppress(RuntimeError):  # the loop was closed without a word to its tasks
                self._wire.close()

    def _replied(self, message: Any) -> None:
        """What makes no sense, or an error, ends the connection: the next may do better."""
        assert self._wire is not None, "it is what is heard"
        self._asked = None
        try:
            self._heard(*message)
        except Exception as senseless:
            self._wire.cut(senseless)

    def _heard(self, kind: bytes, channel: bytes, news: Any) -> None:
        if kind == b"subscribe" and self._new:
            self._attempts, self._new = 0, False
            for lane in self._link.lanes.values():
                lane.look()  # what was announced before we listened
        elif kind == b"message":
            key, _, rest = news.decode().partition(" ")
            if key in self._link.lanes:
                self._link.lanes[key].heard(rest)


def finished(future: asyncio.Future[None]) -> None:
    if not future.done():  # it may have been cancelled this moment
        future.set_result(None)
