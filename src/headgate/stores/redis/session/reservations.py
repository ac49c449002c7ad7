"""Who was granted a moment ahead and sleeps until it comes; and what is known of a pause, which holds them back.

Here lives one lane's alarm clock, on the monotonic clock: a loop's own may count whole milliseconds, as uvloop's does, and its
timers may be as much too early. What is granted, and what becomes of who is held back, is the lane's to know.
"""

from __future__ import annotations

from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle

    from headgate.gate.gate import Grant
    from headgate.stores.redis.protocol.messages import PendingAcquire


BURST = 1000  # microseconds by which fences may be ahead of the clock: one each for as many grants as a call makes


class Reservations:
    """The sleepers of one lane, in order."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self.queue: deque[tuple[float, PendingAcquire, Grant]] = deque()
        self._paused_until = 0  # nobody passes before, on the server's clock
        self._pause_known_at = 0  # by which it was this when we heard of that first
        self._resumed_at = 0  # when a pause was ended last, on the server's clock: news of an earlier pause come too late
        self._pause_ends = 0.0  # the same on ours, counted from when it was heard of
        self._loop = loop
        self._alarm: TimerHandle | None = None  # for the first of them

    @property
    def pause_left(self) -> float:
        """Seconds for which nobody passes, as far as is known here."""
        return max(0.0, self._pause_ends - monotonic())

    def sleep(self, pending: PendingAcquire, grant: Grant, microseconds: int) -> None:
        """Until so much later, and not before anybody who sleeps already."""
        moment = monotonic() + max(0, microseconds) / 1_000_000
        self.queue.append((max(moment, self.queue[-1][0] if self.queue else 0.0), pending, grant))
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is None and self.queue:
            self._alarm = self._loop.call_later(max(0.0, self.queue[0][0] - monotonic()), self._due)

    def halt(self) -> None:
        """Wake nobody any more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _due(self) -> None:
        """Let go, in order, who was granted a moment that has come."""
        self._alarm = None
        while self.queue and self.queue[0][0] <= monotonic():
            _, pending, grant = self.queue.popleft()
            pending.settle(grant)
        self._set_alarm()

    def pause(self, server: int, left: int) -> bool:
        """The server's clock showed `server`, and for `left` microseconds from then on nobody passes. Whether that is news.

        0: a pause was ended at that moment.
        """
        if not left:
            self._resume(server)
            return False
        if server + left <= self._paused_until or server < self._resumed_at:
            return False
        self._paused_until, self._pause_known_at = server + left, server
        self._pause_ends = monotonic() + left / 1_000_000
        return True

    def _resume(self, server: int) -> None:
        if server >= self._pause_known_at:
            self._paused_until, self._pause_ends, self._resumed_at = (
                min(server, self._paused_until),
                0.0,
                server,
            )

    def precedes_pause(self, grant: Grant) -> bool:
        """Whether it was made before the pause, for a moment before its end. Later ones are of a server that has lost the pause."""
        return grant.t < self._paused_until and grant.fence <= self._pause_known_at + BURST

    def held_back(self, session_id: str) -> list[tuple[PendingAcquire, Grant]]:
        """Who sleeps for a moment before the end of the pause, and not in vain: they sleep no more."""
        held = [
            (pending, grant)
            for _, pending, grant in self.queue
            if self.precedes_pause(grant)
            and pending.session_id == session_id
            and not pending.future.done()
        ]
        if held:
            gone = {id(pending) for pending, _ in held}
            self.queue = deque(booking for booking in self.queue if id(booking[1]) not in gone)
        return held
