"""Renewals: what the callers of a lane hold, and when the server is told that they still do.

Here lives the time of leases, and nothing of who waits: all that a lane holds is renewed in one call, at a third of the lease.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from math import inf
from time import monotonic
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from headgate.errors import StoreError
from headgate.gate.gate import ONE_EACH
from headgate.permit import renew_lease
from headgate.stores.redis.protocol.messages import Operation
from headgate.stores.redis.session.lost_leases import log_lost

if TYPE_CHECKING:
    from headgate.permit import Permit
    from headgate.stores.redis.protocol.messages import Answer, PendingAcquire
    from headgate.stores.redis.session.conversation import Conversation


class LeaseRenewal:
    """Of the permits of one lane."""

    def __init__(self, session: Conversation) -> None:
        self._session = session
        # And the lease that each was granted or renewed for. A permit that dies leaves by a callback without Python code: a signal
        # handler may raise in such code, and Python hides what is raised in a callback.
        self._held: dict[ref[Permit], int] = {}
        self.expected: set[PendingAcquire] = (
            set()
        )  # granted for a lease, and their callers have made no permits yet
        self._weak = ref(self)  # a permit keeps its line, and the line its lanes: a timer must not
        self._timer: asyncio.TimerHandle | None = None
        self._lease = 0  # what was granted for this, and is believed until then or later, is renewed by that timer in time
        self._enough = inf
        self._lost: list[Permit] = []  # as the reply shows that is being read

    @property
    def planned(self) -> bool:
        return self._timer is not None

    @property
    def holds(self) -> bool:
        return any(permit.held for permit, _ in self._known())

    def units_held(self, unit: str) -> int:
        """How much of a unit the permits hold that are renewed here."""
        held = (permit.units for permit, _ in self._known() if permit.held)
        return sum(units.get(unit, ONE_EACH.get(unit, 0)) for units in held)

    def _known(self) -> list[tuple[Permit, int]]:
        """The permits that are not dropped, and their leases. Other threads drop some meanwhile."""
        return [
            (permit, lease)
            for each, lease in self._held.copy().items()
            if (permit := each()) is not None
        ]

    def hold(self, permit: Permit, lease: int) -> None:
        """Renew `permit`, granted for `lease`, until it is released or dropped: soon, when the news of the grant came late."""
        self._held[ref(permit, self._held.pop)] = lease
        if lease == self._lease and permit.believed >= self._enough:
            return
        third = min(lease, self._session.declared.lease or lease) / 3_000_000
        self._renew_in(min(third, max(0.0, permit.believed - monotonic() - 2 * third)))
        self._lease, self._enough = lease, permit.believed

    def believed(self, t: int, lease: int, server: int, known: int, sent_at: float) -> float | None:
        """Until when a permit granted for `t` is held for certain, on the monotonic clock: reckoned from a sending (S2).

        The server's clock showed `known` in the last reply, and `server` when the grant was told: it may have stepped in between.
        Without a reply the call of `sent_at` asked for it.
        """
        if not lease:
            return None
        if not known:  # an announcement was faster than the first reply: the call that asked is older than the grant
            return sent_at + lease / 1_000_000
        believed = self._session.asked_at + (t + lease - known) / 1_000_000
        return (
            believed
            if server == known
            else min(believed, monotonic() + (t + lease - server) / 1_000_000)
        )

    def numbers_of(self, session_id: str) -> set[str]:
        """The numbers under which `session` was granted what is held now."""
        keys = [
            *(str(permit.key) for permit, _ in self._known() if permit.held),
            *(pending.caller for pending in self.expected),
        ]
        return {key.split(":", 2)[1] for key in keys if key.startswith(f"{session_id}:")}

    def renew(self) -> None:
        """Renew what is held, at a third of the lease; sooner when the lease has become shorter.

        What was granted under a lease keeps it when no limit has one any more: there may be such a limit again (S1).
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
            operations = [
                Operation(f"renew {permit.key} {lease}", partial(self._renewed, permit, lease))
                for permit, lease in held
            ]
            self._session.run(operations)

    def halt(self) -> None:
        """Plan no renewal."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _renew_in(self, seconds: float) -> None:
        """And not later, if a later renewal was planned.

        A task whose loop ends may receive its grant when the portal has taken the lane over: then the portal's loop does it.
        """
        loop = self._session.loop
        if asyncio._get_running_loop() is not loop:
            with suppress(RuntimeError):  # it is closed, and nothing is renewed
                loop.call_soon_threadsafe(self._renew_in, seconds)
            return
        moment = loop.time() + seconds
        if self._timer is None or self._timer.when() > moment:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(moment, renew, self._weak)

    def _renewed(self, permit: Permit, lease: int, answer: Answer) -> None:
        if isinstance(answer, StoreError):
            return  # the lease runs on, and the next renewal may be in time
        if answer[1]:
            self._held[ref(permit)] = lease = self._session.lease or lease
            self._renew_in(lease / 3_000_000)
            renew_lease(permit, self._session.asked_at + lease / 1_000_000)
        else:
            renew_lease(permit, monotonic())
            if not self._lost:  # one line for all that this reply shows
                self._session.loop.call_soon(self._log_lost)
            self._lost.append(permit)

    def _log_lost(self) -> None:
        lost, self._lost = self._lost, []
        log_lost(self._session.name, lost)


def renew(renewal: ReferenceType[LeaseRenewal]) -> None:
    """Renew what is held, if any permit is left."""
    found = renewal()
    if found is not None:
        found.renew()
