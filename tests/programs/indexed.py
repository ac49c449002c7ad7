"""A process that uses a name for as long as it lives, and is soon in the index.

usage: indexed.py URL name
Says its process id when the index has the name.
"""

from __future__ import annotations

import asyncio
import os
import sys

from headgate import Concurrency, Limiter
from tests.index import refreshed


async def main(url: str, name: str) -> None:
    async with Limiter(name, Concurrency(5), store=url):
        await refreshed(url)
        print(os.getpid(), flush=True)
        await asyncio.to_thread(sys.stdin.readline)


asyncio.run(main(*sys.argv[1:]))
