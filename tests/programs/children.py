"""A process that starts children by multiprocessing; each takes the only permit of a limiter,
settles, releases and ends.

usage: children.py url name method way count Prints the number of holders and of tokens left after
each child, one line each, and the errors that a child ended with.
"""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import util
from typing import Any

from headgate import Concurrency, Limiter, Rate


def limiter_of(url: str, name: str) -> Limiter:
    return Limiter(
        name,
        Concurrency(1, lease=20.0),
        Rate(2_000_000, per=10**8, steps=True, unit="tokens"),
        store=url,
    )


def work(url: str, name: str, end: str = "returns") -> None:
    """The last words of a child are a settlement and a release."""
    with limiter_of(url, name).acquire(tokens=100) as permit:
        permit.settle(tokens=5000)
    if end == "exits":
        sys.exit(0)
    if end == "fails":
        sys.stderr = io.StringIO()  # for the traceback
        raise ZeroDivisionError


def work_in_a_loop(url: str, name: str) -> None:
    """The loop stops with the last release, is not run again and is not closed."""

    async def once() -> None:
        async with limiter_of(url, name).acquire(tokens=100) as permit:
            permit.settle(tokens=5000)

    asyncio.set_event_loop(loop := asyncio.new_event_loop())
    loop.run_until_complete(once())


def work_in_a_thread(url: str, name: str) -> None:
    """The thread of the child goes on when its main function has ended."""

    def late() -> None:
        threading.main_thread().join()
        work(url, name)

    limiter_of(url, name).status()
    threading.Thread(target=late).start()


def work_in_a_finalizer(url: str, name: str) -> None:
    """The child's own finalizer is its first use of headgate."""
    util.Finalize(None, work, args=(url, name), exitpriority=-50)


def run(method: str, way: str, url: str, name: str) -> None:
    context: Any = multiprocessing.get_context(method)
    if way == "pool":
        pool = context.Pool(1, maxtasksperchild=1)
        pool.apply(work, (url, name))
        pool.close()
        pool.join()
    elif way == "executor":
        with ProcessPoolExecutor(1, mp_context=context) as executor:
            executor.submit(work, url, name).result()
    else:
        targets = {
            "loop": (work_in_a_loop,),
            "thread": (work_in_a_thread,),
            "finalizer": (work_in_a_finalizer,),
        }
        target, *more = targets.get(way, (work, way))
        child = context.Process(target=target, args=(url, name, *more))
        child.start()
        child.join()


def main(url: str, name: str, method: str, way: str, count: int) -> None:
    limiter = limiter_of(url, name)
    for _ in range(count):
        start = time.monotonic()
        run(method, way, url, name)
        held, tokens = limiter.status().limits
        print(held.used, tokens.capacity - tokens.left, time.monotonic() - start < 20, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5], count=int(sys.argv[5]))  # type: ignore[misc]
