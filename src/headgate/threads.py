"""headgate's threads that can be started inside a signal handler.

`threading.Thread.start` holds locks in Python code while it waits for the new thread. An exception
that a signal handler raises there leaves them locked. So these threads are started without it.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")
CHECK = 0.5  # seconds between two checks that another thread still runs


class NoThreadError(RuntimeError):
    """No thread can start."""

    def __init__(self, error: RuntimeError) -> None:
        super().__init__(*error.args)
        # Otherwise the process has too many threads, or too little memory.
        self.process_ends = "shutdown" in str(error)


def begin(work: Callable[[], object], name: str) -> int:
    """Run `work` in a daemon thread, and return the thread's identifier.

    Never blocks, and may be called in a signal handler. Raises NoThreadError. An exception that
    another thread sends to the caller (`PyThreadState_SetAsyncExc`) may reach the new thread
    instead, and end it before `work` begins. So a caller that waits for the thread checks every
    CHECK seconds that it runs.
    """

    def run() -> None:
        threading.current_thread().name = name
        work()

    try:
        return _thread.start_new_thread(run, ())
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise  # a signal handler raised it
        raise NoThreadError(error) from None


def runs(thread: int) -> bool:
    """Whether the thread with this identifier runs."""
    return thread in sys._current_frames()


def living(items: WeakValueDictionary[Any, T]) -> list[T]:
    """The values that are there now. Another thread or a signal handler may add some meanwhile."""
    return [value for ref in items.valuerefs() if (value := ref()) is not None]


def snapshot(items: Iterable[T]) -> list[T]:
    """The items of a WeakSet, which another thread may change meanwhile."""
    while True:
        try:
            return list(items)
        except RuntimeError as error:
            if "changed size during iteration" not in str(error):
                raise  # a signal handler raised it
