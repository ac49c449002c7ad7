"""Forks at each line of a release that the portal sends, as a signal handler may.

The child's copy of the call goes on for a moment. If it wrote to the parent's connection, asyncio
would complain in the parent about a reply to no call.

usage: fork_in_release.py URL NAME
"""

from __future__ import annotations

import os
import sys
import time

from headgate import Concurrency, Limiter
from tests.programs.fork_at_steps import Fork

WHILE = 0.05  # seconds that a child lives on


def main(url: str, name: str) -> None:
    limiter = Limiter(name, Concurrency(2), store=url)
    limiter.try_acquire(permits=2).release()  # type: ignore[union-attr]
    limiter.flush()
    at = 0
    while True:
        at += 1
        permit, fork = limiter.try_acquire(permits=2), Fork(at)
        sys.settrace(fork.trace)
        try:
            permit.release()  # type: ignore[union-attr]
        finally:
            sys.settrace(None)
        if not fork.child:
            time.sleep(WHILE)
            os._exit(0)
        limiter.flush()
        if fork.child < 0:
            break
    print("steps" if at > 1 else "no step")


if __name__ == "__main__":
    main(*sys.argv[1:])
