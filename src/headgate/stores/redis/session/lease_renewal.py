"""The renewal of leases: the permits that callers of a session hold, and when each is renewed.

This module deals with the time of leases, and not with waiters. One call renews all permits of a
session, at a third of the lease.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, cast
from weakref import ReferenceType, ref

from headgate.errors import StoreError
from headgate.gate.gate import ONE_EACH
from headgate.permit import renew_lease
from headgate.stores.redis.protocol.operations import Caller, Renew
from headgate.stores.redis.protocol.replies import Answer
from headgate.stores.redis.session.lost_leases import log_lost

if TYPE_CHECKING:
    from headgate.permit import Permit
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.conversation import Conversation


class LeaseRenewal:
    """The renewal of the permits of one session."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        # The permits, and the lease that each was granted or renewed for. A permit that dies leaves
        # through a callback without Python code. A signal handler might raise in Python code, and
        # Python hides what a callback raises.
        self._held: dict[ref[Permit], int] = {}
        # Acquires that were granted for a lease, and whose callers have made no permit yet.
        self.expected: set[PendingAcquire] = set()
        # A permit keeps its queue alive, and the queue its sessions. A timer must not.
        self._weak = ref(self)
        self._timer: asyncio.TimerHandle | None = None
        # The timer is in time for each permit with this lease that is held for certain until
        # `_enough` or later.
        self._lease = 0
        self._enough = inf
        self._lost: list[Permit] = []  # lost leases that the current reply shows

    @property
    def planned(self) -> bool:
        return self._timer is not None

    @property
    def holds(self) -> bool:
        return any(permit.held for permit, _ in self._known())

    def units_held(self, unit: str) -> int:
        """How much of a unit the permits that are renewed here hold."""
        held = (permit.units for permit, _ in self._known() if permit.held)
        return sum(units.get(unit, ONE_EACH.get(unit, 0)) for units in held)

    def _known(self) -> list[tuple[Permit, int]]:
        """The permits that still exist, and their leases. Other threads may drop some meanwhile."""
        return [
            (permit, lease)
            for each, lease in self._held.copy().items()
            if (permit := each()) is not None
        ]

    def hold(self, permit: Permit, lease: int) -> None:
        """Renew `permit`, granted for `lease`, until it is released or dropped.

        The first renewal is soon if the grant was known late.
        """
        self._held[ref(permit, self._held.pop)] = lease
        if lease == self._lease and permit.believed >= self._enough:
            return
        third = min(lease, self._session.declared.lease or lease) / 3_000_000
        self._renew_in(min(third, max(0.0, permit.believed - monotonic() - 2 * third)))
        self._lease, self._enough = lease, permit.believed

    def believed(self, t: int, lease: int, server: int, known: int, sent_at: float) -> float | None:
        """The end of the time for which a permit granted for `t` is held for certain (S2, lease
        time).

        It is on the monotonic clock, and counts from the sending of a call. The server's clock
        showed `known` in the last reply, and `server` when it named the grant. The clock may have
        stepped in between. Without a reply, the call sent at `sent_at` asked for the permit.
        """
        if not lease:
            return None
        # A notification was faster than the first reply. The call that asked is older than the
        # grant.
        if not known:
            return sent_at + lease / 1_000_000
        believed = self._session.asked_at + (t + lease - known) / 1_000_000
        return (
            believed
            if server == known
            else min(believed, monotonic() + (t + lease - server) / 1_000_000)
        )

    def numbers_of(self, session_id: str) -> set[int]:
        """The numbers under which the session was granted the permits that are held now."""
        callers = [
            *(cast(Caller, permit.key) for permit, _ in self._known() if permit.held),
            *(pending.caller for pending in self.expected),
        ]
        return {caller.number for caller in callers if caller.session_id == session_id}

    def renew(self) -> None:
        """Renew all permits, at a third of the lease, or sooner if the lease has become shorter.

        A permit granted under a lease keeps it when no limit has a lease any more: such a limit may
        come back (S1, capacity).
        """
        known = self._known()
        log_lost(self._session.name, [permit for permit, _ in known])
        held = [(permit, lease) for permit, lease in known if permit.held and not permit.lost]
        self.halt()
        self._enough = inf
        if held:
            self._renew_in(
                (self._session.declared.lease or min(lease for _, lease in held)) / 3_000_000
            )
            self._session.run([Renew(permit, lease) for permit, lease in held])

    def halt(self) -> None:
        """Plan no renewal."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _renew_in(self, seconds: float) -> None:
        """Renew in so many seconds, and not later, even if a later renewal was planned.

        A task whose loop ends may get its grant after the portal has taken over the session. Then
        the timer is set in the portal's loop.
        """
        loop = self._session.loop
        if asyncio._get_running_loop() is not loop:
            with suppress(RuntimeError):  # the loop is closed, and nothing is renewed
                loop.call_soon_threadsafe(self._renew_in, seconds)
            return
        moment = loop.time() + seconds
        if self._timer is None or self._timer.when() > moment:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(moment, renew, self._weak)

    def on_answer(self, renew: Renew, answer: Outcome) -> None:
        if isinstance(answer, StoreError):
            return  # the lease runs on, and the next renewal may be in time
        permit, lease = renew.permit, renew.lease
        if cast(Answer, answer).number:
            self._held[ref(permit)] = lease = self._session.lease or lease
            self._renew_in(lease / 3_000_000)
            renew_lease(permit, self._session.asked_at + lease / 1_000_000)
        else:
            renew_lease(permit, monotonic())
            if not self._lost:  # one log line for all losses in this reply
                self._session.loop.call_soon(self._log_lost)
            self._lost.append(permit)

    def _log_lost(self) -> None:
        lost, self._lost = self._lost, []
        log_lost(self._session.name, lost)


def renew(renewal: ReferenceType[LeaseRenewal]) -> None:
    """Renew the permits, if the session still exists."""
    found = renewal()
    if found is not None:
        found.renew()
