"""A process whose forked child settles a permit of the parent; both say how many of ten tokens they
see left.

usage: fork_settle.py url name
"""

from __future__ import annotations

import asyncio
import os
import sys

from headgate import Limiter, Rate

limiter = Limiter(sys.argv[2], Rate(10, per=100_000, unit="tokens"), store=sys.argv[1])


async def main() -> None:
    permit = await limiter.acquire(tokens=5)
    if os.fork() == 0:
        permit.settle(tokens=4)
        print("child", limiter.status().limits[0].left, flush=True)
        os._exit(0)
    os.wait()  # noqa: ASYNC222 - the parent stands still meanwhile
    for _ in range(2):
        await limiter.acquire(tokens=1)
    print("parent", (await limiter.astatus()).limits[0].left)


asyncio.run(main())
