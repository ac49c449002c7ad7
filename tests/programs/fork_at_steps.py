"""Forks at each third line of a story in memory, as a signal handler may. Prints each child that
does not end with a free limiter.

usage: fork_at_steps.py NAME STORY
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import headgate
from headgate import Concurrency, Limiter, Rate
from headgate.stores.memory.store import MemoryStore
from tests.processes import PATIENCE

SOURCE = str(Path(headgate.__file__).parent)
STRIDE = 3


class Fork:
    """Forks at one step of headgate's code, and waits for the child."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.child = -1
        self.where = ""
        self.code = 0

    def trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.startswith(SOURCE):
            return None
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        self.left -= 1
        if self.left:
            return self.step
        sys.settrace(None)
        self.child = os.fork()
        if self.child:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        else:
            faulthandler.dump_traceback_later(PATIENCE, exit=True)
        return None


def block(limiter: Limiter) -> None:
    with limiter:
        pass


def one(limiter: Limiter) -> None:
    limiter.acquire_sync().release()


def permits(limiter: Limiter) -> None:
    limiter.acquire_sync(permits=2).release()


def attempt(limiter: Limiter) -> None:
    limiter.try_acquire(permits=2).release()  # type: ignore[union-attr]


def wait(limiter: Limiter, **units: int) -> None:
    held = [limiter.acquire_sync(), limiter.acquire_sync()]

    def release(_: object = None) -> None:
        for each in held:
            each.release()

    try:
        limiter.acquire_sync(on_wait=release, **units).release()
    finally:  # in a child, too, where the acquire raises
        release()


def wait_for_all(limiter: Limiter) -> None:
    wait(limiter, permits=2)


def timed(limiter: Limiter) -> None:
    limiter.update(Concurrency(2), Rate(1_000_000, per=1))
    block(limiter)
    wait(limiter)


def update(limiter: Limiter) -> None:
    limiter.update(Concurrency(3))
    assert limiter.status().limits[0].capacity == 3


STORIES: dict[str, Callable[[Limiter], None]] = {
    story.__name__: story
    for story in (block, one, permits, attempt, wait, wait_for_all, timed, update)
}


def tell(name: str, story: Callable[[Limiter], None], at: int) -> Fork:
    """Run the story, and fork at step number `at`."""
    limiter, fork = Limiter(name, Concurrency(2), store=MemoryStore()), Fork(at)
    limiter.acquire_sync().release()
    sys.settrace(fork.trace)
    try:
        story(limiter)
    except RuntimeError:
        assert not fork.child, "an error in the parent"
    finally:
        sys.settrace(None)
    status = limiter.status()
    seen = [limit.used for limit in status.limits if limit.unit == "permits"], status.waiting
    free = seen == ([0], 0)
    if permit := limiter.try_acquire(permits=2):
        permit.release()
    free = free and bool(permit)
    if not fork.child:
        os._exit(not free)
    assert free, f"{seen} in the parent"
    return fork


def main(name: str, story: str) -> None:
    at = 1
    while (fork := tell(f"{name}-{at}", STORIES[story], at)).child > 0:
        if fork.code:
            print(at, fork.where, fork.code)
        at += STRIDE
    print("steps" if at > 1 else "no step")


if __name__ == "__main__":
    main(*sys.argv[1:])
