"""A process that says one thing to a limiter as the last of all, and ends.

usage: last_words.py url name what where
where: the main thread, a loop of asyncio.run, a task that asyncio.run cancels, a child that
multiprocessing starts by a fork or by a forkserver, the blocked loop of a daemon thread, or a
callback of atexit. The callback is registered before any use of a Redis store.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import sys
import threading
import time

from headgate import Concurrency, Limiter, Permit, Rate
from tests.machine import scaled

PERMITS = Concurrency(2, lease=600)
OF_PERMITS = "release", "settle"
CHILDREN = {"child": "fork", "child of a forkserver": "forkserver"}


def made(url: str, name: str) -> Limiter:
    # Imported here, because an import of it at the top would be a use of Redis stores.
    from headgate.stores.redis.transport import shutdown

    shutdown.LONGEST = scaled(shutdown.LONGEST)
    return Limiter(name, Rate(100, per=10**6), PERMITS, store=url)


def speak(limiter: Limiter, what: str, permit: Permit | None) -> None:
    if what == "update":
        limiter.update(Rate(50, per=10**6), PERMITS)
    elif what == "pause":
        limiter.pause(3600)
    elif what == "drain":
        limiter.drain(requests=12)
    else:
        assert permit is not None
        if what == "settle":
            permit.settle(requests=30)
        permit.release()


def say(url: str, name: str, what: str) -> None:
    limiter = made(url, name)
    speak(limiter, what, limiter.acquire_sync() if what in OF_PERMITS else None)


async def permit_for(limiter: Limiter, what: str) -> Permit | None:
    return await limiter.acquire() if what in OF_PERMITS else None


async def say_in_a_loop(url: str, name: str, what: str) -> None:
    limiter = made(url, name)
    speak(limiter, what, await permit_for(limiter, what))


async def say_and_block(url: str, name: str, what: str, said: threading.Event) -> None:
    await say_in_a_loop(url, name, what)
    await asyncio.sleep(0.1)  # The loop's own connection tries once.
    said.set()
    time.sleep(3600)  # noqa: ASYNC251 - the loop of a daemon thread is blocked


async def say_when_cancelled(url: str, name: str, what: str) -> None:
    limiter = made(url, name)
    permit = await permit_for(limiter, what)

    async def wait() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            speak(limiter, what, permit)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    del task


def main(url: str, name: str, what: str, where: str) -> None:
    if where == "loop":
        asyncio.run(say_in_a_loop(url, name, what))
    elif where == "cancelled":
        asyncio.run(say_when_cancelled(url, name, what))
    elif where in CHILDREN:
        start = multiprocessing.get_context(CHILDREN[where])
        child = start.Process(target=say, args=(url, name, what))  # type: ignore[attr-defined]  # each context has it
        child.start()
        child.join()
    elif where == "blocked loop":
        said = threading.Event()
        work = say_and_block(url, name, what, said)
        threading.Thread(target=asyncio.run, args=(work,), daemon=True).start()
        said.wait()
    elif where == "exit":
        atexit.register(say, url, name, what)
    else:
        say(url, name, what)


if __name__ == "__main__":
    main(*sys.argv[1:])
