"""A lone acquire asks the fast script first. When that is not enough, the process asks the whole
script for the same, and no more.
"""

from __future__ import annotations

import asyncio

from redis import Redis

from headgate import Concurrency, Limiter, Permit, Rate
from tests.faults.scene import commands_of, elsewhere, enter, visit
from tests.world import soon, waiting

MINUTE = 60_000_000  # microseconds
TOKENS = 5 * MINUTE  # a cost, taken for the microseconds of a wait, would be more than a minute


async def test_the_fast_script_does_not_declare(name: str, redis_url: str) -> None:
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


async def test_the_call_after_the_fast_script_reserves_no_further_ahead_than_any_other(
    name: str, redis_url: str
) -> None:
    """T5: a waiter behind a large cost moves forward when that cost is cancelled.

    The large cost gets no reservation a minute ahead: the whole call after the fast one names the
    horizon, and not the cost.
    """
    full = Rate(TOKENS, per=MINUTE / 1_000_000, unit="tokens")
    limiter, other = elsewhere(name, full, url=redis_url), elsewhere(name, full, url=redis_url)
    for _ in range(2):
        await limiter.acquire(tokens=1)
    await other.acquire(tokens=TOKENS - 2)
    first = asyncio.create_task(enter(limiter, tokens=TOKENS))
    await waiting(other, 1)
    second = asyncio.create_task(enter(other, tokens=TOKENS // 1_000))
    await waiting(limiter, 2)
    first.cancel()

    await soon(
        second
    )  # after 60 ms of the bucket; behind the first it would wait for more than a minute


async def test_a_caller_that_was_refused_makes_the_whole_call_at_once(
    name: str, redis_url: str, admin: Redis
) -> None:
    """Given a permit that another process holds and a caller tried in vain, when the caller tries
    again, then that is a single call.
    """
    limiter, other = (
        elsewhere(name, Concurrency(1), url=redis_url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    await soon(visit(limiter))
    held = await other.acquire()
    await limiter.atry_acquire()

    admin.config_resetstat()
    assert not await soon(limiter.atry_acquire())

    assert commands_of(admin)["fcall"] == 1
    await held.arelease()


async def test_a_caller_that_has_waited_makes_the_whole_call_at_once(
    name: str, redis_url: str, admin: Redis
) -> None:
    """Given a caller that has waited for another process's permit and released it, when it acquires
    again, then that is one call.
    """
    limiter, other = (
        elsewhere(name, Concurrency(1), url=redis_url),
        elsewhere(name, Concurrency(1), url=redis_url),
    )
    await soon(visit(limiter))
    held = await other.acquire()
    caller = await queued(limiter)
    held.release()
    await (await soon(caller)).arelease()
    held = await other.acquire()

    admin.config_resetstat()
    caller = await queued(limiter)

    assert commands_of(admin)["fcall"] == 1
    held.release()
    await (await soon(caller)).arelease()


async def queued(limiter: Limiter) -> asyncio.Task[Permit]:
    """A task that acquires, once it knows that it has to wait."""
    queues = asyncio.Event()
    caller = asyncio.create_task(waited(limiter, queues))
    await soon(queues.wait())
    return caller


async def waited(limiter: Limiter, queues: asyncio.Event) -> Permit:
    return await limiter.acquire(on_wait=lambda waiting: queues.set())
