"""The last reply to a session."""

from __future__ import annotations


class LastReply:
    """The last reply that named a moment of the server."""

    def __init__(self) -> None:
        # The last call that the server is known to have carried out for this session. 0: none.
        self.number = 0
        self.server = 0  # its clock, in microseconds
        self.asked_at = 0.0  # when that call was sent, by the monotonic clock
        self.lease = 0  # of its limits, in microseconds

    def silence(self, now: float) -> float:
        """For how many seconds the server has seen no call of this session."""
        return now - self.asked_at
