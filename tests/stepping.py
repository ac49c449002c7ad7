"""Driving a coroutine by hand: it is cancelled at its k-th suspension, for one k after another (F1 to F5).

Here lives what a cancellation can look like to a coroutine:

    asked   its task is cancelled in the very moment in which it begins to wait
    woken   what it waits for has come, and its task is cancelled before it runs again
    thrown  the CancelledError is thrown in by hand, and what it waits for knows nothing of it
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any

WAYS = ["asked", "woken", "thrown"]


class Stepped:
    """Awaits `work` as it is, but for its suspension number `at`."""

    def __init__(self, work: Coroutine[Any, Any, Any], way: str, at: int) -> None:
        self.work = work
        self.way = way
        self.at = at
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        step = 0
        resume = self.work.send
        argument: Any = None
        while True:
            try:
                future = resume(argument)
            except StopIteration as done:
                return done.value
            resume, argument = self.work.send, None
            if step == self.at:
                self.reached = True
                if self.way == "thrown":
                    resume, argument = self.work.throw, asyncio.CancelledError()
                    step += 1
                    continue
                self._cancel(future)
            step += 1
            try:
                yield future
            except BaseException as error:
                resume, argument = self.work.throw, error

    def _cancel(self, future: Any) -> None:
        """By the task's own means, now or right before it would run again."""
        task = asyncio.current_task()
        assert task is not None
        if self.way == "asked" or future is None:
            task.cancel()
        else:
            future.add_done_callback(lambda _: task.cancel())


async def cancelled_at(work: Coroutine[Any, Any, Any], way: str, at: int) -> bool:
    """Run `work`, cancelled at its suspension number `at`; whether there was such a suspension."""
    stepped = Stepped(work, way, at)

    async def main() -> None:
        try:
            await stepped
        except asyncio.CancelledError:
            task = asyncio.current_task()
            while task is not None and task.uncancel():
                pass

    await asyncio.create_task(main())
    return stepped.reached
