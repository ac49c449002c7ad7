"""The acquires of a session, until they end."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, NamedTuple

from headgate.request import Request
from headgate.stores.redis.protocol.operations import Caller, new_caller
from headgate.waiting import queued_at

if TYPE_CHECKING:
    from headgate.gate.gate import Grant
    from headgate.permit import Permit
    from headgate.stores.redis.protocol.operations import Cancel, Promise


UNSENT = Caller("", 0, "")


class PendingAcquire:
    __slots__ = (
        *("__weakref__", "certain_until", "caller", "cancel", "deadline", "due", "enters"),
        *("future", "grant_future", "last", "number", "permit", "queued", "request", "start", "t"),
        "undone_fence",
    )

    def __init__(self, request: Request, future: Promise, enters: bool, now: float) -> None:
        self.number = 0
        self.request = request
        self.future = future
        # With `on_wait`, `future` first gets the position. Then this takes its place.
        self.grant_future: Promise | None = None
        self.enters = enters  # the caller never sees its permit, so it may take over one
        self.start = now
        self.caller = UNSENT
        self.last = 0  # the number of the last acquire in the same call
        self.queued = False  # it did not pass at once
        self.due = inf  # when it should be granted, by the estimate
        self.deadline: Deadline | None = None  # while it waits in the queue
        self.t = 0  # the moment of the grant, by the server's clock; 0: none
        self.undone_fence = 0  # of the last grant that was undone by a pause
        self.cancel: Cancel | None = None  # at most one, or the grant would be undone twice
        self.permit: Permit | None = None  # that another caller left to it
        # Until when it is held for certain. None: it holds nothing.
        self.certain_until: float | None = None

    def report_wait(self, grant_future: Promise, position: int, delay: int) -> None:
        """Give the position to the caller's `on_wait`, once."""
        position_future, self.future, self.grant_future = self.future, grant_future, None
        self.request = self.request.replaced(self.request.units, None)  # without `on_wait`
        position_future.set_result(queued_at(position, delay))

    def waits_in(self, session_id: str) -> bool:
        return self.caller.session_id == session_id and not self.future.done()

    def amend(self, request: Request) -> None:
        """From now on it waits with this cost. A cancel that is not sent yet names it, too."""
        self.request = request
        self.caller = new_caller((self.caller.session_id, self.number, request.text))
        if self.cancel is not None:
            self.cancel.caller = self.caller

    def resolve(self, outcome: Grant | BaseException) -> None:
        resolve(self.future, outcome)


class Deadline(NamedTuple):
    """The end of a caller's `max_sleep`."""

    moment: float
    number: int  # tells apart equal moments
    # The caller. Empty when it has ended: a heap can remove only its first entry.
    callers: list[PendingAcquire]


def resolve(promise: Promise, outcome: object) -> None:
    if not promise.done():
        if isinstance(outcome, BaseException):
            promise.set_exception(outcome)
        else:
            promise.set_result(outcome)
