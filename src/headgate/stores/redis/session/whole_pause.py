"""The pause of a whole limiter, which holds all its keys.

Each key has a state of its own, in a Cluster perhaps on another server than the whole. So no script
can read both. Instead a process that uses a key knows the pause of the whole, and names it in the
calls of the key. It asks for the pause before the first call of a key, and again while it uses
keys (pause_watch.py). Notifications bring the news of other processes sooner.
"""

from __future__ import annotations

# Seconds after a question until which its answer counts. Later, callers wait for a newer one. If
# all notifications are lost, a key learns of a pause this late (docs/limits.md).
TRUSTED = 3.0
# Seconds after a question at which a call asks again, without a wait for the answer.
ASK_AGAIN = 1.5
AFTER_FAILURE = 1.0  # seconds from a failed question to the next one


class WholePause:
    """The pause of one limiter, as all loops and threads of this process know it.

    All moments but those of the server are on the monotonic clock. There is no lock: each method
    assigns what others read in single steps.
    """

    __slots__ = (
        "_distrusted_at",
        "_known_at",
        "_noted_at",
        "_until",
        "ask_from",
        "ends",
        "trusted_until",
    )

    def __init__(self) -> None:
        self.ends = 0.0  # no caller of a key passes before this moment
        self.ask_from = 0.0  # a call of a key asks from this moment on
        self.trusted_until = 0.0  # until then, callers of a key may pass without an answer
        # By the server's clock: the end of the pause (0: there is none), and the last news.
        self._until = self._known_at = 0
        self._noted_at = 0.0  # when the last news came
        self._distrusted_at = 0.0  # answers to questions from before this moment are too old

    def left(self, now: float) -> int:
        """Microseconds for which the limiter is paused."""
        return max(0, round((self.ends - now) * 1_000_000))

    def passes(self, now: float) -> bool:
        """Whether no pause holds, as far as the server has answered lately."""
        return self.ends <= now < self.trusted_until

    def trust(self, asked_at: float) -> None:
        """The server has answered a question of this moment."""
        if asked_at >= self._distrusted_at:
            self.ask_from = asked_at + ASK_AGAIN
            self.trusted_until = asked_at + TRUSTED

    def distrust(self, now: float) -> None:
        """A pause by this process is on its way: callers of keys wait for a newer answer."""
        self.ask_from = self.trusted_until = 0.0
        self._distrusted_at = now

    def do_without(self, now: float) -> None:
        """The server could not be asked. Keys on other servers go on with what is known."""
        self.ask_from = self.trusted_until = now + AFTER_FAILURE

    def note(self, server_now: int, left: int, now: float, asked_at: float = 0.0) -> bool:
        """At `server_now` the pause had `left` microseconds left. Return whether that is new.

        A notification that comes later than newer news changes nothing. The answer to a question
        that was sent after the last news always counts: another server may have an earlier clock.
        """
        if server_now < self._known_at and asked_at <= self._noted_at:
            return False
        until, ends = (server_now + left, now + left / 1_000_000) if left else (0, 0.0)
        is_new = until != self._until
        self._until, self._known_at, self._noted_at = until, server_now, now
        # The same pause again: a slow reply does not make it longer.
        self.ends = ends if is_new else min(ends, self.ends)
        return is_new
