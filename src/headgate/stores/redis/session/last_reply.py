"""The last reply to a session."""

from __future__ import annotations


class LastReply:
    def __init__(self) -> None:
        self.number = 0  # of the last call that was carried out; 0: none
        self.server = 0  # its clock, in microseconds
        self.asked_at = 0.0  # when that call was sent, by the monotonic clock
        self.program = ""  # its limits
        self.lease = 0  # of them, in microseconds
