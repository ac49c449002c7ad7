"""The event loop of a caller: its kind, the order of its tasks, and whether it may be blocked."""

from __future__ import annotations

import concurrent.futures.thread
import sys
import threading
import warnings
from asyncio import _get_running_loop, sleep
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from headgate.keys import title

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections import deque
    from collections.abc import Callable
    from types import FrameType

    from headgate.stores.memory.lock import Lock

# The private function in which the workers of thread pools wait. While the interpreter ends, Python
# refuses to import its module, which redis-py may still need then. So it is imported early.
POOL_WORKER = concurrent.futures.thread._worker.__code__
TURNS = 3  # turns of its loop after which a granted task has run, or will never run


class Enterable(Protocol):
    """A queue, with its ways to enter at once."""

    name: str
    enter: Callable[[], bool]
    enter_task: Callable[[], bool]


class LoopCheck:
    """Finds out whether asyncio runs the tasks that use a queue.

    Only the first task checks its loop, because that is slow. Later tasks use `enter` without a
    check, until the collector has freed the loop of the first.
    """

    __slots__ = ("_loop", "_queue", "warned")

    def __init__(self, queue: Enterable) -> None:
        self._queue = ref(queue)
        self._loop: ref[AbstractEventLoop] | None = None
        self.warned = False  # that a thread blocks its loop

    def knows(self) -> bool:
        return self._loop is not None

    def enter(self) -> bool:
        loop, queue = _get_running_loop(), self._queue()
        if loop is None:
            raise no_loop()
        if queue is None:
            return False
        self._loop = ref(loop, self._forget)
        queue.enter_task = queue.enter
        return queue.enter()

    def _forget(self, _: Any) -> None:
        queue, self._loop = self._queue(), None
        if queue is not None:
            queue.enter_task = self.enter


class Loops:
    """The event loops in which tasks of one queue wait, by weak references."""

    __slots__ = ("_refs",)

    def __init__(self) -> None:
        self._refs: tuple[ref[AbstractEventLoop], ...] = ()

    def add(self, loop: AbstractEventLoop) -> None:
        for each in self._refs:
            if each() is loop:
                return
        self._refs = (*(each for each in self._refs if each() is not None), ref(loop))

    def closed(self) -> list[AbstractEventLoop]:
        return [loop for each in self._refs if (loop := each()) is not None and loop.is_closed()]

    def forget(self, loops: list[AbstractEventLoop]) -> None:
        self._refs = tuple(each for each in self._refs if each() not in loops)


async def begin_in_order(starting: deque[object], marker: object = None) -> None:
    """Wait until the tasks with the markers in `starting` have run: their grants came earlier.

    `marker`: this task's own, which stands behind theirs. None: it has none, so wait for all.
    """
    try:
        last = marker if marker is not None else starting[-1]
    except IndexError:  # another thread's task was the last, and runs now
        return
    for _ in range(TURNS):
        if last not in starting or (marker is not None and starting[0] is marker):
            return
        await sleep(0)


def no_loop() -> RuntimeError:
    return RuntimeError(
        "No event loop of asyncio runs here, and headgate's coroutines wait by nothing else. Under "
        "trio, enter limiters with `with` in a thread: trio.to_thread.run_sync(...)."
    )


def check_blocking(lock: Lock, loop_check: LoopCheck, needs_release: Callable[[], bool]) -> None:
    """Raise RuntimeError if a thread's wait could never end.

    `needs_release`: whether only a release can end it.
    """
    if lock.is_held_here():
        raise RuntimeError(
            f"An acquire of {title(lock.name)} would wait in a signal handler or a finalizer that "
            "interrupted this thread inside another limiter, and keep all others waiting. Call "
            "try_acquire(), or acquire later, outside the handler."
        )
    if _get_running_loop() is None:
        return
    # Check again: the last other thread may have released a permit meanwhile, and ended.
    if needs_release() and not others_run() and needs_release():
        raise waits_for_ever(lock.name, "no other thread runs that could release the permit")
    if not loop_check.warned:
        loop_check.warned = True
        warn_of_blocking(lock.name)


def waits_for_ever(name: str, why: str) -> RuntimeError:
    return RuntimeError(
        f"A blocking acquire of {title(name)} would wait for ever: it blocks the event loop that "
        f"runs in this thread, and {why}. In a coroutine, use `async with`."
    )


def warn_of_blocking(name: str) -> None:
    """Warn, at the user's line of code, of a wait in a thread whose event loop runs."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("headgate."):
        frame, level = frame.f_back, level + 1
    warnings.warn(
        f"A blocking acquire of {title(name)} waits, and blocks the event loop that runs in this "
        "thread: no task of it runs meanwhile, and none can release a permit. In a coroutine, use "
        "`async with`.",
        RuntimeWarning,
        stacklevel=level,
    )


def others_run() -> bool:
    """Whether another thread could release a permit. An idle worker or our own thread could not."""
    frames = sys._current_frames()
    frames.pop(threading.get_ident(), None)
    ours = {thread.ident for thread in threading.enumerate() if thread.name.startswith("headgate-")}
    return any(not _idle(frame) for ident, frame in frames.items() if ident not in ours)


def _idle(frame: FrameType) -> bool:
    """Whether the thread of this innermost frame waits for work in a thread pool.

    Reading `f_back` may crash CPython 3.11 while that thread goes on (issue 99110 of CPython).
    """
    return frame.f_code is POOL_WORKER
