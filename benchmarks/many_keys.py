"""`python -m benchmarks.many_keys`: a million keyed limiters of one process in one Redis: the cost
of each, and the remains.

Here keys are made, batch by batch, and the memory of the server and of this process is read then.
Exit status: 1 when a key has no TTL or outlives it, when an idle key takes more than 400 bytes or
more than one key of Redis, when this process grew with the keys, or held more than 3 connections.
2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks import table, tool
from benchmarks.usage import stats

if TYPE_CHECKING:
    from headgate import Limiter, Permit

KEYS, LIVE, BRIEF = 1_000_000, 10_000, 1_000
AT_ONCE = 1_000  # acquires of as many keys, in one turn of the loop
REMEMBERED = 86_400.0  # seconds in which a bucket fills: no key ends while the run lasts
LEASE = 86_400.0  # nothing is renewed meanwhile
CONNECTIONS = 3  # the most: the goal
LEAK, NOISE = (
    16,
    8_000_000,
    # bytes a key by which this process may grow after the first tenth, and a size that is noise in
    # any case
)
SMALL = 400  # bytes of Redis that an idle key takes at most
BEYOND = 5.0  # seconds after the last TTL: then nothing may be left
SPARE = "SLACK = 60000000"  # the script adds this to a TTL, to write it seldom


@dataclass
class Findings:
    """The faults that were found, reported at the end."""

    wrong: list[str] = field(default_factory=list)

    def check(self, right: bool, otherwise: str) -> None:
        if not right:
            self.wrong.append(otherwise)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.many_keys", description="a million keyed limiters in one Redis"
    )
    add = parser.add_argument
    add("--keys", type=int, default=KEYS, metavar="N", help=f"idle keys, {KEYS:,} unless told")
    add(
        "--live",
        type=int,
        default=LIVE,
        metavar="N",
        help=f"keys that are held or waited for, and idle again; {LIVE:,} unless told",
    )
    add(
        "--brief",
        type=int,
        default=BRIEF,
        metavar="N",
        help=f"keys that are waited for until all are gone; {BRIEF:,} unless told",
    )
    options = parser.parse_args(arguments)
    return tool.on_private_server(
        lambda url: measured(url, options.keys, options.live, options.brief)
    )


def measured(url: str, keys: int, live: int, brief: int) -> bool:
    found = Findings()
    with Redis.from_url(url) as server:
        asyncio.run(idle_keys(url, server, keys, found))
        asyncio.run(live_keys(url, server, live, found))
        asyncio.run(idle_again(url, server, live, found))
        gone_keys(url, server, brief, found)
    for wrong in found.wrong:
        table.say(f"!!! {wrong}")
    return not found.wrong


# Idle keys ----------------------------------------------------------------------------------------


async def idle_keys(url: str, server: Redis, keys: int, found: Findings) -> None:
    from headgate import Limiter, Rate

    limiter = Limiter("many", Rate(1, per=REMEMBERED), store=url)
    await entered(limiter["first"])
    before, done = used(server), stats(server)
    table.say(
        f"\n{keys:,} keys, each entered once: limiter[key] with a Rate; {AT_ONCE:,} keys at once"
    )
    start, rows, resident_then = perf_counter(), [], 0
    tenth = max(AT_ONCE, keys // 10)
    for first in range(0, keys, tenth):
        last = min(first + tenth, keys)
        await at_once(entered, (limiter[f"tenant-{number}"] for number in range(first, last)))
        resident_then = resident_then or resident()
        seconds, each = perf_counter() - start, (used(server) - before) / last
        rows.append(
            (
                f"{last:,}",
                f"{last / seconds:,.0f}",
                f"{each:,.0f}",
                f"{resident() / 1e6:,.1f}",
                f"{connections(server)}",
                "",
            )
        )
    table.columns(
        ("keys", "keys a second", "bytes of Redis a key", "this process, MB", "connections", ""),
        rows,
    )
    script = (stats(server) - done).microseconds / keys
    table.say(
        f"script time {script:.0f} us a key; Redis keys: {server.dbsize() / (keys + 1):.2f} for "
        "each limiter"
    )
    growth = resident() - resident_then
    found.check(
        growth <= max(NOISE, LEAK * keys),
        f"this process grew by {growth:,} bytes after the first tenth of {keys:,} keys",
    )
    found.check(
        connections(server) <= CONNECTIONS,
        f"{connections(server)} connections, where {CONNECTIONS} are allowed",
    )
    say_ttls(server, found)


async def entered(limiter: Limiter) -> None:
    async with limiter:
        pass


async def at_once(
    work: Callable[[Limiter], Coroutine[Any, Any, Any]], limiters: Iterable[Limiter]
) -> list[Any]:
    """The work for all of them, so many in one turn of the loop; only its results are kept."""
    results: list[Any] = []
    for batch in batches(iter(limiters)):
        results += await asyncio.gather(*map(work, batch))
    return [result for result in results if result is not None]


def batches(limiters: Iterator[Limiter]) -> Iterator[list[Limiter]]:
    while batch := [limiter for _, limiter in zip(range(AT_ONCE), limiters, strict=False)]:
        yield batch


def say_ttls(server: Redis, found: Findings) -> None:
    """Every key has one, and it is shown how long the longest lives."""
    shortest, longest, without = None, 0, 0
    for left in ttls(server):
        without += left < 0
        longest = max(longest, left)
        shortest = left if shortest is None else min(shortest, left)
    table.say(
        f"TTLs, by SCAN over all keys: {(shortest or 0) / 1000:,.0f} to {longest / 1000:,.0f} s; "
        f"without one: {without}"
    )
    found.check(not without, f"{without} keys have no TTL")


def ttls(server: Redis) -> Iterator[int]:
    """Milliseconds that each key has left."""
    cursor = -1
    while cursor:
        cursor, keys = server.scan(max(0, cursor), count=AT_ONCE)
        pipeline = server.pipeline(transaction=False)
        for key in keys:
            pipeline.pttl(key)
        yield from (
            left for left in pipeline.execute() if left != -2
        )  # -2: it ended between the two


# Live keys ----------------------------------------------------------------------------------------


async def live_keys(url: str, server: Redis, live: int, found: Findings) -> None:
    """A permit of each key is held, then one waits for it, then all go home."""
    from headgate import Concurrency, Limiter

    server.flushall()
    limiter = Limiter("many", Concurrency(1, lease=LEASE), store=url)
    await entered(limiter["first"])
    limiters = [limiter[f"tenant-{number}"] for number in range(live)]
    empty, own = used(server), resident()
    table.say(f"\n{live:,} keys with Concurrency(1)")
    rows = []

    def row(title: str) -> None:
        figures = (f"{(used(server) - empty) / live:,.0f}", f"{(resident() - own) / live:,.0f}")
        rows.append((title, *figures, f"{connections(server)}", ""))

    permits: list[Permit] = await at_once(permit_of, limiters)
    row("one permit held")
    waiting = [asyncio.create_task(permit_of(each)) for each in limiters]
    await at_once(status_of, limiters)  # they are asked behind the waiters
    row("one permit held, one waiter")
    found.check(
        connections(server) <= CONNECTIONS,
        f"{connections(server)} connections, where {CONNECTIONS} are allowed",
    )
    await go_home(waiting, permits)
    permits.clear()
    row("idle again")
    table.columns(
        ("of each key", "bytes of Redis", "bytes of this process", "connections", ""), rows
    )
    say_ttls(server, found)


async def permit_of(limiter: Limiter) -> Permit:
    return await limiter.acquire()


async def status_of(limiter: Limiter) -> None:
    await limiter.astatus()


async def go_home(waiting: Sequence[asyncio.Task[Permit]], permits: Sequence[Permit]) -> None:
    for task in waiting:
        task.cancel()
    for task in waiting:
        with suppress(asyncio.CancelledError):
            await task
    await asyncio.gather(*(permit.arelease() for permit in permits))


# Idle again ---------------------------------------------------------------------------------------


async def idle_again(url: str, server: Redis, keys: int, found: Findings) -> None:
    """Keys that were held or waited for, measured at once, and when their sets have expired."""
    from headgate import Concurrency, Limiter, Rate

    rate, permits = Rate(100, per=REMEMBERED), Concurrency(1)
    rows = []
    for name, title, limits, work in (
        ("entered", "entered: a Rate", (rate,), entered),
        ("held", "held: a Concurrency and a Rate", (permits, rate), held),
        ("waited", "waited for: a Concurrency", (permits,), waited_for),
        ("another", "waited for by another process: the same", (permits,), None),
    ):
        server.flushall()
        limiter = Limiter(name, *limits, store=url)
        await entered(limiter["first"])
        before, limiters = used(server), [limiter[f"tenant-{number}"] for number in range(keys)]
        if work is not None:
            await at_once(work, limiters)
        else:
            await waited_for_by_another(url, limiters)
        now, count = (used(server) - before) / keys, server.dbsize() / (keys + 1)
        end_sets(server)
        later = (used(server) - before) / keys
        rows.append((title, f"{now:,.0f}", f"{count:.2f}", f"{later:,.0f}", ""))
        if work is not None:  # with two sessions, a key has a record more, and its set
            found.check(now <= SMALL, f"{title}: {now:,.0f} bytes for a key that is idle again")
            found.check(
                round(count, 2) <= 1, f"{title}: {count:.2f} keys of Redis for one that is idle"
            )
    table.say(f"\n{keys:,} idle keys")
    table.columns(("each was", "bytes of Redis", "Redis keys", "when sets have ended", ""), rows)


async def held(limiter: Limiter) -> None:
    """A block's end does not wait for the release."""
    await (await limiter.acquire()).arelease()


