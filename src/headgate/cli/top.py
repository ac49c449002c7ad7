"""`headgate top`: the names with the longest queues and the fullest limits, live.

One snapshot needs only the standard library. The live table needs the package rich.
"""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, NamedTuple

from headgate.cli.exits import USAGE, Failure
from headgate.cli.output import emit, facts_of, shown
from headgate.cli.store import redis_store_of
from headgate.errors import UnknownLimiterError
from headgate.keys import encoded
from headgate.limiter import Limiter
from headgate.missing_extra import extra
from headgate.stores.status import Status
from headgate.stores.status_text import Use, bar, duration

if TYPE_CHECKING:
    from rich.table import Table

    from headgate.interfaces import Lists

MOST = 500  # names that are asked for their status in each snapshot
EVERY = 1.0  # seconds between two snapshots
FAST = 32  # names that are asked at once


class Snapshot(NamedTuple):
    names: int  # in use
    statuses: list[Status]  # the longest queue first, then the fullest limit
    oldest: dict[str, float | None]  # by name, for how many seconds its first waiter waits


async def top(args: Namespace) -> None:
    if args.json:
        snapshot = await look(args)
        limiters = [
            {**facts_of(status), "oldest_wait": snapshot.oldest.get(status.name)}
            for status in snapshot.statuses
        ]
        emit(args, "top", {"names": snapshot.names, "limiters": limiters}, "")
    elif sys.stdout.isatty():
        await show_live(args)
    else:
        raise Failure(USAGE, "top shows a live table on a terminal: elsewhere, give --json.")


async def look(args: Namespace) -> Snapshot:
    """Names with long queues are asked first: there may be more names than MOST."""
    lists = redis_store_of(args).lists
    names = await lists.anames()
    longest = [queue.name for queue in await lists.alongest()] if len(names) > MOST else []
    some = list(dict.fromkeys([*longest, *names]))[:MOST]
    gate = asyncio.Semaphore(FAST)

    async def status_of(name: str) -> Status | None:
        async with gate:
            try:
                return await Limiter.attach(name, store=args.store).astatus()
            except UnknownLimiterError:
                return None  # forgotten meanwhile

    found = [status for status in await asyncio.gather(*map(status_of, some)) if status]
    return Snapshot(len(names), sorted(found, key=urgency), await oldest_waits(lists, found))


async def oldest_waits(lists: Lists, found: list[Status]) -> dict[str, float | None]:
    names = [status.name for status in found if status.waiting]
    heads = await lists.aheads([encoded(name) for name in names])
    return {name: head.waited for name, head in zip(names, heads, strict=True) if head}


def urgency(status: Status) -> tuple[float, float, str]:
    fullest = max((limit.used / limit.capacity for limit in status.limits), default=0.0)
    return -status.waiting, -fullest, status.name


async def show_live(args: Namespace) -> None:
    with extra("cli"):
        from rich.live import Live
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            snapshot = await look(args)
            live.update(table(snapshot, live.console.height), refresh=True)
            await asyncio.sleep(EVERY)


def table(snapshot: Snapshot, height: int) -> Table:
    """As many rows as the terminal has room for. A name has a line for each limit."""
    from rich.table import Table
    from rich.text import Text

    made = Table(title=f"{snapshot.names:,} names; Ctrl-C ends", expand=True)
    for column in ("name", "waiting", "oldest wait", "limits", "a new caller"):
        made.add_column(column)
    room = height - 6
    for status in snapshot.statuses:
        room -= max(1, len(status.limits))
        if room < 0:
            break
        name, waiting = shown(status.name), f"{status.waiting:,}"
        oldest = snapshot.oldest.get(status.name)
        longest = "" if oldest is None else duration(oldest)
        # A Text has no markup that a name could contain.
        made.add_row(*map(Text, (name, waiting, longest, limits_text(status), turn(status))))
    return made


def limits_text(status: Status) -> str:
    uses = [Use(each.kind, each.unit, each.used, each.capacity) for each in status.limits]
    return "\n".join(f"[{bar(use)}] {use.used:,} of {use.capacity:,} {use.unit}" for use in uses)


def turn(status: Status) -> str:
    if status.paused:
        return f"paused for {duration(status.paused)}"
    if status.retry_after is None:
        return "waits for a release"
    return f"in {duration(status.retry_after)}" if status.retry_after else "at once"
