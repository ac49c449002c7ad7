"""The numbers by which the script knows the calls and the callers of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Numbering:
    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self.session_id = new_id()
        self.call = self.caller = 0  # the last numbers

    def begin_again(self) -> None:
        self.session_id, self.call = self._new_id(), 0