async def waited_for(limiter: Limiter) -> None:
    permit = await limiter.acquire()
    waiting = asyncio.create_task(limiter.acquire())
    await limiter.astatus()  # it is asked behind the waiter
    await permit.arelease()
    await (await waiting).arelease()


async def waited_for_by_another(url: str, limiters: Sequence[Limiter]) -> None:
    permits: list[Permit] = await at_once(permit_of, limiters)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=wait_for_all, args=(url, len(limiters), theirs), daemon=True
    )
    process.start()
    await asyncio.to_thread(ours.recv)
    await asyncio.gather(*(permit.arelease() for permit in permits))
    await asyncio.to_thread(process.join)


def wait_for_all(url: str, keys: int, parent: Connection) -> None:
    asyncio.run(all_waited(url, keys, parent))


async def all_waited(url: str, keys: int, parent: Connection) -> None:
    from headgate import Limiter

    limiter = Limiter.attach("another", store=url)
    limiters = [limiter[f"tenant-{number}"] for number in range(keys)]
    waiting = [asyncio.create_task(entered(each)) for each in limiters]
    await at_once(status_of, limiters)  # they are asked behind the waiters
    parent.send("all wait")
    await asyncio.gather(*waiting)


def end_sets(server: Redis) -> None:
    """End the sets now, as their TTL would within 100 s."""
    pipeline = server.pipeline(transaction=False)
    for key in server.scan_iter("headgate:*:who", count=AT_ONCE):
        pipeline.pexpire(key, 0)
    pipeline.execute()


