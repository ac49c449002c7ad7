"""The end of a limiter: it takes no new acquires, and waits until the present ones have left.

Here live the list of the acquires that wait by one limiter and its keys, and the line of a limiter that is closed. An acquire is
listed only while it waits, and by a weak reference: a task whose loop was dropped can still be collected.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future as Done
from contextlib import suppress
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast
from weakref import WeakSet, ref

from headgate.errors import LimiterClosedError
from headgate.names import title

if TYPE_CHECKING:
    from headgate.line import Front

FEWEST = 64  # references to limiters that are kept without looking for dead ones


class Refusable(Protocol):
    """A waiting acquire of a store."""

    def refuse(self, error: Exception) -> None: ...


Entry = ref[Any]  # of a Refusable, or of the future that a task awaits


class Owner(Protocol):
    """A limiter, or one of its keys."""

    _line: Front


class Closing:
    """The acquires that wait by one limiter and its keys, and whether it is closed."""

    __slots__ = ("__weakref__", "_closers", "_most", "_owners", "_refuses", "_threads", "closed", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.closed = False
        self.waiting: set[Entry] = set()
        self._threads: list[int] = []  # the threads that wait: a close in one of their signal handlers would wait for itself
        self._refuses = False
        self._closers: list[Done[None]] = []
        self._owners: list[ref[Any]] = []
        self._most = FEWEST

    def add(self, owner: Owner) -> None:
        """Close `owner` together with the others."""
        self._owners.append(ref(owner))
        if len(self._owners) > self._most:
            self._owners = [each for each in self._owners if each() is not None]
            self._most = max(FEWEST, 2 * len(self._owners))
        if self.closed:
            self._shut()

    def owners(self) -> list[Any]:
        """The limiter and its keys, those that are still in use."""
        return [owner for each in list(self._owners) if (owner := each()) is not None]

    # For an acquire that waits -------------------------------------------------------------------------------------------

    def begin(self, entry: Entry) -> None:
        """List an acquire. Raises LimiterClosedError when waiters are refused already."""
        self.waiting.add(entry)
        if self._refuses:
            raise closed(self.name)

    def end(self, entry: Entry) -> None:
        """The acquire waits no longer."""
        self.waiting.discard(entry)
        if self.closed:
            self._left()

    def begin_sync(self, entry: Entry | None = None) -> None:
        """`begin` for an acquire that blocks this thread. Without `entry`, a task that acts for the thread lists itself."""
        self._threads.append(get_ident())
        if entry is not None:
            self.begin(entry)

    def end_sync(self, entry: Entry | None = None) -> None:
        with suppress(ValueError):  # a signal handler raised before the thread was listed
            self._threads.remove(get_ident())
        if entry is not None:
            self.end(entry)

    # For a close ---------------------------------------------------------------------------------------------------------

    def close(self, refuse_waiters: bool) -> None:
        """Refuse new acquires, and block this thread until no acquire waits."""
        self._check_thread()
        self._begin(refuse_waiters).result()
        self._shut()

    async def aclose(self, refuse_waiters: bool) -> None:
        """`close` for coroutines."""
        await asyncio.wrap_future(self._begin(refuse_waiters))
        self._shut()

    def _check_thread(self) -> None:
        if asyncio._get_running_loop() is not None:
            raise RuntimeError(
                f"close() of {title(self.name)} would block the event loop in which acquires may wait: "
                "write `await limiter.aclose()`."
            )
        if get_ident() in self._threads:
            raise RuntimeError(
                f"close() of {title(self.name)} would wait for the acquire that it has interrupted in this thread: "
                "call it outside the signal handler, or in another thread."
            )

    def _begin(self, refuse_waiters: bool) -> Done[None]:
        closer: Done[None] = Done()
        self._closers.append(closer)
        self.closed = True
        self._refuses = self._refuses or refuse_waiters
        self._shut()
        if self._refuses:
            for entry in list(self.waiting):
                self._refuse(entry())
        self._left()
        return closer

    def _shut(self) -> None:
        for owner in self.owners():
            if not isinstance(owner._line, Closed):
                owner._line = Closed(owner._line)

    def _refuse(self, waiter: Any) -> None:
        error = closed(self.name)
        if isinstance(waiter, asyncio.Future):
            with suppress(RuntimeError):  # its loop is closed
                waiter.get_loop().call_soon_threadsafe(fail, waiter, error)
        elif waiter is not None:
            cast(Refusable, waiter).refuse(error)

    def _left(self) -> None:
        """Let the closers go on when no acquire waits."""
        if any(waits(entry()) for entry in list(self.waiting)):
            return
        closers, self._closers = self._closers, []
        for closer in closers:
            if closer.set_running_or_notify_cancel():
                closer.set_result(None)

    def forked(self) -> None:
        """In the child of a fork: the parent's acquires wait in the parent."""
        self.waiting.clear()
        self._threads.clear()


class Closed:
    """The line of a closed limiter: acquires are refused, all else goes to the line inside."""

    def __init__(self, line: Front) -> None:
        self.name = line.name
        self._line = line

    def enter(self) -> bool:
        """False, so that the caller calls `enter_later` or `enter_sync`, which raise."""
        return False

    enter_task = enter

    async def enter_later(self, request: object) -> NoReturn:
        raise closed(self.name)

    acquire = atake = enter_later

    def enter_sync(self, request: object) -> NoReturn:
        raise closed(self.name)

    acquire_sync = take = enter_sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._line, name)


def closed(name: str) -> LimiterClosedError:
    return LimiterClosedError(
        f"{title(name)[:1].upper()}{title(name)[1:]} was closed in this process, and its acquires are refused: "
        "acquire before close(), or make another Limiter of this name."
    )


def waits(waiter: Any) -> bool:
    """Whether `waiter` still waits. An acquire ends with its loop."""
    future = waiter if isinstance(waiter, asyncio.Future) else getattr(waiter, "future", None)
    return waiter is not None and not (future is not None and future.get_loop().is_closed())


def fail(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


UNCLOSED = Closing("")  # for an acquire that belongs to no limiter
CLOSINGS: WeakSet[Closing] = WeakSet([UNCLOSED])


def _after_fork() -> None:
    for closing in list(CLOSINGS):
        closing.forked()


os.register_at_fork(after_in_child=_after_fork)
