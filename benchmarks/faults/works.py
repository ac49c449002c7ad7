"""The faults themselves: each is done to every entrant that can have it, and reports the result in
a few words.

Every count is made through the library's own public calls, or by the server's CLIENT LIST. No
entrant's internals are read. If an entrant's tokens cannot be taken to be counted, the server's
count of scripts stands for them.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from redis import Redis

from benchmarks.faults.entrants import ENTRANTS, LEASE, TOKENS, Entrant, Kind, Maker
from benchmarks.faults.network import losing
from benchmarks.shapes import describe

PATIENCE = 60.0  # seconds for one work: an entrant that takes longer hangs
MOMENT = 1.0  # seconds in which every caller that may enter has entered
SEED = 20261121
ROUNDS, CALLERS = 60, 20
QUEUE, APART = 40, 0.01  # callers that wait, and seconds between their arrivals
CROWD = 60
NONE = "-"  # it has nothing that this could be done to


async def outcome(
    work: Callable[[Entrant, str, str], Awaitable[str]], entrant: Entrant, url: str
) -> str:
    """The result of `work`, or why it has none."""
    name = f"{work.__name__}-{entrant.name}".replace(" ", "-")
    try:
        async with asyncio.timeout(PATIENCE):
            return await work(entrant, url, name)
    except TimeoutError:
        return f"no end after {PATIENCE:g} s"
    except Exception as error:
        return describe(error)


# Counting -----------------------------------------------------------------------------------------


async def free(maker: Maker, most: int, patience: float = MOMENT) -> int:
    """How many can be inside at once, now."""
    inside = 0

    async def visit() -> None:
        nonlocal inside
        async with maker():
            inside += 1
            await done.wait()

    done = asyncio.Event()
    tasks = [asyncio.create_task(visit()) for _ in range(most)]
    await asyncio.sleep(patience)
    found = inside
    # The holder leaves as it should, and then the others are asked to give up one after another.
    done.set()
    await asyncio.sleep(patience / 4)
    await dismissed(tasks)
    return found


async def dismissed(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks, timeout=PATIENCE)


# Capacity -----------------------------------------------------------------------------------------


async def cancellation(entrant: Entrant, url: str, name: str) -> str:
    """Callers come and go, and every other one is cancelled at a random moment: at the end all of
    the capacity should be there.
    """
    if (kind := entrant.semaphore) is None:
        return NONE
    chance, maker = random.Random(SEED), kind.maker(url, name)

    async def visit(stay: float) -> None:
        async with maker():
            await asyncio.sleep(stay)

    for _ in range(ROUNDS):
        tasks = [asyncio.create_task(visit(chance.uniform(0, 0.002))) for _ in range(CALLERS)]
        for task in chance.sample(tasks, CALLERS // 2):
            asyncio.get_running_loop().call_later(chance.uniform(0, 0.02), task.cancel)
        await asyncio.wait(
            tasks, timeout=MOMENT / 4
        )  # a waiter for a permit that is lost would wait for ever
        await dismissed(tasks)
    at_once = await free(maker, 2 * kind.capacity)
    await asyncio.sleep(LEASE + MOMENT)
    return f"{at_once} of {kind.capacity}; {await free(maker, 2 * kind.capacity)} a lease later"


async def kill(entrant: Entrant, url: str, name: str) -> str:
    """A process holds all but one permit (a lock: its one) and is killed with -9, while others go
    on coming and going.
    """
    if (kind := entrant.semaphore) is None:
        return NONE
    maker = kind.maker(url, name)
    words = [
        sys.executable,
        "-m",
        "benchmarks.faults.holder",
        entrant.name,
        url,
        name,
        str(max(1, kind.capacity - 1)),
    ]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    process.kill()
    await process.wait()
    over = asyncio.Event()
    traffic = asyncio.create_task(coming_and_going(maker, over))
    await asyncio.sleep(2 * LEASE + MOMENT)
    over.set()
    await asyncio.wait([traffic], timeout=MOMENT)
    left = await free(maker, 2 * kind.capacity)
    await dismissed([traffic])
    return f"{left} of {kind.capacity}"


async def coming_and_going(maker: Maker, over: asyncio.Event) -> None:
    while not over.is_set():
        async with maker():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)


# A reply that is lost -----------------------------------------------------------------------------


async def lost(kind: Kind, url: str, name: str) -> str:
    """The result for a caller whose reply is lost, in a process that has worked for a while."""
    async with losing(url, kind.grants) as (loser, through):
        maker = kind.maker(through, name)
        assert await entered(maker) == "granted", "nothing was wrong yet"
        loser.armed = True
        heard = await entered(maker)
        assert loser.lost, "nothing was lost"
        return heard


async def entered(maker: Maker) -> str:
    """The result for one caller."""
    try:
        async with asyncio.timeout(4 * LEASE), maker():
            return "granted"
    except TimeoutError:
        return "no answer"
    except Exception as error:
        return type(error).__name__


async def lost_charge(entrant: Entrant, url: str, name: str) -> str:
    """The reply to one acquire is lost after the server has run it: how many tokens did it take?"""
    if (kind := entrant.bucket) is None:
        return NONE
    before = runs(url)
    heard = await lost(kind, url, name)
    gone = (
        runs(url) - before
        if kind.counts_runs
        else TOKENS - await free(kind.maker(url, name), 2 * TOKENS)
    )
    return f"{heard}, charged {gone - 1}"  # one was before


def runs(url: str) -> int:
    """How often a script has run, by the server's count."""
    with Redis.from_url(url) as server:
        counted = server.info("commandstats").get(
            "cmdstat_evalsha", {"calls": 0, "failed_calls": 0}
        )
    return int(counted["calls"] - counted["failed_calls"])


