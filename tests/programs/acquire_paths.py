"""Count the calls of an acquire on Redis: `python acquire_paths.py URL`, one line of JSON.

The counts are of an acquire that passes at once, and of the first that has to queue: calls of
headgate's functions, moves from one of its files to another, and calls to the server.
"""

import asyncio
import json
import sys
from pathlib import Path

from redis import Redis

import headgate
from headgate import Concurrency, Limiter

PACKAGE = str(Path(headgate.__file__).parent)
SERVER = Redis.from_url(sys.argv[1])


class Count:
    """The calls and moves of a `with` block, in this thread."""

    def __enter__(self):
        self.calls = self.moves = 0
        self._file = None
        self._before = server_calls()
        sys.setprofile(self._note)
        return self

    def _note(self, frame, event, _):
        if event not in ("call", "return"):
            return
        name = frame.f_code.co_filename
        if name.startswith(PACKAGE):
            self.calls += event == "call"
            self.moves += name != self._file
            self._file = name

    def __exit__(self, *error):
        sys.setprofile(None)
        self.server_calls = server_calls() - self._before

    def figures(self):
        return {"calls": self.calls, "moves": self.moves, "calls to the server": self.server_calls}


def server_calls():
    found = SERVER.info("commandstats")
    names = ("fcall", "evalsha", "eval")
    return sum(found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)


async def at_rest():
    """Go on when the session has made all its calls, which takes some round trips."""
    seen = -1
    while seen != (seen := server_calls()):  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.5)


async def main():
    limiter = Limiter("acquire-paths", Concurrency(1), store=sys.argv[1])
    for _ in range(3):
        await (await limiter.acquire()).arelease()
    await at_rest()
    with Count() as passes:
        held = await limiter.acquire()
    await at_rest()
    with Count() as queues:
        waiter = asyncio.ensure_future(limiter.acquire().__aenter__())
        await at_rest()
    print(json.dumps({"passes at once": passes.figures(), "queues": queues.figures()}))
    held.release()
    (await waiter).release()


asyncio.run(main())
