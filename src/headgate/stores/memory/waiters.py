"""Who waits in a process, and how each is woken where it waits: a task in its loop, a thread on its
lock.

Here live sleeping and waking and nothing else: a wake is a hint to look, and what is seen is
decided elsewhere.
"""

from __future__ import annotations

from asyncio import Future, _get_running_loop, get_running_loop, sleep
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

from headgate.gate.concurrency import NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.clock import Clock
    from headgate.gate.gate import Grant
    from headgate.request import Request
    from headgate.waiting import Waiting


class Event:
    """What one thread waits for.

    A wait consumes it, and an exception in the middle of any call leaves it whole.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """False when it was not set within `timeout` seconds."""
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class Waiter:
    """One queued acquire: its grant, if there is one, and the moment at which it looks itself."""

    request: Request
    grant: Grant | None = None
    holds = True  # what it was granted is held until it is released
    refused: Exception | None = (
        None  # why it waits in vain: its cost is above what the limit now holds, say
    )
    epoch = 0  # of its queue, in which it was queued or granted
    waiting: Waiting | None = None  # what its request wants to hear of before it sleeps
    ticket: object = None  # stands among those that were granted and have not run since
    look_at = NEVER
    deadline = NEVER

    def wake(self) -> bool:
        """Make the waiter look. False when it has nowhere to wake up any more."""
        raise NotImplementedError

    def timeout(self, now: int) -> float | None:
        """Seconds until it looks by itself."""
        moment = min(self.look_at, self.deadline)
        return None if moment >= NEVER else max(0, moment - now) / 1_000_000

    def refuse(self, error: Exception) -> None:
        """It waits in vain, unless it has its grant already."""
        self.refused = error
        self.wake()

    def tell(self) -> None:
        """That it has to queue, in its own task or thread."""
        if self.waiting is not None and self.request.on_wait is not None:
            self.request.on_wait(self.waiting)


class TaskWaiter(Waiter):
    """A waiter in a task of an event loop.

    Its future is done, with the waiter as its result, when there is something to see.
    """

    def __init__(self, request: Request, future: Future[Any]) -> None:
        self.request = request
        self.future = future

    async def sleep(self, clock: Clock, timeout: float | None, look: Callable[[], None]) -> None:
        """Until it is woken, or for `timeout` seconds: whoever looks first then wakes all who may
        go, in their order (S6).
        """

        def due() -> None:
            look()
            self.stir()

        if self.future.done():
            await sleep(0)  # behind all who were woken before
        loop = self.future.get_loop()
        timer = None if timeout is None else clock.later(loop, timeout, due)
        try:
            await self.future
        finally:
            if timer is not None:
                timer.cancel()
        self.future = loop.create_future()

    def stir(self) -> None:
        tell(self.future, self)

    def wake(self) -> bool:
        try:
            if is_here(self.future):
                self.stir()
            else:
                self.future.get_loop().call_soon_threadsafe(tell, self.future, self)
        except RuntimeError:  # the loop is closed, and its waiters with it
            return False
        return True


class MovedWaiter(TaskWaiter):
    """A task that waited in the crowd, and at first does not know that it waits elsewhere."""

    knows = False

    def wake(self) -> bool:
        if not hasattr(self, "future"):
            return True
        woken = super().wake()
        if (
            self.grant is not None and not self.knows
        ):  # if its loop is dropped now, it must be free to be collected
            del self.future
        return woken


class ThreadWaiter(Waiter):
    """A waiter that blocks its thread."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.event = Event()

    def sleep(self, clock: Clock, timeout: float | None) -> None:
        clock.wait(self.event, timeout)

    def wake(self) -> bool:
        self.event.set()
        return True

    def fork(self) -> None:
        """In the child of a fork: look, and end the acquire, which goes on in the parent."""
        self.wake()


def tell(future: Future[Any], waiter: TaskWaiter) -> None:
    if not future.done():
        future.set_result(waiter)


def place_here() -> Future[Any]:
    """Where the running task can be woken."""
    if _get_running_loop() is None:
        raise no_loop()
    return Future()


def no_loop() -> RuntimeError:
    """Somebody awaits without asyncio: what wakes a task here is asyncio's, and others do not know
    what to do with it.
    """
    return RuntimeError(
        "No event loop of asyncio runs here, and headgate's coroutines wait by nothing else. Under "
        "trio, enter limiters with `with` in a thread: trio.to_thread.run_sync(...)."
    )


def is_here(future: Future[Any]) -> bool:
    """Whether `future` belongs to the loop of this thread: only there may it be touched."""
    try:
        return future.get_loop() is get_running_loop()
    except RuntimeError:  # no loop runs here
        return False
