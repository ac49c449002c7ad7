"""Uses a limiter in a thread or a loop while signal handlers, or finalizers that the collector
runs, call it as well.

Arguments: URL ("" for memory), name, place ("thread" or "loop"), by ("signal" or "finalizer"), the
call, and how many of them. Prints how many calls were made: "refused" is one of them that came in
headgate's own thread.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import random
import signal
import sys
from collections.abc import Callable

from headgate import Concurrency, Limiter, Permit, Rate, StoreError

HANGS = 60.0  # seconds after which the program hangs
SHORTEST, LONGEST = 0.0003, 0.002  # seconds from one signal to the next
LIMITS = (Concurrency(100, lease=2.0), Rate(1_000_000, 1.0, unit="tokens"))


def permit_of(limiter: Limiter) -> Permit:
    permit = limiter.try_acquire(tokens=2)
    assert isinstance(permit, Permit)
    return permit


CALLS: dict[str, Callable[[Limiter], object]] = {
    "update": lambda limiter: limiter.update(
        Concurrency(random.randrange(100, 109), lease=2.0), LIMITS[1]
    ),
    "pause": lambda limiter: limiter.pause(0.0001),
    "drain": lambda limiter: limiter.drain(tokens=900_000),
    "status": lambda limiter: limiter.status(),
    "try_acquire": lambda limiter: limiter.try_acquire() and None,
    "release": lambda limiter: permit_of(limiter).release(),
    "settle": lambda limiter: permit_of(limiter).settle(tokens=1),
    "repr": repr,
    "Limiter()": lambda limiter: Limiter(
        f"{limiter.name} {random.random()}", *LIMITS, store=URL or None
    ).status(),
    "limiter[key]": lambda limiter: limiter[str(random.random())].status(),
    "with": lambda limiter: limiter(list.copy)([]),
}


class Calls:
    """Counts them, and makes them."""

    def __init__(self, limiter: Limiter, call: str, most: int) -> None:
        self.made = self.refused = 0
        self._limiter = limiter
        self._call = CALLS[call]
        self._most = most
        self._busy = False

    @property
    def enough(self) -> bool:
        return self.made >= self._most

    def make(self) -> None:
        if self._busy or self.enough:
            return
        self._busy = True
        try:
            self._call(self._limiter)
        except StoreError as error:
            self.refused += "headgate's own thread" in str(error)
            if not self.refused:
                raise
        finally:
            self.made += 1
            self._busy = False

    def handle(self, number: int, frame: object) -> None:
        self.make()
        self.signal_later()

    def signal_later(self) -> None:
        if not self.enough:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(SHORTEST, LONGEST))


class Finalized:
    """Garbage that only the collector finds."""

    def __init__(self, calls: Calls) -> None:
        self._itself = self
        self._calls = calls

    def __del__(self) -> None:
        self._calls.make()


def in_a_thread(limiter: Limiter, calls: Calls, litter: Callable[[], object]) -> None:
    while not calls.enough:
        litter()
        with limiter:
            pass
        limiter.acquire_sync(tokens=2).release()


async def in_a_loop(limiter: Limiter, calls: Calls, litter: Callable[[], object]) -> None:
    async def visit() -> None:
        while not calls.enough:
            litter()
            async with limiter:
                await asyncio.sleep(0)
            async with limiter.acquire(tokens=3) as permit:
                permit.settle(tokens=2)

    await asyncio.gather(*(visit() for _ in range(8)))


def main(name: str, place: str, by: str, call: str, most: int) -> None:
    faulthandler.dump_traceback_later(HANGS + most * LONGEST * 10, exit=True)
    limiter = Limiter(name, *LIMITS, store=URL or None)
    limiter.status()
    calls = Calls(limiter, call, most)
    litter: Callable[[], object] = list
    if by == "signal":
        signal.signal(signal.SIGALRM, calls.handle)
        calls.signal_later()
    else:
        gc.set_threshold(50)
        litter = lambda: Finalized(calls)  # noqa: E731
    if place == "thread":
        in_a_thread(limiter, calls, litter)
    else:
        asyncio.run(in_a_loop(limiter, calls, litter))
    print(calls.made, calls.refused, flush=True)


if __name__ == "__main__":
    URL = sys.argv[1]
    main(*sys.argv[2:6], int(sys.argv[6]))
