"""Recovery of a session when the state of its name may have gone back.

After a failover, or a restart from an older copy, the server lacks the last writes. The session
notices this in two ways. The server does not know the last reply that the session received, or it
grants a permit for which no caller waits. Then the session is over. A new one asks again for all
callers that wait, and says what the old one still holds. The server gives back the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from headgate.stores.redis.protocol.operations import Operation, Quit

if TYPE_CHECKING:
    from headgate.stores.redis.session.lease_renewal import LeaseRenewal
    from headgate.stores.redis.session.local_handoff import LocalHandoff
    from headgate.stores.redis.session.numbering import Numbering
    from headgate.stores.redis.session.traffic import Traffic

# The script keeps the places of a silent session for 7.5 to 10 s after its last call (prelude.lua).
SESSION_LIFE = 10.0


class Recovery:
    def __init__(
        self,
        numbering: Numbering,
        traffic: Traffic,
        renewal: LeaseRenewal,
        handoff: LocalHandoff,
    ) -> None:
        self._numbering = numbering
        self._traffic = traffic
        self._last_reply = numbering.last_reply
        self._renewal = renewal
        self._handoff = handoff
        self.doubts = False  # the connection was lost since the last call
        self._ended: dict[str, float] = {}  # sessions that are over, and since when
        # The fences of grants that a notification brought and a caller claimed, with its time.
        self.claimed: dict[int, int] = {}

    def doubt(self, now: float) -> None:
        """The connection is lost. Ask whether the server has gone back to an older state."""
        if now - self._last_reply.asked_at < self._lasting():
            self.doubts = True
            self._traffic.schedule()

    def _lasting(self) -> float:
        """Seconds after a call for which the server may hold something for us."""
        return max(SESSION_LIFE, self._last_reply.lease / 1_000_000)

    def begin_again(self, now: float) -> None:
        """Begin another session, in which no caller has a place yet."""
        self._traffic.operations += self._end(self._numbering.session_id, now)
        self._numbering.begin_again()
        self._handoff.forget()
        self._renewal.renew(now)  # the server may have forgotten the permits, too

    def _end(self, session_id: str, now: float) -> list[Operation]:
        """The operations that end this session, and earlier ones that an older state may know."""
        self.claimed.clear()
        self._ended[session_id] = now
        self._ended = {each: at for each, at in self._ended.items() if now - at <= self._lasting()}
        return [
            Quit(each, ",".join(map(str, self._renewal.numbers_of(each))) or "-")
            for each in self._ended
        ]

    def note_claimed(self, claims: Mapping[int, bool], server_now: int) -> None:
        """Note the claimed grants of a notification, which the next reply repeats."""
        self.claimed |= {fence: server_now for fence, is_claimed in claims.items() if is_claimed}

    def unclaimed(self, claims: Mapping[int, bool], server_now: int) -> bool:
        """Whether a reply names new grants that no caller claims."""
        found = {fence for fence, is_claimed in claims.items() if not is_claimed}
        found -= self.claimed.keys()  # their callers have them already
        # No later reply repeats the grants of earlier notifications.
        self.claimed = {fence: at for fence, at in self.claimed.items() if at >= server_now}
        return bool(found)
