"""The next call of a session: when it leaves, its requests, and how it names the limits and the
last reply.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from headgate.stores.redis.protocol.calls import WAITS, write_call
from headgate.stores.redis.protocol.operations import KNOWN, Amend, Leave, PauseWhole, new_caller
from headgate.stores.redis.session.traffic import IN_FLIGHT, MOST, Sent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.calls import Command
    from headgate.stores.redis.protocol.operations import Operation
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.local_handoff import LocalHandoff
    from headgate.stores.redis.session.numbering import Numbering
    from headgate.stores.redis.session.recovery import Recovery
    from headgate.stores.redis.session.traffic import Traffic

FAR = 50  # from this position on, one round trip more or less makes no difference to a waiter
KEEP = 30.0  # seconds after which the script may have forgotten the last reply to a silent session
MOST_AMENDED = 100  # waiters in one call (S9, bounds)


class NextCall:
    def __init__(
        self,
        key: str,
        limits: LimitSync,
        numbering: Numbering,
        traffic: Traffic,
        recovery: Recovery,
        handoff: LocalHandoff,
    ) -> None:
        self._key = key
        self._limits = limits
        self._numbering = numbering
        self._traffic = traffic
        self._last_reply = numbering.last_reply
        self._recovery = recovery
        self._handoff = handoff
        self.uncontended = False  # the last acquires passed at once, and no caller waits
        self.one_request = False  # in the last call
        self._one_operation = False  # in the last call with operations
        # The last release was the only request of its call, and no acquire came meanwhile.
        self.release_is_alone = True
        self._far_from_head = False  # where the last acquires wait

    # When it leaves -------------------------------------------------------------------------------

    def leaves_at_once(self) -> bool:
        """Whether the next call does not wait for the end of the loop's turn.

        A call that waits can take further requests along. The last calls show whether some are
        likely. An acquire leaves at once if the last call had one request. A release leaves at
        once if the last release was alone, too. Otherwise its caller mostly acquires again in this
        turn, and the two share a call. If callers wait far from the head, that acquire need not
        come early. Then a release leaves at once if the last call with operations had only one.
        """
        traffic = self._traffic
        if traffic.operations and traffic.operations[-1].leads_release:
            return False
        if traffic.acquires:
            return self.one_request
        return (self.one_request and self.release_is_alone) or (
            self._one_operation and self._far_from_head
        )

    def note_acquires(self, sent: Sent, at_once: bool, ahead: int) -> None:
        """All acquires of a call were granted `at_once`, or the first is behind `ahead` others."""
        if sent.acquires:
            self._far_from_head = ahead >= FAR
        # Only a reply to acquires, or the session's own waiters, show whether callers have to wait.
        waits = bool(self._traffic.waiting or self._traffic.reserved.sleepers)
        if waits or sent.acquires:
            self.uncontended = at_once and not waits

    # Its words ------------------------------------------------------------------------------------

    def make(self, flags: int, now: float) -> Command:
        """The next call, or the same call again if it was not answered.

        `flags`: those of the server. The garbage collector may drop permits in the middle of this.
        Nothing else must be sent until the call is complete.
        """
        traffic = self._traffic
        traffic.sent = sent = traffic.sent or self._make_new(flags, now)
        traffic.state = IN_FLIGHT
        self.one_request = len(sent.acquires) + len(sent.operations) == 1
        if sent.operations:
            self._one_operation = len(sent.operations) == 1
            self.release_is_alone = self.one_request
        return sent.command

    def _make_new(self, flags: int, now: float) -> Sent:
        traffic = self._traffic
        if traffic.leaving:
            return self._compose([], [Leave(self._numbering.session_id)], flags, now)
        acquires, traffic.acquires = traffic.acquires, []
        operations, traffic.operations = traffic.operations, []
        try:
            wanted = [pending for pending in acquires if not pending.future.done()]
            # The requests that are too many for one call go back.
            acquires, traffic.acquires[:0] = wanted[:MOST], wanted[MOST:]
            operations, traffic.operations[:0] = operations[:MOST], operations[MOST:]
            return self._compose(acquires, operations, flags, now)
        except BaseException:  # perhaps of a signal handler
            traffic.put_back(acquires, operations)
            raise

    def _compose(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        flags: int,
        now: float,
    ) -> Sent:
        numbering, waiting = self._numbering, self._traffic.waiting
        waits, uncontended = bool(waiting), self.uncontended
        received, all_operations = self._received(waits, now), self._with_additions(operations, now)
        # The additions declare no limits.
        declared, declares = self._limits.limits_for_call(bool(acquires or waits), operations)
        is_one_acquire = len(acquires) == 1 and not (all_operations or waits)
        numbering.call += 1
        command = write_call(
            self._key,
            declared,
            declares,
            numbering.session_id,
            numbering.call,
            received,
            WAITS * waits + flags,
            all_operations,
            acquires,
            for_others=bool(all_operations) and not uncontended,
        )
        ahead = self._handoff.count_ahead() if waits and acquires else 0
        for pending in acquires:
            number = pending.number
            pending.caller = new_caller((numbering.session_id, number, pending.request.text))
            pending.last = acquires[-1].number
            waiting[number] = pending
        outbox_grants = self._handoff.outbox_grants
        expects_grant = uncontended and is_one_acquire and declares == KNOWN
        return Sent(
            command,
            declared.lease,
            now,
            acquires,
            all_operations,
            ahead,
            outbox_grants,
            expects_grant,
        )

    def _with_additions(self, operations: list[Operation], now: float) -> list[Operation]:
        """Add what each call states anew: the pause of the whole limiter, and new estimates."""
        whole = self._traffic.reserved.whole
        if whole is not None and (left := whole.left(now)):
            operations = [PauseWhole(left), *operations]
        return operations if self._limits.declared.timeless else [*operations, *self._amends()]

    def _amends(self) -> Iterator[Amend]:
        """Let the first waiters ask for their present estimates."""
        for pending in islice(self._traffic.waiting.values(), MOST_AMENDED):
            request = pending.request
            renewed = request if request.estimate is None else request.renewed()
            if renewed is not request:
                yield Amend(pending.number, request.text, renewed=renewed, accept=pending.amend)

    def _received(self, waits: bool, now: float) -> str:
        """The beginning of the last reply received, which the server compares with its record.

        "0": there was none, or the server may have forgotten it.
        """
        last, recovery = self._last_reply, self._recovery
        tells = waits or recovery.doubts or now - last.asked_at < KEEP
        recovery.doubts = False
        return f"{last.number} ok {last.server_time}" if last.number and tells else "0"
