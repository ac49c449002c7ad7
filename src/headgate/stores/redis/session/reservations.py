"""The callers that were granted a moment in the future and sleep until then, and the known pause,
which holds them back.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.gate.gate import Grant
    from headgate.stores.redis.session.acquires import PendingAcquire
    from headgate.stores.redis.session.whole_pause import WholePause


# Microseconds by which fences may be ahead of the clock: each grant of a call adds 1.
BURST = 1000


class Reservations:
    def __init__(self, whole: WholePause | None = None) -> None:
        self.whole = whole  # for a key: the pause of the whole limiter
        self.sleepers: deque[tuple[float, PendingAcquire, Grant]] = deque()  # by moment
        # These are moments of the server's clock.
        self._paused_until = 0  # the end of the last pause
        self._pause_known_at = 0  # when that pause was first known
        self._resumed_at = 0  # when a pause was last ended; earlier news of a pause is too old
        self._pause_ends = 0.0  # `_paused_until` on the monotonic clock

    def pause_left(self, now: float) -> float:
        """Seconds for which no caller passes."""
        own = max(0.0, self._pause_ends - now)
        return own if self.whole is None else max(own, self.whole.ends - now)

    def is_whole_paused(self, now: float) -> bool:
        """Whether the whole limiter of this key is paused, as this process knows it."""
        return self.whole is not None and now < self.whole.ends

    def may_hand_over(self, now: float) -> bool:
        """Whether no pause holds, as far as the server has answered lately."""
        return self._pause_ends <= now and (self.whole is None or self.whole.passes(now))

    def sleep(self, pending: PendingAcquire, grant: Grant, microseconds: int, now: float) -> None:
        """Let a caller sleep until its moment, and at least until those before it wake."""
        last = self.sleepers[-1][0] if self.sleepers else 0.0
        moment = max(last, now + max(0, microseconds) / 1_000_000)
        self.sleepers.append((moment, pending, grant))

    def wake(self, now: float) -> None:
        while self.sleepers and self.sleepers[0][0] <= now:
            _, pending, grant = self.sleepers.popleft()
            pending.resolve(grant)

    def pause(self, server_now: int, left: int, now: float) -> bool:
        """Let no caller pass for `left` microseconds from `server_now` on.

        0: a pause ended at that time. Return whether the pause is new.
        """
        if not left:
            if server_now >= self._pause_known_at:
                self._paused_until = min(server_now, self._paused_until)
                self._pause_ends, self._resumed_at = 0.0, server_now
            return False
        if server_now + left <= self._paused_until or server_now < self._resumed_at:
            return False
        self._paused_until, self._pause_known_at = server_now + left, server_now
        self._pause_ends = now + left / 1_000_000
        return True

    def precedes_pause(self, grant: Grant) -> bool:
        """Whether a grant was made before the pause, for a moment before its end."""
        # Fences follow the server's clock. A grant with a later fence came after the pause, from a
        # server that had forgotten the pause.
        return grant.t < self._paused_until and grant.fence <= self._pause_known_at + BURST

    def take_held_back(self, session_id: str) -> list[tuple[PendingAcquire, Grant]]:
        """Take out the callers whose moment is before the end of the pause, or of the whole's."""
        ends = 0.0 if self.whole is None else self.whole.ends
        held = [
            (pending, grant)
            for moment, pending, grant in self.sleepers
            if (moment < ends or self.precedes_pause(grant)) and pending.waits_in(session_id)
        ]
        if held:
            gone = {pending for pending, _ in held}
            self.sleepers = deque(each for each in self.sleepers if each[1] not in gone)
        return held
