"""Succession: who leaves gives its permit to who enters next in the same lane; the server hears of it later.

Here lives what a lane knows of the head of the queue, and when that is enough to hand a permit over. Who was asked for in one call
stands together in the queue (S6): when one of them was granted, the others are its head, and nobody else's can come in between.
Whatever may have changed since the server has granted last makes it a matter of the server's again.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from headgate.gate.gate import Grant

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from headgate.permit import Permit
    from headgate.stores.redis.protocol.messages import PendingAcquire, Sent
    from headgate.stores.redis.session.conversation import Conversation

MOST_SILENCE = 6.0  # seconds without a word of the server's after which places and limits may be others': twice the lane's heartbeat
SOON = 0.002  # seconds until the server hears of permits that were handed over: some round trips


class LocalHandoff:
    """In one lane."""

    def __init__(self, session: Conversation) -> None:
        self.outbox_grants = 0  # grants that were heard of, by mail
        self._session = session
        self._first_to = 0  # up to this number those who wait here are the first of the whole queue
        self._program = ""  # the limits that the last answer was given under
        self._since = 0  # and since when, as far as is known, by the server's clock
        self._open = (
            False  # the server has granted under them, so no more is held than they allow (S1)
        )
        self._sending: TimerHandle | None = None

    def hand_over(self, permit: Permit) -> bool:
        """Leave `permit` to who enters next, if nobody else can be before it (S6).

        It is held under the name that it was granted to, so never twice (S1). With the next call, or soon, the server hears that
        the heir has given up its place, and with it whatever it was granted there meanwhile (S3).
        """
        next_waiter = self.next_waiter(permit)
        if next_waiter is None:
            return False
        next_waiter.permit = permit
        next_waiter.settle(Grant(permit.t, permit.fence))
        self._session.withdraw(next_waiter)
        if self._sending is None:
            self._sending = self._session.loop.call_later(SOON, self._send)
        return True

    def halt(self) -> None:
        """Another thread tells it."""
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _send(self) -> None:
        self._sending = None
        self._session.send_operations()

    def next_waiter(self, permit: Permit) -> PendingAcquire | None:
        """Who may have `permit`, as far as we know."""
        session = self._session
        first = session.traffic.first()
        if first is None or not (
            self._open
            and first.number <= self._first_to
            and first.enters
            and not first.future.done()
        ):
            return None
        declared = session.declared
        allowed = declared.timeless and self._program == declared.program and not session.paused
        now = monotonic()
        certain = (
            permit.believed - now > session.lease / 6_000_000
            and now - session.asked_at <= MOST_SILENCE
        )
        return first if allowed and certain and first.request.units == permit.units else None

    # What is known -------------------------------------------------------------------------------------------------------

    def count_ahead(self) -> int:
        """How many would stand before who is asked for now, if nobody else came in between; -1: others are there already."""
        traffic = self._session.traffic
        return len(traffic.waiting) if traffic.last_number() <= self._first_to else -1

    def note_queued(self, sent: Sent, ahead: int | None) -> None:
        """The first of those of a call who wait has so many before it; None: nobody waits."""
        if ahead == 0 or (ahead == sent.ahead and self.outbox_grants == sent.outbox_grants):
            self._first_to = sent.acquires[-1].number

    def note_answer(self, sent: Sent, now: int, declared: bool) -> None:
        """The server has answered under limits that may be new to it, or to us."""
        if declared or sent.program != self._program:
            self._program, self._since, self._open = sent.program, now, False

    def note_grant(self, pending: PendingAcquire) -> None:
        """Who was asked for together with `ticket` is behind it. A letter may be older than the limits."""
        self._first_to = max(self._first_to, pending.last)
        self._open = self._open or pending.t >= self._since

    def stop(self) -> None:
        """Until the server has granted again."""
        self._open = False

    def forget(self) -> None:
        """Nobody has a place any more."""
        self._first_to, self._open = 0, False
