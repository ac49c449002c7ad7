"""The verbs that look at limiters: show, ls and watch. They declare and change nothing."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any

from headgate.cli.output import as_json, emit, facts_of, shown
from headgate.cli.store import attach, attach_key, redis_store_of
from headgate.internals import queue_of, status_in_use
from headgate.keys import encoded
from headgate.listing import akeys_of
from headgate.validation import duration

if TYPE_CHECKING:
    from headgate.stores.members import Holder, Members, Waiter

MOST = 20  # holders, and waiters, that the text shows; JSON has more
EVERY = 1.0  # seconds between two lines of `watch`


async def show(args: Namespace) -> None:
    status = await status_in_use(attach_key(args))
    members = await redis_store_of(args).lists.amembers(encoded(args.name, args.key))
    facts = {
        **facts_of(status),
        "holding": members.holding,
        "holders": [holder_facts(each) for each in members.holders],
        "waiters": [waiter_facts(each) for each in members.waiters],
    }
    emit(args, "show", facts, "\n".join([str(status), *member_lines(members)]))


def holder_facts(holder: Holder) -> dict[str, Any]:
    return {**process_facts(holder), "held": holder.held, "lease_left": holder.lease_left}


def waiter_facts(waiter: Waiter) -> dict[str, Any]:
    facts = {"position": waiter.position, "waited": waiter.waited, "alive_for": waiter.alive_for}
    return {**process_facts(waiter), **facts}


def process_facts(member: Holder | Waiter) -> dict[str, Any]:
    label = member.label
    process = None if label is None else label._asdict()
    return {"session": member.session_id, "process": process, "units": member.units}


def member_lines(members: Members) -> list[str]:
    holders = [
        f"{process_text(each)}{time_text(each.held)}, {lease_text(each.lease_left)}"
        for each in members.holders[:MOST]
    ]
    waiters = [
        f"{process_text(each)}{time_text(each.waited)}, {life_text(each.alive_for)}"
        for each in members.waiters[:MOST]
    ]
    return [
        *section("held by", holders, members.holding),
        *section("waiting, in order", waiters, members.waiting),
    ]


def section(title: str, lines: Sequence[str], total: int) -> Iterable[str]:
    if not lines:
        return []
    rest = total - len(lines)
    more = [f"    and {rest:,} more"] if rest else []
    return [f"  {title}:", *(f"    {line}" for line in lines), *more]


def process_text(member: Holder | Waiter) -> str:
    label = member.label
    if label is None:  # a process writes its label some seconds after its first acquire
        process = f"session {shown(member.session_id[:12])}"
    else:
        process = f"{shown(label.program)}, process {label.pid} of {shown(label.host)}"
    cost = " and ".join(f"{number:,} {unit}" for unit, number in member.units.items())
    return f"{process}: {cost}"


def time_text(seconds: float | None) -> str:
    """For how long it holds or waits. Processes with an older version of headgate do not say."""
    return "" if seconds is None else f" for {duration(seconds)}"


def lease_text(left: float | None) -> str:
    if left is None:
        return "it has no lease"
    return f"the lease ends in {duration(left)}" if left > 0 else "the lease has ended"


def life_text(alive_for: float | None) -> str:
    return "alive" if alive_for is not None else "its process is silent"


async def ls(args: Namespace) -> None:
    if args.name is None:
        names = await redis_store_of(args).lists.anames()
    else:
        limiter = attach(args)
        names = await akeys_of(limiter)
        if not names:
            await queue_of(limiter).check_in_use()  # raises for an unknown name
    text = "\n".join(map(in_a_line, names))
    emit(args, "ls", {"name": args.name, "names": names}, text, end="\n" if names else "")


def in_a_line(name: str) -> str:
    """A plain name as it is, for scripts; any other one as a literal of Python."""
    plain = name.isascii() and name.isprintable() and " " not in name and name[0] not in "'\""
    return name if plain else ascii(name)


async def watch(args: Namespace) -> None:
    limiter, loop = attach(args), asyncio.get_running_loop()
    start = loop.time()
    for number in count(1):
        status = await status_in_use(limiter)
        facts = {"time": datetime.now(UTC).isoformat(), **facts_of(status)}
        print(as_json("watch", facts), flush=True)
        await asyncio.sleep(max(0.0, start + number * EVERY - loop.time()))
