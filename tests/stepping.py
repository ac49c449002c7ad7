"""Driving a coroutine by hand: it is interrupted at its k-th suspension, for one k after another
(F1 to F5).

This module has the forms of an interruption, as a coroutine sees them:

    asked    its task is cancelled in the very moment in which it begins to wait
    woken    its wait is over, and its task is cancelled before it runs again
    thrown   the CancelledError is thrown in by hand, and the awaited object knows nothing of it
    sent     its task is cancelled two turns of the loop later, when its request is on its way
    settled  its task is cancelled when all waiters wait, those behind it too
    twice    its task is cancelled, and again whenever it waits for anything after that
    timed    the deadline of an `asyncio.timeout` around it comes in this turn of the loop
    crossed  its task is cancelled, and those before it let go in the same turn
    met      those before it let go, and its task is cancelled in the same turn
    failed   an error of another kind is thrown in
    closed   the coroutine is closed, as one is that no loop drives any more
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any
from weakref import ref

MANY = 100  # suspensions of one that was interrupted: it does not come to an end


class Failed(Exception):
    """The error of `failed`."""


def nobody_there() -> None:
    """There is no caller before it that could let go."""


@dataclass
class Around:
    """The callers around a coroutine that is driven."""

    settled: asyncio.Event = field(default_factory=asyncio.Event)
    let_go: Callable[[], None] = nobody_there


class Stepped:
    """Awaits `work` as it is, but for its suspension number `at`."""

    def __init__(
        self, work: Coroutine[Any, Any, Any], way: str, at: int, around: Around | None = None
    ) -> None:
        self.work = work
        self.at = at
        self.around = around or Around()
        self.reached = False
        self.ended: type[BaseException] | None = None  # how, if it did not return
        self.moment = 0.0  # of the loop's time, at which it was interrupted
        self.waited_for: list[ref[Any]] = []  # every future that it has waited for
        self.ran: set[CodeType] = set()  # the code that has run in it, if a test `looks`
        self.looks = False
        self._way = INTERRUPTIONS[way]
        self._step = 0
        self._throws: BaseException | None = None
        self._closes = False
        self._again = False
        self._patience = asyncio.timeout(None)

    async def run(self) -> None:
        """In a task of its own: to its end, which may be an interruption, and the task is as good
        as before.
        """
        self.task = asyncio.current_task()
        assert self.task is not None
        try:
            async with self._patience:
                await self
        except (asyncio.CancelledError, TimeoutError, Failed) as error:
            self.ended = type(error)
            assert self.ended is not TimeoutError or self.task.cancelling() == 0, (
                "F8: one cancellation, undone once"
            )
            while self.task.uncancel():
                pass

    def __await__(self) -> Generator[Any, Any, Any]:
        self.task = asyncio.current_task()
        resume, argument = self._send, None
        while True:
            try:
                future = resume(argument)
            except StopIteration as done:
                return done.value
            if future is not None:
                self.waited_for.append(ref(future))
            resume, argument = self._send, None
            if self._step == self.at or self._again:
                self._interrupt(future)
            self._step += 1
            assert self._step < self.at + MANY, "what was interrupted goes on and on"
            if self._closes:
                self.work.close()
                self.ended = GeneratorExit
                return None
            if self._throws is not None:
                resume, argument, self._throws = self._throw, self._throws, None
                continue
            try:
                yield future
            except BaseException as error:
                resume, argument = self._throw, error

    def _interrupt(self, future: Any) -> None:
        self.reached, self.moment = True, asyncio.get_running_loop().time()
        self._way(self, future)

    def _send(self, argument: Any) -> Any:
        return self._looked_at(lambda: self.work.send(argument))

    def _throw(self, error: Any) -> Any:
        return self._looked_at(lambda: self.work.throw(error))

    def _looked_at(self, step: Callable[[], Any]) -> Any:
        if not self.looks:
            return step()
        sys.setprofile(self._look)
        try:
            return step()
        finally:
            sys.setprofile(None)

    def _look(self, frame: FrameType, event: str, argument: object) -> None:
        self.ran.add(frame.f_code)

    # Ways -----------------------------------------------------------------------------------------

    def cancel(self) -> None:
        assert self.task is not None
        self.task.cancel()

    def woken(self, future: Any) -> None:
        """By the task's own means, right before it would run again."""
        if future is None:
            self.cancel()
        else:
            future.add_done_callback(lambda _: self.cancel())

    def throw(self, error: BaseException) -> None:
        self._throws = error

    def close(self) -> None:
        self._closes = True

    def sent(self) -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._cancel_if_it_waits, self._step + 1)

    def once_settled(self) -> None:
        task = asyncio.ensure_future(self.around.settled.wait())
        step = self._step + 1
        task.add_done_callback(lambda _: self._cancel_if_it_waits(step))

    def _cancel_if_it_waits(self, step: int) -> None:
        if self._step == step and not self._patience_is_over():
            self.cancel()

    def _patience_is_over(self) -> bool:
        return self.task is None or self.task.done()

    def twice(self) -> None:
        self._again = True
        self.cancel()

    def timed(self) -> None:
        self._patience.reschedule(asyncio.get_running_loop().time())

    def crossed(self) -> None:
        self.cancel()
        self.around.let_go()

    def met(self) -> None:
        self.around.let_go()
        self.cancel()


INTERRUPTIONS: dict[str, Callable[[Stepped, Any], None]] = {
    "asked": lambda stepped, future: stepped.cancel(),
    "woken": Stepped.woken,
    "thrown": lambda stepped, future: stepped.throw(asyncio.CancelledError()),
    "sent": lambda stepped, future: stepped.sent(),
    "settled": lambda stepped, future: stepped.once_settled(),
    "twice": lambda stepped, future: stepped.twice(),
    "timed": lambda stepped, future: stepped.timed(),
    "crossed": lambda stepped, future: stepped.crossed(),
    "met": lambda stepped, future: stepped.met(),
    "failed": lambda stepped, future: stepped.throw(Failed()),
    "closed": lambda stepped, future: stepped.close(),
}
WAYS = ["asked", "woken", "thrown"]  # those that need no other callers


async def cancelled_at(work: Coroutine[Any, Any, Any], way: str, at: int) -> bool:
    """Run `work`, cancelled at its suspension number `at`; whether there was such a suspension."""
    stepped = Stepped(work, way, at)
    await asyncio.create_task(stepped.run())
    return stepped.reached
