"""Recovery of a lane when the state of its name may have gone back.

After a failover, or a restart from an older copy, the server lacks the last writes. Permits that
this session has released are held again there, and callers that were served wait again there. The
session finds out in two ways: the server does not know the last reply that the session has heard,
or it grants a permit for which no caller waits. Then the session is over. A new one asks again for
all callers that wait, and says what the old one still holds. The server gives back the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

from headgate.stores.redis.protocol.messages import Operation, ignore_reply

if TYPE_CHECKING:
    from headgate.stores.redis.session.conversation import Conversation
    from headgate.stores.redis.session.lease_renewal import LeaseRenewal

WAITER = 10.0  # seconds for which the script keeps the places of a silent session (prelude.lua)
KEEP = 30.0  # seconds after which the script may have forgotten the last reply to a silent session


class Recovery:
    """The recovery of one lane."""

    def __init__(self, session: Conversation, renewal: LeaseRenewal) -> None:
        self._session = session
        self._renewal = renewal
        self.doubts = False  # the connection was lost since the last call
        self._ended: dict[
            str, float
        ] = {}  # sessions that are over, and when they ended, on the monotonic clock
        self._announced: dict[
            int, int
        ] = {}  # fences of grants that a notification told first, with its time

    # What the server has to know -----------------------------------------------------------------------------------------

    def doubt(self) -> None:
        """The connection is lost, and the next one may lead to an older state.

        If that may hold anything for this lane, ask it at once, even if no caller waits.
        """
        if self._silence() < max(WAITER, self._session.lease / 1_000_000):
            self.doubts = True
            self._session.run([])

    def last_reply(self, known: int, server: int) -> str | int:
        """The beginning of the last reply that this session received. The server compares it with its own record.

        0: there was none, or the server may have forgotten it.
        """
        tells = self._session.waits or self.doubts or self._silence() < KEEP
        self.doubts = False
        return f"{known} ok {server}" if known and tells else 0

    def _silence(self) -> float:
        return monotonic() - self._session.asked_at

    def ended(self, session_id: str) -> list[Operation]:
        """The errands that end `session`, and those before it that an older state may know.

        Each says what is still held.
        """
        now, lasting = monotonic(), max(WAITER, self._session.lease / 1_000_000)
        self._announced.clear()
        self._ended[session_id] = now
        self._ended = {each: at for each, at in self._ended.items() if now - at <= lasting}
        return [
            Operation(f"quit {each} {self._held_in(each)}", ignore_reply) for each in self._ended
        ]

    def _held_in(self, session_id: str) -> str:
        return ",".join(self._renewal.numbers_of(session_id)) or "-"

    # Grants that no caller waits for -------------------------------------------------------------------------------------

    def hear(self, told: Mapping[int, bool], server: int) -> None:
        """Note the grants of a notification of the time `server`, by the server's clock: by fence whether a caller waits for it.

        The reply to the next call names them again.
        """
        for fence, claimed in told.items():
            if claimed:
                self._announced[fence] = server

    def unclaimed(self, told: Mapping[int, bool], server: int) -> bool:
        """Whether a reply of the time `server` names grants for which no caller waited.

        `told` says by fence whether a caller waits for it. Grants that a notification named before do not count.
        """
        news = any(not claimed and fence not in self._announced for fence, claimed in told.items())
        if self._announced:
            self._announced = {fence: at for fence, at in self._announced.items() if at >= server}
        return news
