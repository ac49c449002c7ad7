"""A signal handler closes the limiter while its thread waits by that limiter."""

from __future__ import annotations

import signal
import sys
from threading import Event, Timer, get_ident

from headgate import Concurrency, Limiter

limiter = Limiter(sys.argv[1], Concurrency(1), store=sys.argv[2])
permit = limiter.acquire_sync()


handled = Event()


def stop(*_: object) -> None:
    if handled.is_set():
        return
    handled.set()
    try:
        limiter.close(refuse_waiters=True)
    except RuntimeError as error:
        print(error)
        permit.release()


signal.signal(signal.SIGALRM, stop)


def interrupt() -> None:
    while limiter.status().waiting == 0:
        pass
    # Python misses a signal that arrives just before its thread begins to sleep.
    while not handled.is_set():
        signal.pthread_kill(main, signal.SIGALRM)
        handled.wait(0.1)


main = get_ident()
Timer(0, interrupt).start()
limiter.acquire_sync().release()
limiter.close()
