"""Processes that are killed while they hold or wait: their capacity comes back (L1), and they lose
their place in the queue (L3).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from headgate import MaxSleepExceededError, Semaphore
from headgate.internals import queue_of
from headgate.stores.status import Status
from tests.clocks import ServerClock
from tests.processes import running
from tests.world import LONG, long, waiting

EXPIRY = 0.9


async def status_of(semaphore: Semaphore) -> Status:
    return await queue_of(semaphore).astatus()


async def test_the_permit_of_a_killed_holder_comes_back_when_its_lease_ends(
    name: str, redis_url: str, slack: Callable[[], float]
) -> None:
    """L1: given a holder that dies and a waiter, then the waiter passes when the expiry is over,
    and not before it could be.
    """
    semaphore = Semaphore(name, 1, expiry=EXPIRY, redis_url=redis_url)
    with running("hold", redis_url, name, 1, EXPIRY) as holder:
        assert [await holder.said(), await holder.said()] == ["asks", "inside"]
        waiter = asyncio.create_task(_visit(semaphore))
        await waiting(queue_of(semaphore), 1)

        holder.kill()
        killed = time.monotonic()
        async with asyncio.timeout(long()):
            await waiter

    assert time.monotonic() - killed <= EXPIRY + slack()


async def test_a_holder_that_lives_keeps_its_place_beyond_the_expiry(
    name: str, redis_url: str
) -> None:
    """S2: leases are renewed while they are held: more than an expiry later the permit is still
    held.
    """
    with running("hold", redis_url, name, 1, EXPIRY) as holder:
        assert [await holder.said(), await holder.said()] == ["asks", "inside"]

        with pytest.raises(MaxSleepExceededError):
            await _visit(
                Semaphore(name, 1, max_sleep=1.2 * EXPIRY, expiry=EXPIRY, redis_url=redis_url)
            )

        holder.tell("leave")
        assert await holder.said() == "left"
    await _visit(Semaphore(name, 1, max_sleep=LONG, expiry=EXPIRY, redis_url=redis_url))


async def test_the_default_expiry_is_30_seconds(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1, S4 by the server's clock: held at 29 seconds, free at 31."""
    clock = ServerClock(monkeypatch)
    impatient = Semaphore(name, 1, max_sleep=0.001, redis_url=redis_url)
    with running("hold", redis_url, name, 1, 30) as holder:
        assert [await holder.said(), await holder.said()] == ["asks", "inside"]
        holder.kill()

    assert (await status_of(impatient)).limits[0].used == 1
    clock.forward(29)
    assert (await status_of(impatient)).limits[0].used == 1
    clock.forward(2)
    assert (await status_of(impatient)).limits[0].used == 0


async def test_a_killed_waiter_does_not_hold_up_the_queue(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3: a dead one stands first in the queue; once it has been silent for long enough, those
    behind it go.
    """
    clock = ServerClock(monkeypatch)
    semaphore = Semaphore(name, 1, expiry=60, redis_url=redis_url)
    await semaphore.__aenter__()
    with running("hold", redis_url, name, 1, 60) as dead:
        assert await dead.said() == "asks"
        await waiting(queue_of(semaphore), 1)
        dead.kill()

    clock.forward(15)
    waiter = asyncio.create_task(_visit(semaphore))
    await asyncio.sleep(0)
    await semaphore.__aexit__(None, None, None)

    async with asyncio.timeout(long()):
        await waiter


async def test_a_permit_granted_to_a_dead_waiter_comes_back_when_its_lease_ends(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L1, L3: it died a moment ago and no process knows: it is granted the permit, and loses it
    when the lease ends.
    """
    clock = ServerClock(monkeypatch)
    semaphore = Semaphore(name, 1, redis_url=redis_url)
    await semaphore.__aenter__()
    with running("hold", redis_url, name, 1, 30) as dead:
        assert await dead.said() == "asks"
        await waiting(queue_of(semaphore), 1)
        dead.kill()

    await semaphore.__aexit__(None, None, None)
    clock.forward(31)
    async with asyncio.timeout(long()):
        await _visit(semaphore)


async def test_a_semaphore_works_after_holders_and_waiters_were_killed(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5, L6: three processes, two inside and one waiting, all killed; a minute later the whole
    capacity is there, once.
    """
    clock = ServerClock(monkeypatch)
    semaphore = Semaphore(name, 2, redis_url=redis_url)
    with (
        running("hold", redis_url, name, 2, 30) as one,
        running("hold", redis_url, name, 2, 30) as two,
    ):
        assert [await each.said() for each in (one, one, two, two)] == ["asks", "inside"] * 2
        with running("hold", redis_url, name, 2, 30) as three:
            assert await three.said() == "asks"
            await waiting(queue_of(semaphore), 1)
            for process in (one, two, three):
                process.kill()

    clock.forward(60)

    async with asyncio.timeout(long()), semaphore, semaphore:
        assert (await status_of(semaphore)).limits[0].left == 0


async def _visit(semaphore: Semaphore) -> None:
    async with semaphore:
        pass
