"""The end of a limiter: it takes no new acquires, and waits until the present ones have left.

This module lists the waiting acquires of one limiter and its keys. An acquire is listed only while
it waits, and by a weak reference: a task whose loop was dropped can still be collected.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn, Protocol, cast
from weakref import WeakSet, ref

from headgate.errors import LimiterClosedError
from headgate.forks import exit_error
from headgate.keys import title
from headgate.stores.memory.lock import has_lock
from headgate.threads import snapshot

LONGEST = 0.05  # the longest time between two checks for waiting acquires, in seconds
CLEANUP_FROM = 64  # with more references to limiters, a Closing looks for dead ones


class Refusable(Protocol):
    """A waiting acquire of a store."""

    def refuse(self, error: Exception) -> None: ...


Entry = ref[Any]  # of a Refusable, or of the future that a task awaits


class Owner(Protocol):
    """A limiter, or one of its keys."""

    def _shut(self) -> None:
        """Refuse all acquires from now on. A second call does nothing."""


class Closing:
    """The waiting acquires of one limiter and its keys, and whether it is closed."""

    __slots__ = (
        "__weakref__",
        "_cleanup_at",
        "_owners",
        "_refuses",
        "add_waiting",
        "closed",
        "discard_waiting",
        "name",
        "waiting",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.waiting: set[Entry] = set()
        # Once waiters are refused, `add_waiting` raises LimiterClosedError. Both are C functions.
        # So if `discard_waiting` is the first call of a `finally`, no signal handler can run before
        # it.
        self.add_waiting: Callable[[Entry], None] = self.waiting.add
        self.discard_waiting = self.waiting.discard
        self._refuses = False
        self._owners: list[ref[Any]] = []
        self._cleanup_at = CLEANUP_FROM

    def add(self, owner: Owner) -> None:
        """Register `owner`: a close shuts it, too."""
        self._owners.append(ref(owner))
        if len(self._owners) > self._cleanup_at:
            self._owners = [each for each in self._owners if each() is not None]
            self._cleanup_at = max(CLEANUP_FROM, 2 * len(self._owners))
        if self.closed:
            self._shut()

    def owners(self) -> list[Any]:
        """The limiter and its keys, those that are still in use."""
        return [owner for each in list(self._owners) if (owner := each()) is not None]

    # For a close ----------------------------------------------------------------------------------

    def close(self, refuse_waiters: bool) -> None:
        """Refuse new acquires, and block this thread until no acquire waits."""
        self._check_thread()
        self._begin_close(refuse_waiters)
        for interval in check_intervals():
            if not self._waits():
                break
            if has_lock():  # this code interrupted a call that holds the lock of the acquires
                raise self._interrupting()
            time.sleep(interval)
        # Shut again: `Undeclared._step_aside` in another thread may have replaced the `Closed`
        # queue. It compares and then assigns. The first `_shut` may have come between the two.
        self._shut()

    async def aclose(self, refuse_waiters: bool) -> None:
        """`close` for coroutines."""
        self._begin_close(refuse_waiters)
        for interval in check_intervals():
            if not self._waits():
                break
            await asyncio.sleep(interval)
        self._shut()  # as in `close`

    def _check_thread(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"close() of {title(self.name)} would block the event loop in which acquires may "
                "wait: write `await limiter.aclose()`."
            )
        if self._blocks_here():
            raise self._interrupting()

    def _interrupting(self) -> RuntimeError:
        return RuntimeError(
            f"close() of {title(self.name)} would wait inside a call of a limiter that it has "
            "interrupted in this thread: call it outside the signal handler or finalizer, or in "
            "another thread."
        )

    def _blocks_here(self) -> bool:
        """Whether an acquire blocks this thread, which runs a handler or a finalizer now.

        The list does not say which thread waits. So this searches the stack: a function that blocks
        its thread for an acquire keeps its Closing in a local variable named `closing`.
        """
        stack: FrameType | None = sys._getframe()
        while stack is not None:
            ours = stack.f_globals.get("__name__", "").startswith("headgate.")
            if (
                ours
                and "closing" in stack.f_code.co_varnames
                and stack.f_locals.get("closing") is self
            ):
                return True
            stack = stack.f_back
        return False

    def _begin_close(self, refuse_waiters: bool) -> None:
        self.closed = True
        self._refuses = self._refuses or refuse_waiters
        self._shut()
        if self._refuses:
            self.add_waiting = self._refuse
            for entry in list(self.waiting):
                refuse(entry(), closed_error(self.name))

    def _refuse(self, entry: Entry) -> NoReturn:
        raise closed_error(self.name)

    def _shut(self) -> None:
        for owner in self.owners():
            owner._shut()

    def _waits(self) -> bool:
        """Whether an acquire waits.

        A close asks again and again, because a closed loop does not report the end of its acquires.
        While the interpreter ends, no other thread runs, so no acquire goes on.
        """
        return not sys.is_finalizing() and any(
            self._goes_on(waiter) for entry in list(self.waiting) if (waiter := entry()) is not None
        )

    def _goes_on(self, waiter: Any) -> bool:
        """Whether a listed acquire waits still.

        A thread's acquire waits for as long as it is listed. A task's acquire has ended if its loop
        is closed. A refused one also counts as ended while its loop does not run.
        """
        future = future_of(waiter)
        if future is None:  # a thread
            return True
        loop = future.get_loop()
        return not (loop.is_closed() or (self._refuses and not loop.is_running()))

    def forked(self) -> None:
        """In the child of a fork: the parent's acquires wait in the parent."""
        self.waiting.clear()


def closed_error(name: str) -> LimiterClosedError:
    return LimiterClosedError(
        f"{title(name)[:1].upper()}{title(name)[1:]} was closed in this process, and its acquires "
        "are refused: acquire before close(), or make another Limiter of this name."
    )


def check_intervals() -> Iterator[float]:
    """Seconds between two checks: short at first, and each twice the one before."""
    interval = 0.001
    while True:
        yield interval
        interval = min(2 * interval, LONGEST)


def future_of(waiter: Any) -> asyncio.Future[Any] | None:
    """The future that a task awaits. None: a thread waits, or the acquire has ended."""
    return waiter if isinstance(waiter, asyncio.Future) else getattr(waiter, "future", None)


def refuse(waiter: Any, error: Exception) -> None:
    if isinstance(waiter, asyncio.Future):
        with suppress(RuntimeError):  # its loop is closed
            waiter.get_loop().call_soon_threadsafe(fail, waiter, error)
    elif waiter is not None:
        cast(Refusable, waiter).refuse(error)


def end_task_waits(thread: int) -> None:
    """Refuse the acquires that wait in event loops of `thread`: forks.py says why."""
    for closing in snapshot(CLOSINGS):
        for waiter in [entry() for entry in list(closing.waiting)]:
            future = future_of(waiter)
            if future is not None:
                with suppress(RuntimeError):  # its loop is closed
                    future.get_loop().call_soon_threadsafe(_end_wait_in, thread, waiter)


def _end_wait_in(thread: int, waiter: Any) -> None:
    if threading.get_ident() == thread:  # only code inside a loop can find its thread
        refuse(waiter, exit_error())


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # else asyncio reports an error that no task awaits any more


UNCLOSED = Closing("")  # for an acquire that belongs to no limiter
CLOSINGS: WeakSet[Closing] = WeakSet([UNCLOSED])


def _after_fork() -> None:
    for closing in snapshot(CLOSINGS):
        closing.forked()


os.register_at_fork(after_in_child=_after_fork)
