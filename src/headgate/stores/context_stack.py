"""The callers inside the blocks of a queue, and their permits: the memory of `async with` and
`with` between their two ends.

This module pairs entering and leaving, for any number of tasks and threads at once. It asks for
nothing and grants nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.permit import Permit


class Inside:
    """Permits by the task or thread that entered with them, the last first; and the number of
    callers inside that hold nothing.
    """

    __slots__ = ("_entered", "_passed")

    def __init__(self) -> None:
        self._entered: defaultdict[Hashable, list[Permit]] = defaultdict(list)
        self._passed: list[None] = []

    def entered(self, permit: Permit, who: Hashable = None) -> None:
        permits = self._entered[who or visitor()]
        # `+=` is not a call, so no signal handler runs after it. Otherwise a block could fail to
        # begin and still be listed.
        permits += [permit]

    def passed(self) -> None:
        """Note a caller that entered and holds nothing. Any task or thread may leave for it."""
        self._passed += [None]

    def left_behind(self, abandoned: asyncio.AbstractEventLoop | None = None) -> list[Permit]:
        """The permits of tasks that never run again: those of closed loops, and of `abandoned`,
        which was left open.
        """
        tasks = {
            who: who.get_loop() for who in list(self._entered) if isinstance(who, asyncio.Task)
        }
        gone = [task for task, loop in tasks.items() if loop is abandoned or loop.is_closed()]
        return [permit for task in gone for permit in self._entered[task]]

    def leave(self) -> None:
        """Release the permit of the last entry, if it holds anything."""
        permit = self.left()
        if permit is not None:
            permit.release()

    def left(self, who_leaves: Callable[[], Hashable] | None = None) -> Permit | None:
        """The permit that this task or thread entered with last. None: it holds nothing.

        If another task closes a generator, this may be the last permit of any task or thread.
        """
        who = (who_leaves or visitor)() if self._entered else None
        permits = self._entered.get(who)
        if permits is None and self._passed:
            self._passed.pop()
            return None
        if permits is None:
            if not self._entered:
                raise not_begun()
            who, permits = next(reversed(self._entered.items()))
        permit = permits.pop()
        if not permits:
            del self._entered[who]
        return permit


def not_begun() -> RuntimeError:
    return RuntimeError("A block ended that had not begun: call __enter__ first.")


def visitor() -> Hashable:
    """The task that runs here, or the thread where no loop does."""
    return threading.get_ident() if asyncio._get_running_loop() is None else asyncio.current_task()
