"""Tools for the scenarios of a server that cannot be asked: limiters that go on without it, ways to
ask them, and faults.

This module has no tests. A limiter of `opened` or `local` has a connection and a share of its own,
as in another process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from redis import Redis

from headgate import Limiter, Permit, Rate
from headgate.internals import queue_of
from headgate.limits import Limit
from tests.faults.scene import Room, elsewhere, once_back
from tests.servers import Server
from tests.world import long

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")


def opened(name: str, server: Server, *limits: Limit | str, **options: Any) -> Limiter:
    return elsewhere(name, *limits, url=server.url, on_store_error="open", **options)


def local(
    name: str, server: Server, *limits: Limit | str, processes: int = 2, **options: Any
) -> Limiter:
    return elsewhere(
        name, *limits, url=server.url, on_store_error="local", processes=processes, **options
    )


async def by_task(limiter: Limiter) -> Permit:
    return await limiter.acquire()


async def by_trying(limiter: Limiter) -> Permit | bool:
    return await limiter.atry_acquire() or False


async def by_thread(limiter: Limiter) -> Permit:
    return await asyncio.to_thread(limiter.acquire_sync)


async def by_trying_thread(limiter: Limiter) -> Permit | bool:
    return await asyncio.to_thread(limiter.try_acquire) or False


WAYS = [by_task, by_trying, by_thread, by_trying_thread]


async def found(limiter: Limiter) -> None:
    """Go on when both the tasks of this loop and the threads know that the server is back. Both are
    connected to it.
    """
    its: Any = queue_of(limiter)  # a fallback queue knows
    async with asyncio.timeout(long()):
        while True:
            if not (its._away() or await asyncio.to_thread(its._away)):
                break
            await asyncio.sleep(0.001)
    await once_back(queue_of(its).astatus)
    await once_back(lambda: asyncio.to_thread(queue_of(its).status))


async def inside(limiter: Limiter, door: asyncio.Event, room: Room) -> None:
    """Enter, and stay until the door opens."""
    async with limiter:
        with room:
            await door.wait()


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    with Redis.from_url(server.url) as admin:
        admin.config_set("maxmemory", 1)
        yield
        admin.config_set("maxmemory", 0)


@contextlib.contextmanager
def forbidden(server: Server) -> Iterator[None]:
    with Redis.from_url(server.url) as admin:
        admin.acl_setuser(
            "default",
            enabled=True,
            nopass=True,
            categories=["+@all"],
            commands=["-fcall", "-evalsha", "-eval"],
        )
        yield
        admin.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"])


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


@contextlib.contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


FAULTS = [full, forbidden, frozen, killed]
