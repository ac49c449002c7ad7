"""The permits of the callers that are in an `async with` or `with` block of a queue."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from headgate.permit import Permit


def current_caller() -> Hashable:
    """The task that runs here, or the thread where no loop does."""
    return threading.get_ident() if asyncio._get_running_loop() is None else asyncio.current_task()


class ContextStack:
    """The permits with which tasks and threads entered blocks.

    A task or thread leaves with its latest permit first.
    """

    __slots__ = ("_entered", "_passed")

    def __init__(self) -> None:
        # By caller. None in a list: a block whose limits hold nothing, inside one with a permit.
        self._entered: defaultdict[Hashable, list[Permit | None]] = defaultdict(list)
        # One for each other block whose limits hold nothing. A list, because threads change it
        # without a lock.
        self._passed: list[None] = []

    def note_entry(self, permit: Permit, who: Hashable = None) -> None:
        """Note the permit with which `who` enters. None: the task or thread that runs here."""
        permits = self._entered[who or current_caller()]
        # `+=` is no call, so no signal handler runs after it. If one raised there, the permit would
        # be listed, and its block would never begin.
        permits += [permit]

    def note_pass(self) -> None:
        """Note a caller that entered and holds nothing.

        Any task or thread may note its end, unless the caller is inside a block with a permit.
        """
        permits = self._entered.get(current_caller()) if self._entered else None
        if permits is None:
            self._passed += [None]
        else:
            permits += [None]

    def left_behind(self, abandoned: asyncio.AbstractEventLoop | None = None) -> list[Permit]:
        """The permits of the tasks of closed loops, and of `abandoned`, which was left open."""
        tasks = {
            who: who.get_loop() for who in list(self._entered) if isinstance(who, asyncio.Task)
        }
        gone = [task for task, loop in tasks.items() if loop is abandoned or loop.is_closed()]
        # Another thread may remove an entry meanwhile. `get` makes no new one.
        entered = [permit for task in gone for permit in self._entered.get(task, ())]
        return [permit for permit in entered if permit is not None]

    def leave(self) -> None:
        permit = self.remove_last()
        if permit is not None:
            permit.release()

    def remove_last(self, find_caller: Callable[[], Hashable] = current_caller) -> Permit | None:
        """Remove the permit with which the caller entered last. None: that block holds nothing.

        A block in an async generator may end in another task, which closes the generator. If that
        task has no permit here, it removes the latest one of the caller that was listed last.
        """
        who = find_caller() if self._entered else None
        permits = self._entered.get(who)
        if permits is None:
            if self._passed:
                self._passed.pop()
                return None
            if not self._entered:
                raise not_begun()
            who, permits = next(reversed(self._entered.items()))
        permit = permits.pop()
        if not permits:
            del self._entered[who]
        return permit


def not_begun() -> RuntimeError:
    return RuntimeError("A block ended that had not begun: call __enter__ first.")
