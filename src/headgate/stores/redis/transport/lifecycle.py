"""The end of a client: its loop ends, or no limiter needs its connections any more.

The client sends the operations that it must deliver, if that takes a second at most. It names the
limiters that it has used. Then the portal takes over its sessions.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from headgate.stores.redis.transport.portal import LIFECYCLE
from headgate.stores.redis.transport.tasks import begun

DRAIN_TIMEOUT = 1.0  # The seconds in which a loop that ends can send its releases.
DRAIN_INTERVAL = 0.001  # The seconds between two checks whether they are confirmed.
# The unconfirmed calls of one limiter: title, reason, count by method.
Unsent = tuple[str, str, Counter[str]]


class Keeper(Protocol):
    """The sessions of a client, when its loop or the process ends."""

    def take_over(self, client: Any) -> None: ...
    def deliver(self, client: Any, until: float) -> Coroutine[Any, Any, None]: ...
    def unsent(self, client: Any) -> list[Unsent]: ...


class Connections(Protocol):
    """The part of the client that Lifecycle uses."""

    loop: asyncio.AbstractEventLoop

    def retry_backlog(self) -> bool: ...
    def tasks(self) -> list[asyncio.Task[None]]: ...
    def close(self) -> None: ...


class Lifecycle:
    def __init__(self, client: Connections, keeper: Keeper) -> None:
        self._client = client
        self.keeper = keeper
        # The portal has taken over the sessions' permits and the operations that they must deliver.
        self.handed_over = False
        # `end` holds this lock. It is reentrant: a signal handler may end the client, too.
        self._ending = threading.RLock()
        # The loop did not run when the client ended: its tasks never end by themselves.
        self.abandoned = False
        # This sends the last operations that no caller waits for, and takes a moment at most.
        self.before_end: Callable[[], Coroutine[Any, Any, None]] | None = None
        work = self._run()
        # asyncio never enters the body of a task that it cancels before the first step. So the
        # first step happens here.
        work.send(None)
        self._task = begun(work, LIFECYCLE)

    async def _run(self) -> None:
        """Wait until the loop ends. Then let its tasks end, and send their releases.

        Later releases go through the portal.
        """
        try:
            await asyncio.sleep(0)  # The first step, which __init__ runs, ends here.
            await self._client.loop.create_future()
        except asyncio.CancelledError:
            # In these turns the other tasks of the loop end, and release their permits.
            for _ in range(3):
                await asyncio.sleep(0)
            await self._drain()
            await self.run_before_end()
            self.end()
            # Some tasks may have started after the loop began to end. No other code waits for them.
            if tasks := self._client.tasks():
                await asyncio.wait(tasks, timeout=DRAIN_TIMEOUT)
            raise
        finally:
            self._client.close()

    async def run_before_end(self) -> None:
        if self.before_end is not None:
            await self.before_end()

    def retire(self) -> None:
        """End before the loop does, because no limiter needs these connections any more."""
        self._task.cancel()

    def end(self) -> None:
        """Make no more calls here. The portal takes over the sessions' permits and the operations
        that they must deliver.

        Several threads may end the client of a closed loop. Each returns only when the portal has
        taken over.
        """
        with self._ending:
            if not self.handed_over:
                self.abandoned = not self._client.loop.is_running()
                self._client.close()
                self.keeper.take_over(self._client)
                self.handed_over = True

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT):
                while self._client.retry_backlog():  # noqa: ASYNC110 - replies set no event
                    await asyncio.sleep(DRAIN_INTERVAL)
        except TimeoutError:
            pass  # The leases expire by themselves.
