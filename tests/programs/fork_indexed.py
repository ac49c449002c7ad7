"""A process that forks while it is in the index. Prints what the child sends in its parent's place,
and whether the index has both in the end.

usage: fork_indexed.py URL name
"""

from __future__ import annotations

import asyncio
import os
import sys

from redis import Redis

from headgate import Limiter
from tests.index import labels, refreshed, refresher_of


async def use(url: str, name: str) -> None:
    async with Limiter(name, "1000/minute", store=url):
        await refreshed(url)


async def main(url: str, name: str) -> None:
    await use(url, name)
    refresher = refresher_of(url)
    # The fork comes in the middle of a refresh.
    await use(url, name)
    refresher._seen.clear()
    refresher.refresh()
    child = os.fork()
    if child == 0:
        refresher.refresh()
        print("child sends", refresher.command(), flush=True)
        asyncio._set_running_loop(None)
        asyncio.run(use(url, name))
        os._exit(0)
    _, code = os.waitpid(child, 0)  # noqa: ASYNC222 - nothing else is to run meanwhile
    print("child", os.waitstatus_to_exitcode(code))
    pids = {label.pid for label in labels(Redis.from_url(url, decode_responses=True)).values()}
    print("index has", sorted(pids) == sorted({os.getpid(), child}))


asyncio.run(main(*sys.argv[1:]))