async def lost_permit(entrant: Entrant, url: str, name: str) -> str:
    """The same for a permit, which its holder then gives back: how many are there?"""
    if (kind := entrant.semaphore) is None:
        return NONE
    heard = await lost(kind, url, name)
    return (
        f"{heard}; {await free(kind.maker(url, name), 2 * kind.capacity)} of {kind.capacity} left"
    )


# Order and connections ----------------------------------------------------------------------------


async def queued(kind: Kind, url: str, name: str, meanwhile: Callable[[], None]) -> str:
    """The holder of everything releases it when all wait. A caller that enters before an earlier
    one has overtaken it.
    """
    maker, order, failed = kind.maker(url, name), list[int](), list[str]()

    async def visit(number: int) -> None:
        try:
            async with maker():
                order.append(number)
        except Exception as error:
            failed.append(type(error).__name__)

    held = [maker() for _ in range(kind.capacity)]
    for entry in held:
        await entry.__aenter__()
    tasks = []
    for number in range(QUEUE):
        tasks.append(asyncio.create_task(visit(number)))
        await asyncio.sleep(APART)
    meanwhile()
    await asyncio.sleep(5 * APART)
    for entry in held:
        await entry.__aexit__(None, None, None)
    await asyncio.wait(tasks, timeout=PATIENCE / 3)
    await dismissed(tasks)
    overtaken = sum(
        any(later > number for later in order[:index]) for index, number in enumerate(order)
    )
    told = f"{len(order)} of {QUEUE} through, {overtaken} overtaken"
    return told + (f", {len(failed)} got {failed[0]}" if failed else "")


async def order(entrant: Entrant, url: str, name: str) -> str:
    """Callers that arrive one after another wait for a capacity that is taken."""
    return (
        NONE
        if entrant.semaphore is None
        else await queued(entrant.semaphore, url, name, lambda: None)
    )


async def order_after_a_break(entrant: Entrant, url: str, name: str) -> str:
    """The same, and the server closes every connection while they wait."""

    def break_off() -> None:
        with Redis.from_url(url) as server:
            server.client_kill_filter(_type="normal", skipme=True)
            server.client_kill_filter(_type="pubsub", skipme=True)

    return (
        NONE if entrant.semaphore is None else await queued(entrant.semaphore, url, name, break_off)
    )


async def connections(entrant: Entrant, url: str, name: str) -> str:
    """Those of one process in which callers wait, by CLIENT LIST."""
    if (kind := entrant.semaphore) is None:
        return NONE
    with Redis.from_url(url) as server:
        before, maker = len(server.client_list()), kind.maker(url, name)

        async def visit() -> None:
            async with maker():
                await asyncio.sleep(PATIENCE)

        tasks = [asyncio.create_task(visit()) for _ in range(CROWD)]
        await asyncio.sleep(LEASE / 2)
        found = len(server.client_list()) - before
    await dismissed(tasks)
    return f"{found} for {CROWD}"


WORKS: dict[str, Callable[[Entrant, str, str], Awaitable[str]]] = {
    "capacity left after random cancellations": cancellation,
    "capacity left after kill -9 and two leases": kill,
    "lost reply: a token": lost_charge,
    "lost reply: a permit": lost_permit,
    "order": order,
    "order, connections killed": order_after_a_break,
    "connections for callers": connections,
}


def entrants(pattern: str) -> list[Entrant]:
    """The entrants whose names contain `pattern`."""
    return [entrant for entrant in ENTRANTS if pattern in entrant.name]
