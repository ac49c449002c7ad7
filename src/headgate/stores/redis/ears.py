"""The ears of a link: a subscription, made when somebody waits for the first time, to what other processes grant to this one.

Here lives that one connection. What is heard is a hint: it may come late, twice or never, and every lane asks by itself in time.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headgate.stores.redis.link import Link

BACKOFF, LONGEST = 0.05, 5.0  # seconds before the second attempt, doubled for each further one up to so many, with full jitter
JITTER = random.SystemRandom()  # not the user's own chance, and another one after a fork


class Ears:
    """The subscription of one event loop."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self.task: asyncio.Task[None] | None = None

    def listen(self) -> None:
        if self.task is None or self.task.done():
            self.task = self._link.start(self._hear(), "headgate-ears")

    async def _hear(self) -> None:
        """Until the connection is lost at a time when nobody waits: the next who does listens again."""
        attempt = 0
        while True:
            subscribed = False
            with suppress(Exception):  # lost, or what a user's credential_provider raises
                server = await self._link.anybody(again=attempt > 0)
                async with server.talk() as connection:
                    await connection.send_command("SUBSCRIBE", f"headgate:{self._link.id}")
                    await connection.read_response()
                    subscribed = True
                    for lane in self._link.lanes.values():
                        lane.look()  # what was announced before we listened
                    while True:
                        self._heard(await connection.read_response())
            attempt = 0 if subscribed else min(attempt + 1, 10)
            if not any(lane.waits for lane in self._link.lanes.values()):
                return
            await asyncio.sleep(JITTER.uniform(0, min(LONGEST, BACKOFF * 2**attempt)))

    def _heard(self, message: Any) -> None:
        if message[0] == b"message":
            key, _, rest = message[2].decode().partition(" ")
            lane = self._link.lanes.get(key)
            if lane is not None:
                lane.heard(rest)
