"""A finalizer closes the limiter while the interpreter ends, and a daemon thread waits by it."""

from __future__ import annotations

import sys
from threading import Thread

from headgate import Concurrency, Limiter


class Worker:
    def __init__(self) -> None:
        self.limiter = Limiter("worker", Concurrency(1))
        self.permit = self.limiter.acquire_sync()

    def __del__(self) -> None:
        print("finalizing" if sys.is_finalizing() else "too early")
        self.limiter.close(refuse_waiters=True)
        print("closed")
        self.permit.release()


worker = Worker()
Thread(target=worker.limiter.acquire_sync, daemon=True).start()
while worker.limiter.status().waiting == 0:
    pass
