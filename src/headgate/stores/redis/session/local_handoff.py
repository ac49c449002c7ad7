"""The local hand-off: a caller that leaves gives its permit to the next waiter of the same session.

The server learns of it later. The acquires of one call stand together in the queue (S6, FIFO). When
one of them was granted, the others head the queue. If anything may have changed since the server's
last grant, the server decides again.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from headgate.gate.gate import Grant

if TYPE_CHECKING:
    from headgate.permit import Permit
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.numbering import LastReply
    from headgate.stores.redis.session.traffic import Sent, Traffic

# Seconds without a reply after which places and limits may be others': twice the heartbeat.
MOST_SILENCE = 6.0
SOON = 0.002  # seconds until the server learns of hand-offs


class LocalHandoff:
    def __init__(self, traffic: Traffic, limits: LimitSync, last_reply: LastReply) -> None:
        self.moment = inf  # of the call that tells the server
        self.outbox_grants = 0  # how many grants the outbox has named
        self._traffic = traffic
        self._limits = limits
        self._last_reply = last_reply
        self._first_to = 0  # waiters up to this number head the whole queue
        # The server's time from which the limits of the last reply are known to hold.
        self._since = 0
        # The server has granted under these limits, so holders are within capacity (S1).
        self._open = False

    def hand_over(self, permit: Permit, now: float) -> bool:
        """Give `permit` to the next waiter, if no other caller can be before it (S6, FIFO).

        The permit keeps its key, so it is never held twice (S1, capacity). A call soon cancels the
        waiter's place, and any grant made there meanwhile (S3, one grant per id).
        """
        waiter = self.next_waiter(permit, now)
        if waiter is None:
            return False
        waiter.permit = permit
        waiter.resolve(Grant(permit.t, permit.fence))
        del self._traffic.waiting[waiter.number]
        self._traffic.cancel(waiter)
        self.moment = min(self.moment, now + SOON)
        return True

    def next_waiter(self, permit: Permit, now: float) -> PendingAcquire | None:
        waiting = self._traffic.waiting
        if not (self._open and waiting):
            return None
        first = next(iter(waiting.values()))
        if first.number > self._first_to or not first.enters or first.future.done():
            return None
        alike = first.request.units == permit.units
        return first if alike and self._may_pass(permit, now) else None

    def _may_pass(self, permit: Permit, now: float) -> bool:
        """Whether the limits allow it without the server, and the lease is certain for long."""
        declared, last = self._limits.declared, self._last_reply
        allowed = (
            declared.timeless
            and last.program == declared.program
            and self._traffic.reserved.may_hand_over(now)
        )
        # More than a sixth of the lease must be left (docs/decisions/local-handoff.md).
        certain = (
            permit.certain_until - now > last.lease / 6_000_000
            and now - last.asked_at <= MOST_SILENCE
        )
        return allowed and certain

    def count_ahead(self) -> int:
        """The value of `Sent.ahead`."""
        waiting = self._traffic.waiting
        return len(waiting) if next(reversed(waiting), 0) <= self._first_to else -1

    def note_queued(self, sent: Sent, ahead: int) -> None:
        """A reply says how many are `ahead` of the call's first waiter.

        If none are, the acquires of this call head the queue. They also do if only this session's
        own waiters are ahead: as many as when the call was made, and none was granted since.
        """
        if ahead == 0 or (ahead == sent.ahead and self.outbox_grants == sent.outbox_grants):
            self._first_to = sent.acquires[-1].number

    def note_limits(self, now: int) -> None:
        """The limits may be others from `now` on, by the server's clock."""
        self._since, self._open = now, False

    def note_grant(self, pending: PendingAcquire) -> None:
        # The other acquires of its call stand right behind it.
        self._first_to = max(self._first_to, pending.last)
        # A grant from before the last change of limits does not show that these have room.
        self._open = self._open or pending.t >= self._since

    def stop(self) -> None:
        self._open = False

    def forget(self) -> None:
        self._first_to, self._open = 0, False
