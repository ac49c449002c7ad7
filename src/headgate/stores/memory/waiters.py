"""Waiting acquires. Each sleeps and wakes where it waits: a task in its loop, a thread on a lock.

A wake is only a hint to look. The queue decides what the waiter sees then.
"""

from __future__ import annotations

from asyncio import Future, _get_running_loop, sleep
from collections import deque
from contextlib import suppress
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from headgate.forks import exit_error
from headgate.gate.concurrency import NEVER
from headgate.stores.loops import no_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.clock import Clock
    from headgate.gate.gate import Grant
    from headgate.request import Request
    from headgate.waiting import Waiting

# Of the tasks in local_waiters.py. A task that was handed its permit gets a marker as the result:
# see `WaitQueue.starting`. One that has migrated into the gate's queue gets its `MigratedWaiter`.
Futures = deque[Future[Any]]


class Event:
    """For one thread. Each `wait` resets it. An exception in the middle of a call does no harm."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = Lock()
        self._lock.acquire()

    def set(self) -> None:
        with suppress(RuntimeError):  # it is set already
            self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        return self._lock.acquire(timeout=-1 if timeout is None else timeout)


class Waiter:
    request: Request
    grant: Grant | None = None
    holds = True  # the granted permit is held until it is released
    refused: Exception | None = None  # why it waits in vain
    epoch = 0  # of its queue
    waiting: Waiting | None = None  # for the `on_wait` of its request, before it sleeps
    marker: object = None  # of a task that was granted and has not run yet
    since: int | None = None  # when it joined the queue
    noted = False  # its grant was counted
    check_at = NEVER  # when it looks by itself
    deadline = NEVER

    def wake(self) -> bool:
        """Make the waiter look. False when its loop is closed."""
        raise NotImplementedError

    def timeout(self, now: int) -> float | None:
        moment = min(self.check_at, self.deadline)
        return None if moment >= NEVER else max(0, moment - now) / 1_000_000

    def refuse(self, error: Exception) -> None:
        self.refused = error
        self.wake()

    def call_on_wait(self) -> None:
        if self.waiting is not None and self.request.on_wait is not None:
            self.request.on_wait(self.waiting)


class TaskWaiter(Waiter):
    """Its future is done, with the waiter as its result, when there is something to see."""

    def __init__(self, request: Request, future: Future[Any]) -> None:
        self.request = request
        self.future = future

    async def sleep(self, clock: Clock, timeout: float | None, look: Callable[[], None]) -> None:
        """Sleep until a wake, or for `timeout` seconds, if it is a number.

        After the timeout the waiter calls `look`. That wakes all waiters that may go, in order
        (S6).
        """

        def look_and_wake() -> None:
            look()
            resolve(self.future, self)

        if self.future.done():
            await sleep(0)  # it was woken already: let those that were woken before it run first
        loop = self.future.get_loop()
        timer = None if timeout is None else clock.later(loop, timeout, look_and_wake)
        try:
            await self.future
        finally:
            if timer is not None:
                timer.cancel()
        self.future = loop.create_future()

    def wake(self) -> bool:
        try:
            # Only the thread of its loop may touch the future.
            loop = self.future.get_loop()
            if loop is _get_running_loop():
                resolve(self.future, self)
            else:
                loop.call_soon_threadsafe(resolve, self.future, self)
        except RuntimeError:  # the loop is closed, and its waiters with it
            return False
        return True


class MigratedWaiter(TaskWaiter):
    """The waiter of a task that has migrated: see local_waiters.py."""

    seen = False  # the task has run since it migrated, and waits by this waiter

    def wake(self) -> bool:
        if not hasattr(self, "future"):  # an earlier call has deleted it, as below
            return True
        woken = super().wake()
        # `LocalWaiters.migrated` keeps this waiter until the task runs. If the loop is dropped, it
        # never runs, and the future would keep the task alive.
        if self.grant is not None and not self.seen:
            del self.future
        return woken


class ThreadWaiter(Waiter):
    def __init__(self, request: Request) -> None:
        self.request = request
        self.event = Event()
        self.thread = get_ident()

    def sleep(self, clock: Clock, timeout: float | None) -> None:
        clock.wait(self.event, timeout)

    def wake(self) -> bool:
        self.event.set()
        return True

    def forked(self) -> None:
        """In the child of a fork: the acquire goes on in the parent."""
        self.wake()

    def end_wait(self) -> None:
        self.refuse(exit_error())


def resolve(future: Future[Any], waiter: TaskWaiter) -> None:
    if not future.done():
        future.set_result(waiter)


def new_future() -> Future[Any]:
    if _get_running_loop() is None:
        raise no_loop()
    return Future()
