"""An acquire of one event loop: its state until it ends, and the future that its task awaits."""

from __future__ import annotations

import os
from asyncio import Future
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, cast

from headgate.forks import forked
from headgate.gate.gate import Grant
from headgate.request import Request
from headgate.stores.redis.protocol.operations import Caller, new_caller
from headgate.waiting import OnWait, Waiting, queued_at

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from headgate.permit import Permit
    from headgate.stores.redis.protocol.operations import Cancel, Operation


class PendingAcquire:
    """An acquire until it ends: sent, waiting, or granted and sleeping until its moment."""

    __slots__ = (
        *(
            "__weakref__",
            "believed",
            "cancel",
            "deadline",
            "due",
            "enters",
            "fence",
            "future",
            "answer_by",
            "last",
            "lease",
            "number",
        ),
        *("permit", "request", "session_id", "start", "t"),
    )

    def __init__(self, number: int, request: Request, future: Future[Any], enters: bool) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.enters = enters
        self.start = monotonic()
        self.session_id = ""  # the session that sent it; empty before that
        self.last = 0  # the number of the last acquire in the same call
        self.due = inf  # when it should be granted, by the estimate, on the monotonic clock
        self.answer_by = inf  # the end of the wait for a first answer, on the loop's clock
        self.deadline: TimerHandle | None = None  # the timer for `max_sleep`, while it waits
        self.t = 0  # the moment of the grant, by the server's clock; 0 before the grant
        self.fence = 0  # the fence of the last grant that the server took back
        self.lease = 0  # the lease of the grant, in microseconds
        # The operation that gives it up. There is at most one, or the grant would be undone twice.
        self.cancel: Cancel | None = None
        self.permit: Permit | None = None  # the permit that another caller left to it
        # The end of the time for which the grant is held for certain, on the monotonic clock.
        # None: the grant holds nothing.
        self.believed: float | None = None

    @property
    def waited(self) -> float:
        return monotonic() - self.start

    @property
    def caller(self) -> Caller:
        return new_caller((self.session_id, self.number, self.request.text))

    def report_wait(self, position: int, delay: int) -> None:
        """Tell the task once that it waits, if the request has an `on_wait`.

        The future gives the task its position first. Another future gives it the outcome.
        """
        request = self.request
        if request.on_wait is not None:
            self.request = with_on_wait(request, None)
            asked, self.future = self.future, self.future.get_loop().create_future()
            # The task may be cancelled before it awaits this future.
            self.future.add_done_callback(retrieve_error)
            asked.set_result(queued_at(position, delay))

    def settle(self, outcome: Grant | BaseException) -> None:
        settle(self.future, outcome)

    def refuse(self, error: Exception) -> None:
        """Fail from any thread, unless the grant is already there."""
        with suppress(RuntimeError):  # its loop is closed
            self.future.get_loop().call_soon_threadsafe(self.settle, error)


def with_on_wait(request: Request, on_wait: OnWait | None) -> Request:
    """The same request with another `on_wait`, or with none."""
    rest = request.retry_for, request.raises, request.closing
    return Request(request.units, request.max_sleep, request.max_waiters, on_wait, *rest)


async def await_grant(pending: PendingAcquire, on_wait: OnWait, name: str) -> Grant:
    """The grant of an acquire whose request has an `on_wait`.

    Raises RuntimeError in the child if `on_wait` forks the process.
    """
    outcome = await pending.future
    if isinstance(outcome, Waiting):
        if not (pending.t or pending.future.done()):  # no outcome has arrived since
            process = os.getpid()
            on_wait(outcome)
            if os.getpid() != process:
                raise forked(name)
        outcome = await pending.future
    return cast(Grant, outcome)


def settle(future: Future[Any], outcome: object) -> None:
    """Set the outcome of `future`, unless it is done."""
    if not future.done():
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def abandon(future: Future[Any]) -> None:
    """Cancel a future that may belong to a loop that is closed."""
    with suppress(RuntimeError):
        future.cancel()


def forget(operation: Operation) -> None:
    """The loop that awaits the answer has ended."""
    if isinstance(operation.asker, Future):
        abandon(operation.asker)
        operation.asker = None


def retrieve_error(future: Future[Any]) -> None:
    """Retrieve the error of `future`, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
