"""`headgate top`: the names with the longest queues and the fullest limits, live.

One snapshot needs only the standard library. The live table needs the package rich.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from argparse import Namespace
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headgate.cli.exits import OK, SIGNALLED, STORE_AWAY, USAGE, Failure
from headgate.cli.output import complain, emit, facts_of, shown
from headgate.cli.store import redis_store_of
from headgate.keys import encoded
from headgate.listing import LastNames
from headgate.missing_extra import extra
from headgate.stores.status import Status
from headgate.stores.status_text import Use, bar
from headgate.validation import duration

if TYPE_CHECKING:
    from rich.table import Table

    from headgate.interfaces import Lists
    from headgate.stores.redis import RedisStore

MOST = 500  # names that are asked for their status in each snapshot
EVERY = 1.0  # seconds between two snapshots
BAR = 10  # columns of a bar
FRAME = 6  # lines of the table without its rows
TIMEOUT = 2.0  # seconds for the index, and for the status of all names


class Snapshot(NamedTuple):
    names: int  # in use
    unread: int  # names that were asked for in vain
    statuses: list[Status]  # the longest queue first, then the fullest limit
    oldest: dict[str, float | None]  # by name, for how many seconds its first waiter waits


async def top(args: Namespace) -> int:
    reader = Reader(redis_store_of(args))
    if args.json:
        snapshot = await reader.read()
        if snapshot.unread:
            complain(unread_text(snapshot))
        limiters = [
            {**facts_of(status), "oldest_wait": snapshot.oldest.get(status.name)}
            for status in snapshot.statuses
        ]
        facts = {"names": snapshot.names, "unread": snapshot.unread, "limiters": limiters}
        emit(args, "top", facts, "")
    elif sys.stdout.isatty():
        return await show_live(reader)
    else:
        raise Failure(USAGE, "top shows a live table on a terminal: elsewhere, give --json.")
    return OK


class Reader:
    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._names = LastNames(store.lists.anames, TIMEOUT)

    async def read(self) -> Snapshot:
        """Names with long queues are asked for first: there may be more names than MOST.

        Raises StoreError if the index cannot be read, and Failure if no status can.
        """
        names = await self._names.read()
        longest: list[str] = []
        if len(names) > MOST:
            longest = [queue.name for queue in await self._store.lists.alongest(names)]
        some = list(dict.fromkeys([*longest, *names]))[:MOST]
        found = await self._store.astatuses([*map(encoded, some)], TIMEOUT)
        statuses = [status for status in found.values() if status is not None]
        # A name that was forgotten meanwhile has no limits.
        known = sorted((each for each in statuses if each.limits), key=urgency)
        oldest = await oldest_waits(self._store.lists, known)
        snapshot = Snapshot(len(names), len(some) - len(statuses), known, oldest)
        if names and not statuses:
            raise Failure(STORE_AWAY, unread_text(snapshot))
        return snapshot


def unread_text(snapshot: Snapshot) -> str:
    return f"{snapshot.unread:,} names could not be read: `headgate doctor` finds the fault."


async def oldest_waits(lists: Lists, statuses: list[Status]) -> dict[str, float | None]:
    names = [status.name for status in statuses if status.waiting]
    waits = await lists.aoldest_waits([encoded(name) for name in names])
    return dict(zip(names, waits, strict=True))


def urgency(status: Status) -> tuple[float, float, str]:
    fullest = max((limit.used / limit.capacity for limit in status.limits), default=0.0)
    return -status.waiting, -fullest, status.name


async def show_live(reader: Reader) -> int:
    """Show the table until SIGTERM or Ctrl-C. Both leave the terminal as it was."""
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    with extra("cli"):
        from rich.live import Live
    with Live(screen=True, auto_refresh=False) as live:
        while not ended.is_set():
            snapshot = await reader.read()
            live.update(table(snapshot, live.console.height), refresh=True)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY):
                    await ended.wait()
    return SIGNALLED + signal.SIGTERM


def table(snapshot: Snapshot, height: int) -> Table:
    """As many rows as the terminal has room for. A name has a line for each limit."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    unread = f"; {unread_text(snapshot)}" if snapshot.unread else ""
    made = Table(
        title=f"{snapshot.names:,} names; Ctrl-C ends{unread}", expand=True, box=SIMPLE_HEAD
    )
    made.add_column("name", min_width=8)
    made.add_column("waiting")
    made.add_column("oldest")
    made.add_column("limits", no_wrap=True)  # a terminal of 80 columns has room for them
    made.add_column("a new caller")
    room = height - FRAME
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
    return "\n".join(
        f"[{bar(use, BAR)}] {use.used:,} of {use.capacity:,} {use.unit}" for use in uses
    )


def turn(status: Status) -> str:
    if status.paused:
        return f"paused for {duration(status.paused)}"
    if status.retry_after is None:
        return "waits for a release"
    return f"in {duration(status.retry_after)}" if status.retry_after else "at once"