# Expired keys -------------------------------------------------------------------------------------


def gone_keys(url: str, server: Redis, brief: int, found: Findings) -> None:
    """With constants as short as those of the tests of faults, in a process of its own, whose
    script is another one.
    """
    server.flushall()
    process = multiprocessing.get_context("spawn").Process(
        target=leave_keys, args=(url, brief), daemon=True
    )
    process.start()
    process.join()
    if process.exitcode:
        found.check(False, f"the process that leaves keys behind ended with {process.exitcode}")
        return
    left = list(ttls(server))
    longest = max(left, default=0) / 1000
    table.say(
        f"\n{brief:,} keys with every kind of limit, entered and left, with shortened constants: "
        f"{len(left):,} Redis keys"
    )
    start = perf_counter()
    while (remaining := server.dbsize()) and perf_counter() - start < longest + BEYOND:
        sleep(0.05)
    table.say(
        f"the longest TTL is {longest:.1f} s; after {perf_counter() - start:.1f} s {remaining:,} "
        "Redis keys are left"
    )
    found.check(bool(left), "no key was there to begin with")
    found.check(not remaining, f"{remaining:,} keys are left after their TTL")


def leave_keys(url: str, brief: int) -> None:
    hurry()
    asyncio.run(left_behind(url, brief))


def hurry() -> None:
    """The constants of tests/faults/haste.py, and the time that the script adds to a TTL."""
    from headgate.stores.redis.protocol import script
    from tests.faults import haste

    sources = script.sources()
    assert SPARE in sources["expiry"], "expiry.lua says it in other words now"
    shorter = {**sources, "expiry": sources["expiry"].replace(SPARE, "SLACK = 1000000")}
    script.sources = lambda: shorter
    haste.hurry()


async def left_behind(url: str, brief: int) -> None:
    from headgate import Concurrency, Limiter, Rate, Window

    limits = (Concurrency(1, lease=1.0), Rate(100, per=1), Window(100, per=1))
    limiter = Limiter("brief", *limits, store=url)
    await at_once(entered, (limiter[f"tenant-{number}"] for number in range(brief)))


# Held memory --------------------------------------------------------------------------------------


def used(server: Redis) -> int:
    """Bytes, with all that a key costs in tables and expiries."""
    return int(server.info("memory")["used_memory"])


def resident() -> int:
    """Bytes of this process that are in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def connections(server: Redis) -> int:
    """All but the one that asks."""
    return len(server.client_list()) - 1


if __name__ == "__main__":
    sys.exit(main())
