"""The queue of a closed limiter: it refuses acquires, and hands all else to the queue inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from headgate.closing import closed_error

if TYPE_CHECKING:
    from headgate.interfaces import Queue


class Closed:
    def __init__(self, queue: Queue) -> None:
        self.name = queue.name
        self._queue = queue

    def enter(self) -> bool:
        """False, so that the caller calls `enter_waiting` or `enter_sync`, which raise."""
        return False

    enter_task = enter

    async def enter_waiting(self, request: object) -> NoReturn:
        raise closed_error(self.name)

    acquire = atake = enter_waiting

    def enter_sync(self, request: object) -> NoReturn:
        raise closed_error(self.name)

    acquire_sync = take = enter_sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
