"""Whether the script takes longer when many wait, or when many hold: each kind of call at several
sizes.

The waiters and holders are tasks of this process, in headgate's own sessions. A cycle makes one
call of each kind, one after another, and leaves as many as there were. The time of a call is read
in the server's SLOWLOG. It has the same microseconds that INFO commandstats adds up, but call by
call. So other traffic does not disturb the median of a kind.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from statistics import median
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks import table
from headgate.stores.redis.protocol.operations import Renew

if TYPE_CHECKING:
    from headgate import Limiter, Permit

LEASE = 3_600.0  # nothing is renewed but by a cycle
PAUSE = 0.002  # seconds after a call whose end brings no reply
KEPT = 100_000  # entries of the log
# Microseconds: calls take longer. The commands inside of them do not, so their logging is not
# counted.
LOGGED = 10
STEADY = 2.0  # times as long at most, from the smallest to the largest: then it does not grow
HEADER = (
    6  # words between the keys and the requests: limits, session, call, declares, waits, horizon
)
VERBS = {
    "acquire": "an acquire that joins the queue",
    "release": "a release that hands over",
    "": "a heartbeat",
}
VERBS |= {
    "renew": "a renewal",
    "cancel": "a cancel in the middle",
    "status": "a status",
}
AT_ONCE = "an acquire granted at once"
FREE = "a release, and nobody waits"
Times = dict[str, list[int]]


class Crowd:
    """A limiter, the holders of its permits, and its waiters: all in order."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.held: list[Permit] = []
        self.waiting: list[asyncio.Task[Permit]] = []

    async def hold(self, count: int) -> None:
        self.held += await asyncio.gather(*(self._permit() for _ in range(count)))

    async def queue(self, count: int) -> None:
        """So many more wait, and the server knows."""
        self.waiting += [asyncio.create_task(self._permit()) for _ in range(count)]
        while (await self.limiter.astatus()).waiting < len(self.waiting):
            pass

    async def join(self) -> None:
        self.waiting.append(asyncio.create_task(self._permit()))
        await asyncio.sleep(PAUSE)

    async def hand_over(self) -> None:
        """The oldest holder releases; in the same call the head of the queue gets its permit."""
        await self.held.pop(0).arelease()
        self.held.append(await self.waiting.pop(0))

    async def cancel_in_the_middle(self) -> None:
        task = self.waiting.pop(len(self.waiting) // 2)
        task.cancel()
        await asyncio.sleep(PAUSE)

    async def heartbeat(self) -> None:
        self._session.poll()
        await asyncio.sleep(PAUSE)

    async def renew(self) -> None:
        permit = self.held[len(self.held) // 2]
        await self._session.ask(Renew(permit, round(LEASE * 1_000_000)))

    async def pass_through(self) -> None:
        await (await self._permit()).arelease()

    async def end(self) -> None:
        """All callers leave."""
        for task in self.waiting:
            task.cancel()
        for permit in self.held:
            permit.release()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*self.waiting, return_exceptions=True)
        await self.limiter.astatus()

    @property
    def _session(self) -> Any:
        """The session renews the permits and shows that the waiters live: by itself it does so
        every few seconds only.
        """
        return self.held[0].home

    async def _permit(self) -> Permit:
        return await self.limiter.acquire()


async def cycle(crowd: Crowd) -> None:
    """As many as before, one call of each kind later."""
    await crowd.join()
    await crowd.hand_over()
    await crowd.join()
    await crowd.cancel_in_the_middle()
    await crowd.heartbeat()
    await crowd.renew()
    await crowd.limiter.astatus()


async def with_waiters(url: str, size: int, cycles: int, server: Redis) -> Times:
    """One holds, `size` wait."""
    from headgate import Concurrency, Limiter

    crowd = Crowd(Limiter(f"waiters {size}", Concurrency(1, lease=LEASE), store=url))
    await crowd.hold(1)
    await crowd.queue(size)
    return await timed(crowd, cycles, server)


async def with_holders(url: str, size: int, cycles: int, server: Redis) -> Times:
    """`size` hold, and at first there is room for one more; then one waits."""
    from headgate import Concurrency, Limiter

    crowd = Crowd(Limiter(f"holders {size}", Concurrency(size + 1, lease=LEASE), store=url))
    await crowd.hold(size)
    await crowd.pass_through()
    server.slowlog_reset()
    for _ in range(cycles):
        await crowd.pass_through()
    times = kinds(server)
    times[AT_ONCE], times[FREE] = times.pop(VERBS["acquire"]), times.pop(VERBS["release"])
    await crowd.hold(1)
    await crowd.queue(1)
    return {**await timed(crowd, cycles, server), **times}


async def timed(crowd: Crowd, cycles: int, server: Redis) -> Times:
    await cycle(crowd)
    server.slowlog_reset()
    for _ in range(cycles):
        await cycle(crowd)
    times = kinds(server)
    await crowd.end()
    return times


def kinds(server: Redis) -> Times:
    """Microseconds of each call of the script, by its operation."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for entry in server.slowlog_get(KEPT):
        words = entry["command"].split(b" ")
        if words[0] in (b"FCALL", b"EVALSHA"):
            found[VERBS[asked(words)]].append(entry["duration"])
    return dict(found)


def asked(words: Sequence[bytes]) -> str:
    """The first request of a call: FCALL name numkeys key... limits session call declares waits
    horizon request...
    """
    text = b" ".join(words[3 + int(words[2]) :]).decode()
    return next((verb for verb in VERBS if verb and f" {verb} " in f" {text} "), "")


async def measured(url: str, server: Redis, sizes: Sequence[int], cycles: int) -> bool:
    """Show it; True when nothing grows."""
    server.config_set("slowlog-max-len", KEPT)
    server.config_set("slowlog-log-slower-than", LOGGED)
    table.say(
        f"\nmicroseconds in the script for one call (SLOWLOG), medians of {cycles} of each kind"
    )
    steady = True
    for title, made in (
        ("one holds, and so many wait", with_waiters),
        ("so many hold, and one waits", with_holders),
    ):
        by_size = [await made(url, size, cycles, server) for size in sizes]
        steady &= show(title, sizes, by_size)
    return steady


def show(title: str, sizes: Sequence[int], by_size: Sequence[Times]) -> bool:
    ratios = {kind: median(by_size[-1][kind]) / median(by_size[0][kind]) for kind in by_size[0]}
    rows = []
    for kind, ratio in ratios.items():
        figures = (table.figure(median(times[kind])) for times in by_size)
        rows.append((kind, *figures, f"x{ratio:.2f}", "" if ratio <= STEADY else "GROWS"))
    table.columns((title, *(f"{size:,}" for size in sizes), "largest / smallest", ""), rows)
    table.say("")
    return all(ratio <= STEADY for ratio in ratios.values())
