"""The numbers by which the script knows the calls and callers of a session, and the last reply."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Numbering:
    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.session_id = new_id()
        self.call = 0  # the number of the last call
        self.last_acquire = 0  # its number; a new session counts on from it
        self.last_reply = LastReply()

    def begin_again(self) -> None:
        self.session_id, self.call = self._new_id(), 0
        self.last_reply.number = 0


class LastReply:
    def __init__(self) -> None:
        self.number = 0  # of the last call that was carried out; 0: none
        self.server_time = 0  # when it was carried out, by the server's clock
        self.asked_at = 0.0  # when that call was sent, by the monotonic clock
        self.program = ""  # its limits, as the script reads them
        self.lease = 0  # of them, in microseconds
