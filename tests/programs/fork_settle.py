"""A process whose forked child settles two permits of the parent, one above and one below its cost.
The parent settles the second one as well. Each says how many of twenty tokens it sees left.

usage: fork_settle.py url name
"""

from __future__ import annotations

import asyncio
import os
import sys

from headgate import Limiter, Rate

limiter = Limiter(sys.argv[2], Rate(20, per=100_000, unit="tokens"), store=sys.argv[1])


async def main() -> None:
    more, less = await limiter.acquire(tokens=5), await limiter.acquire(tokens=5)
    if os.fork() == 0:
        more.settle(tokens=7)
        for tokens in (1, 4):  # the second is less than the cost, too
            less.settle(tokens=tokens)
        print("child", limiter.status().limits[0].left, flush=True)
        os._exit(0)
    os.wait()  # noqa: ASYNC222 - the parent stands still meanwhile
    less.settle(tokens=1)
    print("parent", (await limiter.astatus()).limits[0].left)


asyncio.run(main())
