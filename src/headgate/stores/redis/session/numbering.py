"""The numbers of a session, under which the script knows its calls and its callers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Numbering:
    """The id of a session, and the numbers that it has given out."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.session_id = new_id()
        self.call = 0  # the number of the last call
        self.caller = 0  # the number of the last caller

    def next_caller(self) -> int:
        self.caller += 1
        return self.caller

    def begin_again(self) -> None:
        """Begin another session, for the same callers."""
        self.session_id, self.call = self._new_id(), 0
