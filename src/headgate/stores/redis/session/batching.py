"""When the next call of a session leaves at once, and when it waits for more requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.stores.redis.session.traffic import Sent, Traffic

FAR = 50  # from this position on, one round trip more or less makes no difference to a waiter


class Batching:
    """A guess from the last calls whether the next one carries one request."""

    def __init__(self) -> None:
        self.uncontended = False  # the last acquires passed at once, and no caller waits
        self._one_request = False  # in the last call
        self._one_operation = False  # in the last call with operations
        self._far_from_head = False  # the last acquires that had to wait

    def note_answered(self, sent: Sent, carried_out: bool) -> None:
        self._one_request = carried_out and len(sent.acquires) + len(sent.operations) == 1
        if sent.operations:
            self._one_operation = len(sent.operations) == 1

    def note_acquires(self, traffic: Traffic, sent: Sent, at_once: bool, ahead: int) -> None:
        """All acquires of a call were granted `at_once`, or the first is behind `ahead` others."""
        if sent.acquires:
            self._far_from_head = ahead >= FAR
        # Only a reply to acquires, or the session's own waiters, show whether callers have to wait.
        waits = bool(traffic.waiting or traffic.reserved.queue)
        if waits or sent.acquires:
            self.uncontended = at_once and not waits

    def leaves_at_once(self, traffic: Traffic) -> bool:
        """Whether the next call does not wait for the end of the loop's turn.

        The caller of a release may ask again in the same turn, and both travel in one call. The
        wait is not worth it if callers pass at once, or if they wait far from the head.
        """
        if traffic.operations and traffic.operations[-1].leads_release:
            return False
        if traffic.acquires:
            return self._one_request
        return (self._one_request and self.uncontended) or (
            self._one_operation and self._far_from_head
        )
