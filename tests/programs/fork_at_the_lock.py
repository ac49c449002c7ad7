"""Forks while the main thread waits for the lock of the memory store, which another thread has: fork_at_the_lock.py NAME."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from typing import Any, cast

from headgate import Concurrency, Limiter
from tests.processes import PATIENCE

MAIN = threading.main_thread().ident or 0


def main(name: str) -> None:
    limiter = Limiter(name, Concurrency(1))
    limiter.acquire_sync().release()
    inside, forked = threading.Event(), threading.Event()
    children: list[int] = []
    come: list[None] = []  # once the signal has come

    def hold(_: object) -> None:
        inside.set()
        forked.wait()

    def fork(*_: object) -> None:
        if come:
            return
        come.append(None)
        children.append(os.fork())
        if not children[0]:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
        forked.set()

    signal.signal(signal.SIGUSR1, fork)
    holder = threading.Thread(target=cast("Any", limiter)._line._lock.hold, args=[hold, None])
    holder.start()
    inside.wait()
    signaller = threading.Thread(target=signal_at_the_lock, args=[forked])
    signaller.start()
    assert limiter.status().waiting == 0
    limiter.acquire_sync().release()
    if not children[0]:
        os._exit(0)
    holder.join()
    signaller.join()
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def signal_at_the_lock(forked: threading.Event) -> None:
    """Send signals until one is handled: Python sees none that comes just before a thread begins to wait."""
    while sys._current_frames()[MAIN].f_code.co_name != "wait":
        time.sleep(0.001)
    signal.pthread_kill(MAIN, signal.SIGUSR1)
    while not forked.wait(0.01):
        signal.pthread_kill(MAIN, signal.SIGUSR1)


if __name__ == "__main__":
    main(*sys.argv[1:])
