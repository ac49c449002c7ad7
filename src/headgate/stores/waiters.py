"""Who waits in a process, and how each is woken where it waits: a task in its loop, a thread on its lock.

Here live sleeping and waking and nothing else: a wake is a hint to look, and what is seen is decided elsewhere.
"""

from __future__ import annotations

import threading
from asyncio import Future, get_running_loop
from typing import TYPE_CHECKING

from headgate.gate.slots import NEVER

if TYPE_CHECKING:
    from headgate.gate.gate import Grant
    from headgate.request import Request


class Waiter:
    """One queued acquire: its grant once there is one, and the moment at which it looks by itself."""

    __slots__ = ("deadline", "grant", "look_at", "never", "request", "woken")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.grant: Grant | None = None
        self.never = False  # its cost is above what the limit now holds
        self.look_at = NEVER
        self.deadline = NEVER
        self.woken = False

    def wake(self) -> bool:
        """Make the waiter look. False when it has nowhere to wake up any more."""
        raise NotImplementedError


class TaskWaiter(Waiter):
    """A waiter in a task of an event loop."""

    __slots__ = ("future", "loop", "thread")

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.loop = get_running_loop()
        self.thread = threading.get_ident()
        self.future: Future[None] | None = None

    async def sleep(self, timeout: float | None) -> None:
        if not self.woken:
            self.future = self.loop.create_future()
            timer = None if timeout is None else self.loop.call_later(timeout, self.stir)
            try:
                await self.future
            finally:
                self.future = None
                if timer is not None:
                    timer.cancel()
        self.woken = False

    def stir(self) -> None:
        self.woken = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    def wake(self) -> bool:
        if self.thread == threading.get_ident():
            self.stir()
            return not self.loop.is_closed()
        try:
            self.loop.call_soon_threadsafe(self.stir)
        except RuntimeError:  # the loop is closed, and its waiters with it
            return False
        return True


class ThreadWaiter(Waiter):
    """A waiter that blocks its thread."""

    __slots__ = ("event",)

    def __init__(self, request: Request) -> None:
        super().__init__(request)
        self.event = threading.Event()

    def sleep(self, timeout: float | None) -> None:
        self.event.wait(timeout)
        self.event.clear()

    def wake(self) -> bool:
        self.event.set()
        return True
