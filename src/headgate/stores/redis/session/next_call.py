"""The next call of a session: its requests, and how it names the limits and the last reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headgate.stores.redis.protocol.calls import Command, keys_of, write_requests
from headgate.stores.redis.protocol.operations import KNOWN, Leave
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.traffic import IN_FLIGHT, Sent

if TYPE_CHECKING:
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Operation
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.batching import Batching
    from headgate.stores.redis.session.local_handoff import LocalHandoff
    from headgate.stores.redis.session.numbering import Numbering
    from headgate.stores.redis.session.recovery import Recovery
    from headgate.stores.redis.session.traffic import Traffic


class NextCall:
    def __init__(
        self,
        key: str,
        limits: LimitSync,
        numbering: Numbering,
        traffic: Traffic,
        batching: Batching,
        recovery: Recovery,
        handoff: LocalHandoff,
    ) -> None:
        self._key = key
        self._limits = limits
        self._numbering = numbering
        self._traffic = traffic
        self._batching = batching
        self._recovery = recovery
        self._handoff = handoff

    def make(self, notified: bool, now: float) -> Command:
        """The next call, or the same call again if it was not answered.

        `notified`: this session receives notifications. The garbage collector may drop permits in
        the middle of this. Nothing else must be sent until the call is complete.
        """
        traffic = self._traffic
        sent = traffic.to_repeat or self._make_new(notified, now)
        traffic.sent, traffic.to_repeat = sent, None
        traffic.state = IN_FLIGHT
        return sent.command

    def _make_new(self, notified: bool, now: float) -> Sent:
        traffic, numbering = self._traffic, self._numbering
        numbering.call += 1
        acquires, operations = (
            ([], [Leave(numbering.session_id)]) if traffic.leaving else traffic.load()
        )
        try:
            return self._compose(acquires, operations, notified, now)
        except BaseException:
            traffic.put_back(acquires, operations)
            raise

    def _compose(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        notified: bool,
        now: float,
    ) -> Sent:
        numbering, waiting = self._numbering, self._traffic.waiting
        waits, uncontended = bool(waiting), self._batching.uncontended
        declared, how = self._limits.limits_for_call(bool(acquires or waits), operations)
        alone = (
            uncontended
            and len(acquires) == 1
            and how == KNOWN
            and not (operations or waits or self._recovery.doubts)
        )
        command = Command(
            library().whole if acquires else library().back,
            keys_of(self._key, declared, how),
            declared.program,
            numbering.session_id,
            numbering.call,
            how,
            self._recovery.take_last_reply(waits, now),
            waits,
            notified,
            write_requests(operations, acquires),
            bool(operations) and not uncontended,
        )
        ahead, outbox_grants = self._handoff.count_ahead(), self._handoff.outbox_grants
        for pending in acquires:
            pending.session_id, pending.last = numbering.session_id, acquires[-1].number
            self._traffic.waiting[pending.number] = pending
        return Sent(command, declared.lease, now, acquires, operations, ahead, outbox_grants, alone)
