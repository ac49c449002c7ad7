"""The story: start the strict server, call it without headgate, call it with headgate, compare,
judge.

Exit code 0: with headgate not one 429 and at most 5% over the ideal time; 1: not so; 2: it could
not be run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

import aiohttp
from rich.console import Console

from demo.calls import FAILED, GO, READY, RULES, SLACK, Order, entrance, make_calls
from demo.processes import child, hear, say
from demo.rules import ideal_time
from demo.show import Outcome, Tally, table, tally
from headgate import HeadgateError

TOLERANCE = 0.05
# Fewer calls are over before 5% of their time is more than noise; more would run out of open files.
FEWEST, MOST = 100, 500
CANNOT_RUN, INTERRUPTED = 2, 130


class DemoError(Exception):
    """The demo could not be run to its end."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    try:
        return asyncio.run(tell(options))
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    except (DemoError, HeadgateError, aiohttp.ClientError) as error:
        print(f"The demo could not be run: {error}", file=sys.stderr)
        return CANNOT_RUN


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./run demo", description="Calls a strict server without headgate and with it."
    )
    parser.add_argument(
        "--calls", type=int, default=200, help=f"calls in each run, {FEWEST} to {MOST} (200)"
    )
    parser.add_argument(
        "--redis",
        metavar="URL",
        help="spread the calls over processes that share the limit on this Redis",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=4,
        help="with --redis: how many processes call, 1 to 16 (4)",
    )
    options = parser.parse_args(arguments)
    if not FEWEST <= options.calls <= MOST:
        parser.error(f"--calls must be from {FEWEST} to {MOST}")
    if options.redis == "":
        parser.error("--redis needs a URL, such as redis://localhost:6379")
    if not 1 <= options.processes <= 16:
        parser.error("--processes must be from 1 to 16")
    return options


async def tell(options: argparse.Namespace) -> int:
    console = Console(highlight=False)
    # Fresh: an earlier run on the same Redis must not slow this one down.
    name = f"demo-{uuid.uuid4().hex[:8]}"
    if options.redis:
        await check_store(name, options.redis)
    async with child("demo.server") as server:
        url = await address(server)
        introduce(console, server.pid)
        order = Order(url, options.calls, store=options.redis)
        explain_without(console, options)
        without = await run(console, "without headgate", order, options)
        explain_with(console, options)
        with_headgate = await run(console, "with headgate", replace(order, name=name), options)
    console.print()
    console.print(table([without, with_headgate]))
    return judge(console, with_headgate)


async def check_store(name: str, url: str) -> None:
    """A Redis that is not there, or no URL at all, should be known before the show begins."""
    try:
        async with entrance(name, url):
            pass
    except ValueError as error:
        raise DemoError(str(error)) from error


async def address(server: Process) -> str:
    port = await hear(server)
    if not port:
        raise DemoError("its server did not start")
    return f"http://127.0.0.1:{port}/"


def introduce(console: Console, pid: int) -> None:
    console.print(
        f"\nA server (process {pid}) allows [bold]{RULES.amount} calls in any {RULES.per:g} s[/] "
        f"and [bold]{RULES.at_once} at once[/].\nBeyond either it answers 429; a call that is let "
        f"in takes {RULES.call_time * 1000:g} ms.\n"
    )


def explain_without(console: Console, options: argparse.Namespace) -> None:
    console.print(
        f"[bold]1. Without headgate[/]: {options.calls} calls, all at the same "
        f"time{_spread(options)}."
    )


def explain_with(console: Console, options: argparse.Namespace) -> None:
    limits = (
        f"Window({RULES.amount}, per={RULES.per:g}, slack={SLACK}), Concurrency({RULES.at_once})"
    )
    store = ", store=URL" if options.redis else ""
    console.print(
        f"\n[bold]2. With headgate[/]: the same calls{_spread(options)}, but each waits its turn "
        f"at\n   Limiter(name, {limits}{store})."
    )


def _spread(options: argparse.Namespace) -> str:
    return f", from {options.processes} processes" if options.redis else ""


async def run(console: Console, label: str, order: Order, options: argparse.Namespace) -> Outcome:
    async with aiohttp.ClientSession(order.url, raise_for_status=True) as session:
        await session.post("/reset")
        with tally(console, order.calls) as counts:
            if options.redis:
                await call_from_processes(order, options.processes, counts)
            else:
                await call_from_here(order, counts)
        async with session.get("/stats") as response:
            stats = await response.json()
    if stats["ok"] != counts.ok:
        raise DemoError(f"the server let in {stats['ok']} calls, but {counts.ok} came back as such")
    ideal = ideal_time(order.calls, RULES)
    return Outcome(label, stats["ok"], stats["rate"], stats["concurrency"], counts.seconds, ideal)


async def call_from_here(order: Order, counts: Tally) -> None:
    async with entrance(order.name, order.store) as limiter:
        counts.begin()
        await make_calls(order, limiter, counts.reply)


async def call_from_processes(order: Order, processes: int, counts: Tally) -> None:
    async with AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(child("demo.calls")) for _ in range(processes)]
        for number, worker in enumerate(workers):
            share = len(range(number, order.calls, processes))
            await say(worker, replace(order, calls=share).to_line())
        await asyncio.gather(*(ready(worker) for worker in workers))
        counts.begin()
        for worker in workers:
            await say(worker, GO)
        await asyncio.gather(*(listen(worker, counts) for worker in workers))


async def ready(worker: Process) -> None:
    if (line := await hear(worker)) != READY:
        raise DemoError(
            line.removeprefix(FAILED).strip() or f"process {worker.pid} ended before it was ready"
        )


async def listen(worker: Process, counts: Tally) -> None:
    while line := await hear(worker):
        if line.startswith(FAILED):
            raise DemoError(line.removeprefix(FAILED).strip())
        counts.reply(int(line))
    if await worker.wait():
        raise DemoError(
            f"process {worker.pid}, one of those that call, ended with code {worker.returncode}"
        )


def judge(console: Console, outcome: Outcome) -> int:
    """The promise of the demo, in a sentence."""
    reasons = f"{outcome.over_rate} over the rate, {outcome.over_concurrency} over the concurrency"
    spent = (
        f"{outcome.seconds:.2f} s: {outcome.over_ideal:.1%} over the ideal {outcome.ideal:.2f} s"
    )
    if outcome.refused:
        console.print(
            f"[bold red]Not as promised[/]: {outcome.refused} calls were refused with headgate "
            f"({reasons})."
        )
        return 1
    if outcome.over_ideal > TOLERANCE:
        console.print(
            f"[bold red]Not as promised[/]: no 429, but {spent}, and the promise is "
            f"{TOLERANCE:.0%}."
        )
        return 1
    console.print(f"[bold green]As promised[/]: not one 429, in {spent}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
