"""A process that holds permits of an entrant until it is killed: `python -m
benchmarks.faults.holder ENTRANT URL NAME COUNT`.
"""

from __future__ import annotations

import asyncio
import sys

from benchmarks.faults.entrants import ENTRANTS


async def hold(entrant: str, url: str, name: str, count: int) -> None:
    kind = next(each.semaphore for each in ENTRANTS if each.name == entrant)
    assert kind is not None, "only who has a semaphore can hold"
    entry = kind.maker(url, name)
    for _ in range(count):
        await entry().__aenter__()
    print("holds", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    entrant, url, name, count = sys.argv[1:]
    asyncio.run(hold(entrant, url, name, int(count)))
