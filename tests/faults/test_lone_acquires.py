"""A lone acquire is one call, whether it passes, waits or is refused."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit
from tests.faults.scene import commands_of, elsewhere, visit
from tests.rights import rights_without_functions
from tests.servers import Server
from tests.world import soon


async def test_a_lone_acquire_of_known_limits_does_not_declare_them(
    name: str, redis_url: str
) -> None:
    """S1: given limits that another process has declared since, when a limiter with the former
    limits acquires, then the new limits hold for it.
    """
    limiter, other = (
        elsewhere(name, Concurrency(10), url=redis_url),
        elsewhere(name, Concurrency(2), url=redis_url),
    )
    await soon(visit(limiter))
    await soon(visit(other))

    await soon(visit(limiter))

    assert (await limiter.astatus()).limits[0].capacity == 2


@pytest.mark.parametrize("way", ["passes", "waits", "is refused"])
async def test_a_lone_acquire_is_one_call(
    name: str, redis_url: str, admin: Redis, way: str
) -> None:
    """Given a process whose last acquire passed at once, when it acquires again."""
    limiter, other = (
        elsewhere(name, Concurrency(1), url=redis_url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    await soon(visit(limiter))
    held = None if way == "passes" else await other.acquire()
    admin.config_resetstat()

    caller = await queued(limiter) if way == "waits" else None
    permit = None if way == "waits" else await soon(limiter.atry_acquire())

    assert commands_of(admin)["fcall"] == 1
    assert bool(permit) == (way == "passes")
    if held is not None:
        await held.arelease()
    if caller is not None:
        permit = await soon(caller)
    if permit:
        await permit.arelease()


def test_a_thread_passes_with_one_call_on_a_server_without_functions(name: str) -> None:
    """F22: its own connection gives the server the script that the server does not know yet."""
    server = Server(rights=rights_without_functions())
    server.start()
    try:
        limiter = Limiter(name, Concurrency(1), store=server.user_url)
        for _ in range(3):
            limiter.acquire_sync().release()
        limiter.flush()
        server.admin.config_resetstat()
        permit = limiter.acquire_sync()

        calls = commands_of(server.admin)

        assert (calls.get("evalsha"), calls.get("eval")) == (1, None)
        permit.release()
        limiter.flush()
    finally:
        server.stop()


async def queued(limiter: Limiter) -> asyncio.Task[Permit]:
    """A task that acquires, once it knows that it has to wait."""
    queues = asyncio.Event()
    caller = asyncio.create_task(waited(limiter, queues))
    await soon(queues.wait())
    return caller


async def waited(limiter: Limiter, queues: asyncio.Event) -> Permit:
    return await limiter.acquire(on_wait=lambda waiting: queues.set())
