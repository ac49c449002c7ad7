"""When a session with waiters asks the server for news, even if no notification comes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from headgate.stores.redis.protocol.calls import RESERVE_AHEAD
from headgate.stores.redis.session.lease_renewal import third_of

if TYPE_CHECKING:
    from headgate.stores.redis.session.numbering import LastReply
    from headgate.stores.redis.session.traffic import Traffic

# The seconds before its moment at which the head of the queue asks.
MARGIN = 0.5 * RESERVE_AHEAD / 1_000_000
# Seconds without a call after which a session with waiters sends one, to show that it is alive.
# This is 0.3 of the script's SESSION_LIFE (SOON in main.lua).
HEARTBEAT = 3.0
GRACE = 0.1  # seconds after its estimate at which a waiter asks for its state


class Polls:
    def __init__(self, traffic: Traffic, last_reply: LastReply) -> None:
        self.moment = inf  # of the next one
        self._traffic = traffic
        self._last_reply = last_reply

    def schedule(self, head: int | None, now: float) -> None:
        """Schedule the next poll.

        `head`: the microseconds until the head of the queue can go, if it is this session's. The
        session then asks in time. A session with waiters is never silent for long.
        """
        self.moment = inf
        if not self._traffic.waiting:
            return
        if head is None:
            wait = self._seconds_to_estimate(now)
        else:
            wait = head / 1_000_000
            # The session asks earlier by MARGIN, so that the grant comes in time. A nearer moment
            # would be reserved already, unless it is the end of a lease. No call can reserve that.
            if head > RESERVE_AHEAD:
                wait -= MARGIN
        # A permit whose notification was lost must not lose its lease before the session asks.
        last = self._last_reply
        beat = min(HEARTBEAT, third_of(last.lease)) if last.lease else HEARTBEAT
        # Notifications do not count as a sign of life: the server sees only calls (L3, dead
        # waiters).
        self.moment = now + max(0.0, min(last.asked_at + beat - now, wait))

    def _seconds_to_estimate(self, now: float) -> float:
        """Seconds until the first waiter asks for its state: shortly after its estimate.

        It asks once: an estimate that is over is dropped.
        """
        first = next(iter(self._traffic.waiting.values()))
        wait = first.due + GRACE - now
        if wait <= 0:
            first.due = inf
        return max(0.0, wait)
