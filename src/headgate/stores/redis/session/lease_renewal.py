"""The renewal of leases: one call renews all permits of a session, at a third of the lease."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, cast
from weakref import ref

from headgate.errors import StoreError
from headgate.gate.gate import ONE_EACH
from headgate.permit import set_lease_end
from headgate.stores.redis.protocol.operations import Caller, Renew
from headgate.stores.redis.protocol.replies import Answer
from headgate.stores.redis.session.lost_leases import log_those_lost

if TYPE_CHECKING:
    from headgate.permit import Permit
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.numbering import LastReply
    from headgate.stores.redis.session.traffic import Traffic


class LeaseRenewal:
    def __init__(self, limits: LimitSync, traffic: Traffic, last_reply: LastReply) -> None:
        self._limits = limits
        self._traffic = traffic
        self._last_reply = last_reply
        # The lease of each permit. `pop` removes a dead one, as the callback of its reference. If a
        # signal handler raised in a callback in Python, Python would hide that.
        self._held: dict[ref[Permit], int] = {}
        # The lease of each acquire that is granted and has no permit yet.
        self.expected: dict[PendingAcquire, int] = {}
        self.moment = inf  # of the next renewal
        # The permit for which `moment` was last planned: its lease, and until when it was certain.
        # One with the same lease that is certain for as long needs no earlier renewal.
        self._planned_lease = 0
        self._planned_until = inf
        self.lost: list[Permit] = []  # as the current reply shows

    @property
    def held(self) -> int:
        return sum(permit.held for permit, _ in self._known())

    def units_held(self, unit: str) -> int:
        held = (permit.units for permit, _ in self._known() if permit.held)
        return sum(units.get(unit, ONE_EACH.get(unit, 0)) for units in held)

    def _known(self) -> list[tuple[Permit, int]]:
        # Other threads may drop permits meanwhile.
        return [
            (permit, lease)
            for each, lease in self._held.copy().items()
            if (permit := each()) is not None
        ]

    def hold(self, permit: Permit, lease: int) -> bool:
        """Renew `permit`. Return whether the next renewal is in time for it."""
        self._held[ref(permit, self._held.pop)] = lease
        return lease == self._planned_lease and permit.certain_until >= self._planned_until

    def renew_in_time(self, permit: Permit, lease: int, now: float) -> None:
        """Renew after a third of the lease, which may have begun long before `now`."""
        third = third_of(min(lease, self._limits.declared.lease or lease))
        self._renew_at(min(now + third, max(now, permit.certain_until - 2 * third)))
        self._planned_lease, self._planned_until = lease, permit.certain_until

    def numbers_of(self, session_id: str) -> set[int]:
        callers = [
            *(cast(Caller, permit.key) for permit, _ in self._known() if permit.held),
            *(pending.caller for pending in self.expected),
        ]
        return {caller.number for caller in callers if caller.session_id == session_id}

    def renew(self, now: float) -> None:
        """Renew all permits with the next call, and plan the next round.

        If no limit has a lease any more, they keep their own: such a limit may come back (S1,
        capacity).
        """
        known = self._known()
        log_those_lost(self._limits.name, [permit for permit, _ in known])
        held = [(permit, lease) for permit, lease in known if permit.held and not permit.lost]
        self.moment = self._planned_until = inf
        if held:
            lease = self._limits.declared.lease or min(lease for _, lease in held)
            self._renew_at(now + third_of(lease))
            self._traffic.run([Renew(permit, lease) for permit, lease in held])

    def _renew_at(self, moment: float) -> None:
        self.moment = min(self.moment, moment)

    def on_answer(self, renew: Renew, answer: Outcome, now: float) -> None:
        if isinstance(answer, StoreError):
            return  # the lease runs on, and the next renewal may be in time
        permit, lease = renew.permit, renew.lease
        if cast(Answer, answer).number:
            # The dict keeps its own, equal key, which has the callback.
            self._held[ref(permit)] = lease = self._last_reply.lease or lease
            self._renew_at(now + third_of(lease))
            set_lease_end(permit, self._last_reply.asked_at + lease / 1_000_000)
        else:
            set_lease_end(permit, now)  # certain only until now: the lease is lost
            self.lost.append(permit)

    def log_lost(self) -> None:
        lost, self.lost = self.lost, []
        log_those_lost(self._limits.name, lost)


def third_of(lease: int) -> float:
    """The seconds between two renewals of a lease in microseconds."""
    return lease / 3_000_000
