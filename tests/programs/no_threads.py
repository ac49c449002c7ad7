"""A process in which no thread can start uses a limiter, and prints each step.

usage: no_threads.py URL name earlier where
earlier: "nothing", or "task": a task has entered before, so the name's server is known.
where: "limit": the process is at a limit for a while; "release": it only releases there; or "exit":
in a callback of atexit. There Python 3.12 starts no thread.
"""

from __future__ import annotations

import asyncio
import atexit
import sys
import threading

from headgate import Concurrency, Limiter, StoreError, Waiting


async def enter(limiter: Limiter) -> None:
    async with limiter:
        print("a task enters")


def use() -> None:
    held = limiter.acquire_sync()

    def on_wait(waiting: Waiting) -> None:
        print("waits")
        held.release()

    with limiter.acquire_sync(on_wait=on_wait):
        print("enters")


def release_at_the_limit() -> None:
    loop = asyncio.new_event_loop()
    held = loop.run_until_complete(limiter.acquire())
    loop.close()
    threading.stack_size(1 << 50)  # no address space has room for such a stack
    held.release()
    threading.stack_size(0)
    limiter.resume()  # the next use of the portal


url, name, earlier, where = sys.argv[1:]
limiter = Limiter(name, Concurrency(1, lease=3600), store=url)
if earlier == "task":
    asyncio.run(enter(limiter))
if where == "exit":
    atexit.register(use)
elif where == "release":
    release_at_the_limit()
    asyncio.run(enter(limiter))
else:
    threading.stack_size(1 << 50)  # as above
    for _ in range(2):
        try:
            use()
        except StoreError as error:
            print(error.reason, str(error).partition(":")[0])
    asyncio.run(enter(limiter))
    threading.stack_size(0)
    use()
