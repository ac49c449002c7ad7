"""A signal handler closes the limiter while its thread waits by that limiter."""

from __future__ import annotations

import signal
import sys
from threading import Timer, get_ident

from headgate import Concurrency, Limiter

limiter = Limiter(sys.argv[1], Concurrency(1), store=sys.argv[2])
permit = limiter.acquire_sync()


def stop(*_: object) -> None:
    try:
        limiter.close(refuse_waiters=True)
    except RuntimeError as error:
        print(error)
        permit.release()


signal.signal(signal.SIGALRM, stop)


def interrupt() -> None:
    while limiter.status().waiting == 0:
        pass
    signal.pthread_kill(main, signal.SIGALRM)


main = get_ident()
Timer(0, interrupt).start()
limiter.acquire_sync().release()
limiter.close()
