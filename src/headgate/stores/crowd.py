"""The crowd: tasks that wait for concurrency alone, ask for nothing in particular, and wait for as long as it takes.

Here lives a queue of bare futures, first come, first served, without a lock, because the appends and pops of a deque are atomic.
Who leaves hands the permit to the first of them (doors.py), and the gate still counts it as held. As soon as anybody else waits
too, the crowd moves into the gate's own queue (memory.py).
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headgate.stores.waiters import TaskWaiter

if TYPE_CHECKING:
    from headgate.request import Request

Place = Future[TaskWaiter | None]  # its result: None with a permit, or the waiter that its task has become in the gate's queue


class Crowd(deque[Place]):
    """Places in order of arrival, and what those have become that moved into the gate's queue."""

    def __init__(self) -> None:
        super().__init__()
        self.moved: dict[Place, TaskWaiter] = {}

    def move(self, request: Request) -> TaskWaiter | None:
        """Take out the first, to be queued in the gate with `request`; None when nobody is left."""
        try:
            while (place := self.popleft()).done():
                pass
        except IndexError:
            return None
        waiter = self.moved[place] = TaskWaiter(request, place)
        return waiter


def send(place: Place, otherwise: Callable[[], None]) -> None:
    """Hand a permit to a place in another event loop (RuntimeError: it is closed); `otherwise` takes back what comes too late."""

    def arrive() -> None:
        if place.done():
            otherwise()
        else:
            place.set_result(None)

    place.get_loop().call_soon_threadsafe(arrive)
