"""Forks while a thread waits for the answer to a call on Redis. Prints the error in the child, the
calls that it counts as failed, and that it can call again.

usage: fork_in_call.py URL NAME status|try_acquire|flush|acquire|first|granted|connect|start
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from typing import cast

from headgate import Concurrency, Limiter
from headgate.internals import queue_of, store_of
from headgate.stores.redis import fast_path
from headgate.stores.redis.queue import RedisQueue
from headgate.stores.redis.store import RedisStore
from headgate.stores.redis.transport.portal import Portal
from headgate.telemetry.reading import switch_on
from tests.forking import CHILDREN, FORKED, fork_once, signal_main, signal_until_forked


def wrap(place: object, function: str, within: Callable[..., object]) -> None:
    """Once: call `within`, which forks, and then `function` of `place`."""
    whole = getattr(place, function)

    def wrapped(*arguments: object) -> object:
        setattr(place, function, whole)
        return within(whole, *arguments)

    setattr(place, function, wrapped)


def behind_the_fork(whole: Callable[..., object], *arguments: object) -> object:
    signal_until_forked()
    return whole(*arguments)


async def answers_behind_the_fork(whole: Callable[..., object], *arguments: object) -> object:
    await asyncio.to_thread(signal_until_forked)
    return await whole(*arguments)  # type: ignore[misc]


def between_call_and_reply(
    whole: Callable[..., object], talk: fast_path.BlockingConnection, *arguments: object
) -> object:
    class Reader:
        feed = talk._reader.feed

        def gets(self) -> object:
            if not FORKED.is_set():
                signal_main()
            return reader.gets()

    reader, talk._reader = talk._reader, Reader()  # type: ignore[assignment]
    return whole(talk, *arguments)


def before(whole: Callable[..., object], *arguments: object) -> object:
    signal.raise_signal(signal.SIGUSR1)
    return whole(*arguments)


def connect(new: Limiter, url: str) -> None:
    """Open the connection to the server of `new`, by another name that it has in a Cluster."""
    where = cast(RedisStore, store_of(new)).topology.where
    names = (Limiter(f"{new.name}-{n}", Concurrency(2), store=url) for n in count())
    known = next(each for each in names if where(key_of(each)) == where(key_of(new)))
    for _ in range(2):  # the first acquire opens no connection
        known.acquire_sync().release()


def key_of(limiter: Limiter) -> str:
    return cast(RedisQueue, queue_of(limiter)).key


def main(url: str, name: str, how: str) -> None:
    switch_on()
    limiter = Limiter(name, Concurrency(1), store=url)
    signal.signal(signal.SIGUSR1, fork_once)
    if how != "start":
        limiter.update(Concurrency(2))
        limiter.flush()
    if how in ("acquire", "granted"):
        limiter.acquire_sync().release()
    if how == "first":
        limiter = Limiter(f"{name}-new", Concurrency(2), store=url)
        connect(limiter, url)
    call = {
        "status": limiter.status,
        "start": limiter.status,
        "flush": limiter.flush,
        "try_acquire": lambda: limiter.try_acquire().release(),  # type: ignore[union-attr]
    }.get(how, limiter.acquire_sync)
    asked = {"status": "astatus", "try_acquire": "atake", "flush": "aflush"}
    if how in asked:
        wrap(RedisQueue, asked[how], answers_behind_the_fork)
    elif how in ("acquire", "first"):
        wrap(fast_path.BlockingConnection, "exchange", between_call_and_reply)
    elif how == "granted":
        wrap(fast_path, "Permit", before)
    elif how == "connect":
        wrap(fast_path, "connect", behind_the_fork)
    else:
        wrap(Portal, "_open", behind_the_fork)
    try:
        answer = call()
    except RuntimeError as error:
        failed = [cause for _, cause in cast(RedisStore, store_of(limiter)).calls() if cause]
        print("child:", error, *failed, flush=True)
        answer = call()
    if not CHILDREN[0]:
        limiter.flush()  # the child's returns arrive
        os._exit(0)
    print(
        "parent",
        os.waitstatus_to_exitcode(os.waitpid(CHILDREN[0], 0)[1]),
        getattr(answer, "held", None),
    )
    if how in ("acquire", "first", "granted", "connect"):
        print(limiter.status().limits[0].used)
        answer.release()  # type: ignore[union-attr]


if __name__ == "__main__":
    main(*sys.argv[1:])
