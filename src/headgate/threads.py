"""Threads of headgate's own.

`threading.Thread.start` holds locks in Python code while it waits for the new thread. An exception
that a signal handler raises there leaves them locked. So these threads are started without it.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable


def begin(work: Callable[[], object], name: str) -> None:
    """Run `work` in a daemon thread. Never blocks, and may be called in a signal handler.

    Raises RuntimeError when the process has too many threads, or ends.
    """

    def run() -> None:
        threading.current_thread().name = name
        work()

    _thread.start_new_thread(run, ())
