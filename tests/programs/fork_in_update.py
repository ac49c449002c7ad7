"""Forks while a thread is inside an update: fork_in_update.py URL NAME.

Says the capacity in the child, then in the parent.
"""

from __future__ import annotations

import os
import sys
import threading

from headgate import Concurrency, Limiter
from headgate.stores.limit_history import Declarations


def main(url: str, name: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=url)
    permit = limiter.acquire_sync()
    inside, goes_on = threading.Event(), threading.Event()
    whole = Declarations.update

    def held(declarations: Declarations, program: str) -> None:
        inside.set()
        goes_on.wait()
        whole(declarations, program)

    Declarations.update = held  # type: ignore[method-assign]
    thread = threading.Thread(target=limiter.update, args=[Concurrency(2)])
    thread.start()
    inside.wait()
    if (child := os.fork()) == 0:
        Declarations.update = whole  # type: ignore[method-assign]
        limiter.update(Concurrency(3))
        limiter.acquire_sync().release()
        print(limiter.status().limits[0].capacity, flush=True)
        limiter.flush()
        os._exit(0)
    os.waitpid(child, 0)
    goes_on.set()
    thread.join()
    permit.release()
    print(limiter.status().limits[0].capacity, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
