"""Forks while the main thread waits for the lock of the memory store, which another thread has:
fork_at_the_lock.py NAME.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any, cast

from headgate import Concurrency, Limiter
from headgate.internals import queue_of
from headgate.stores.memory.lock import Lock
from tests.forking import CHILDREN, FORKED, fork_once, signal_until_forked

MAIN = threading.main_thread().ident or 0


def main(name: str) -> None:
    limiter = Limiter(name, Concurrency(1))
    limiter.acquire_sync().release()
    inside = threading.Event()

    def hold(_: object) -> None:
        inside.set()
        FORKED.wait()

    signal.signal(signal.SIGUSR1, fork_once)
    holder = threading.Thread(target=queue_of(cast("Any", limiter))._lock.run, args=[hold, None])
    holder.start()
    inside.wait()
    signaller = threading.Thread(target=signal_at_the_lock)
    signaller.start()
    assert limiter.status().waiting == 0
    limiter.acquire_sync().release()
    if not CHILDREN[0]:
        os._exit(0)
    holder.join()
    signaller.join()
    assert os.waitstatus_to_exitcode(os.waitpid(CHILDREN[0], 0)[1]) == 0


def signal_at_the_lock() -> None:
    while sys._current_frames()[MAIN].f_code is not Lock.wait.__code__:
        time.sleep(0.001)
    signal_until_forked()


if __name__ == "__main__":
    main(*sys.argv[1:])
