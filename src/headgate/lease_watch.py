"""The watch over a block does for its lease what asyncio.timeout does for a deadline.

The store renews a lease, and the permit knows when it is lost. This module delivers the loss: a
task is cancelled where it awaits, and a thread gets the error at the end of its block. Only
limiters with on_lost="cancel" use it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from math import inf
from time import monotonic
from typing import Any, TypeVar

from headgate.errors import LeaseLostError
from headgate.interfaces import Queue
from headgate.keys import title
from headgate.permit import BlockWatch, Lost, Permit, Refusal, redirect, set_lease_end
from headgate.request import Request
from headgate.stores.context_stack import current_caller, not_begun
from headgate.wrapping import IssuerWrapper, QueueWrapper

T = TypeVar("T", Permit, Permit | Refusal)

# A body is cancelled a little before its lease stops being certain. Timers are late, and the body
# has to end before another caller gets the permit. It is cancelled MARGIN seconds before, or
# MARGIN_FRACTION of the remaining lease if that is less.
MARGIN = 0.02
MARGIN_FRACTION = 1 / 20


class Watch:
    """Watches the lease of one block, from the first line of its body to the last."""

    __slots__ = (
        "_began",
        "_cancelled",
        "_cancelled_before",
        "_cancelled_by_no_other",
        "_name",
        "_permit",
        "_task",
        "_timer",
        "lost",
    )

    def __init__(self, permit: Permit, queue: Queue) -> None:
        self.lost = False  # whether this watch found the lease lost before the release
        self._permit = permit
        self._name = queue.name
        self._began = monotonic()
        self._task: asyncio.Task[Any] | None = None  # the task that we may interrupt
        # The task's count of cancellation requests when the body began or went on.
        self._cancelled_before = 0
        self._timer: asyncio.TimerHandle | None = None
        self._cancelled = False  # this watch has cancelled the task
        # This watch has cancelled the task, and no other code had when the body ended.
        self._cancelled_by_no_other = False
        permit.watch = self
        redirect(permit, WatchedIssuer)

    def close(self, error: object) -> None:
        """The body is over, with `error`, and the permit goes back."""
        self.end()
        self.raise_loss(error)

    def begin(self) -> None:
        """The body begins in the running task."""
        self.begin_sync()
        self._watch_task(asyncio.current_task())

    def begin_sync(self) -> None:
        """Begin the body in a thread, which cannot be interrupted.

        The body does not begin if its permit came too late.
        """
        if self._permit.lost:
            self.end()
            self.raise_loss(None)

    def on_lease_change(self) -> None:
        """The permit calls this when the end of its lease changes, in the thread that renews it."""
        task = self._task
        if task is not None:
            call_in(task.get_loop(), self._follow_lease, task)

    def _follow_lease(self, task: asyncio.Task[Any]) -> None:
        """Set the timer anew, or cancel the body, unless `task` has left it meanwhile."""
        if self._task is not task or self.lost:
            return
        self._disarm(task)
        if self._permit.lost:
            self.lost = self._cancelled = True
            task.cancel()
        else:
            self._arm(task)

    def check_lease(self) -> None:
        """Note whether the lease is lost. A release fixes `permit.lost`, and then calls this."""
        self.lost = self.lost or self._permit.lost

    def end(self) -> None:
        self.suspend()
        self.check_lease()
        self._permit.watch = None
        self._permit.release()

    def raise_loss(self, error: object) -> None:
        """If the lease was lost, raise LeaseLostError. Call this after `end`.

        `error` is that of the body. It stays, unless it is the cancellation by this watch alone.
        """
        if self.lost and error is None:
            raise self._error() from None
        if self.lost and self._cancelled_by_no_other and isinstance(error, asyncio.CancelledError):
            raise self._error() from error

    def suspend(self) -> None:
        """Undo our cancellation, because the code that runs from here on is not the body and must
        not see it.
        """
        task, self._task = self._task, None
        self._cancelled_by_no_other = False
        if task is not None:
            self._disarm(task)
            if self._cancelled:
                self._cancelled_by_no_other = task.uncancel() <= self._cancelled_before

    def resume(self, error: BaseException | None) -> None:
        """The body goes on, in the running task.

        If the lease was lost meanwhile and no `error` was thrown in, raise LeaseLostError.
        """
        self.check_lease()
        if not self.lost:
            self._watch_task(asyncio.current_task())
        elif error is None:
            raise self._error()

    def _watch_task(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None:
            self._task, self._cancelled_before = task, task.cancelling()
            self._arm(task)

    def _arm(self, task: asyncio.Task[Any]) -> None:
        if self._permit.held and self._permit.certain_until < inf:
            left = max(0.0, self._permit.certain_until - monotonic())
            self._timer = task.get_loop().call_later(
                left - min(MARGIN, left * MARGIN_FRACTION), self._too_late
            )

    def _disarm(self, task: asyncio.Task[Any]) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            call_in(task.get_loop(), timer.cancel)

    def _too_late(self) -> None:
        """No renewal has come in time, so end the lease for good."""
        set_lease_end(self._permit, monotonic())

    def _error(self) -> LeaseLostError:
        now, until = monotonic(), self._permit.certain_until
        return LeaseLostError(
            f"A block of {title(self._name)} lost its permit {max(0.0, until - self._began):.3f} s "
            f"after it began, {max(0.0, now - until):.3f} s ago: its lease was not renewed in "
            "time, or the store has forgotten it. Another caller may hold it: check what the "
            "block has done and do it again; if pauses are longer, give Concurrency a longer "
            "lease."
        )


def call_in(loop: asyncio.AbstractEventLoop, act: Callable[..., object], *arguments: Any) -> None:
    """Call `act` in `loop`: at once if it runs in this thread. A closed loop calls nothing."""
    if loop is asyncio._get_running_loop():
        act(*arguments)
    else:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(act, *arguments)


class Unwatched(AbstractContextManager[None]):
    """Around a `yield`: the code that iterates runs, and the watch must not cancel it."""

    __slots__ = ("_watch",)

    def __init__(self, watch: BlockWatch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch.suspend()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watch.resume(error)


def unwatched(permit: Permit) -> AbstractContextManager[None]:
    """The context manager around each `yield` of a body that holds `permit`."""
    return nullcontext() if permit.watch is None else Unwatched(permit.watch)


class WatchedIssuer(IssuerWrapper):
    """Lets the watch of a block note a loss before its permit is released."""

    def _before_release(self, permit: Permit) -> None:
        watch = permit.watch  # another thread may end the block meanwhile
        if watch is not None:
            watch.check_lease()


class Watched(QueueWrapper):
    """Watches over the blocks that enter by this queue."""

    def __init__(self, queue: Queue) -> None:
        super().__init__(queue)
        self._inside: defaultdict[Hashable, list[Watch]] = defaultdict(list)  # by task or thread

    def _wrapped(self, answer: T) -> T:
        """A permit whose blocks are watched over."""
        if isinstance(answer, Permit):
            answer.guard = self._watch
        return answer

    def _watch(self, permit: Permit) -> Watch:
        return Watch(permit, self)

    async def enter_waiting(self, request: Request) -> None:
        watch = self._watch(await self._queue.acquire(request))
        watch.begin()
        self._inside[current_caller()].append(watch)

    def enter_sync(self, request: Request) -> None:
        watch = self._watch(self._queue.acquire_sync(request))
        watch.begin_sync()
        self._inside[current_caller()].append(watch)

    def leave(self) -> None:
        """Leave the block that this task or thread entered last.

        A task that closes the generator of another one may have entered none. Then leave the latest
        block of the task or thread that was listed last.
        """
        owner = current_caller()
        if owner not in self._inside:
            if not self._inside:
                raise not_begun()
            owner = next(reversed(self._inside))
        watch = self._inside[owner].pop()
        if not self._inside[owner]:
            del self._inside[owner]
        watch.end()
        if watch.lost:
            raise Lost(watch)
