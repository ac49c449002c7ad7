"""A process that forks while it holds permits, and prints the view of parent and child.

usage: fork.py memory|URL name
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack

from headgate import Concurrency, Limiter, Rate


def used(limiter: Limiter) -> list[int]:
    return [limit.used for limit in limiter.status().limits]


def main(store: str, name: str) -> None:
    where = None if store == "memory" else store
    limiter = Limiter(name, Concurrency(3), Rate(100, per=1_000_000), store=where)
    permit = limiter.acquire_sync()
    with ExitStack() as block:
        block.enter_context(limiter)
        before = used(limiter)
        child = os.fork()
        if child == 0:
            status = in_child(limiter, permit, block)
            sys.stdout.flush()
            os._exit(status)
        _, code = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(code))
        print("parent", before, used(limiter), permit.held)
    permit.release()
    print("end", used(limiter))


def in_child(limiter: Limiter, permit: object, block: ExitStack) -> int:
    permit.release()  # type: ignore[attr-defined]  # the parent's: nothing of it may come back
    block.close()  # as the parent's block would, if the child ran on into it
    seen = used(limiter)
    with limiter.acquire() as mine:
        print("in child", seen, used(limiter), mine.fence > permit.fence)  # type: ignore[attr-defined]  # a Refusal would have none
    print("child leaves", used(limiter))  # asked after the release was sent, so it has arrived
    return 0


main(*sys.argv[1:])
