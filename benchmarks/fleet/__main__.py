"""`python -m benchmarks.fleet`: many processes with many waiters each on one limiter, for half a
minute a work.

Exit status: 1 when more was granted than allowed, a caller was overtaken or went too early, or a
goal was not reached. 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

from benchmarks import tool
from benchmarks.fleet.plan import Grant, Plan
from benchmarks.fleet.process import play
from benchmarks.fleet.report import Report, show
from benchmarks.fleet.watch import Watch

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WORKS = ("hand-over", "rate", "both")
PATIENCE = 60.0  # seconds for a process to give its report
SOON = 0.5  # seconds from the last word before a start to the start


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    return tool.on_private_server(lambda url: played(list(plans(options)), url))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description="many processes, many waiters, one limiter"
    )
    add = parser.add_argument
    add(
        "--work",
        nargs="+",
        choices=WORKS,
        default=WORKS,
        help="which works; all of them unless told",
    )
    add("--processes", type=int, default=8)
    add(
        "--waiters",
        type=int,
        default=500,
        help="in each process; each asks again as soon as it was through",
    )
    add("--seconds", type=float, default=30.0, help="for each work")
    add(
        "--spread",
        type=float,
        default=2.0,
        help="seconds over which they arrive, all processes mixed; 0: all of a process at once",
    )
    add(
        "--capacity",
        type=int,
        default=4,
        help="permits at once, for hand-over; twice as many for both, so that the rate decides",
    )
    add(
        "--hold",
        type=float,
        default=0.005,
        help="seconds for which each permit is held, for hand-over and both",
    )
    add("--rate", type=int, default=500, help="tokens a second, for rate and both")
    add("--burst", type=int, default=50, help="the most tokens saved up")
    return parser.parse_args(arguments)


def plans(options: argparse.Namespace) -> Iterator[Plan]:
    for work in options.work:
        capacity = {"hand-over": options.capacity, "rate": 0, "both": 2 * options.capacity}[work]
        rate, burst = (0, 0) if work == "hand-over" else (options.rate, options.burst)
        fleet = (options.processes, options.waiters, options.seconds, options.spread)
        yield Plan(work, capacity, rate, burst, options.hold if capacity else 0.0, *fleet)


def played(plans: Sequence[Plan], url: str) -> bool:
    right = True
    for plan in plans:
        report = measured(plan, url)
        show(report, plan)
        right &= report.right
    return right


def measured(plan: Plan, url: str) -> Report:
    name = f"fleet-{plan.title}"
    with asyncio.Runner() as runner, ExitStack() as stack:
        watch = Watch(url, name, runner, stack)
        pipes = [
            stack.enter_context(process(plan, url, name, number))
            for number in range(plan.processes)
        ]
        for pipe in pipes:
            said(pipe)  # ready
        start = perf_counter() + SOON
        for pipe in pipes:
            pipe.send(start)
        seen = watch.look_on(start, start + plan.seconds)
        grants: list[Grant] = [grant for pipe in pipes for grant in said(pipe)]
    return Report(plan, grants, seen, start, start + plan.seconds)


@contextmanager
def process(plan: Plan, url: str, name: str, number: int) -> Iterator[Connection]:
    """Its connections have its number in their names."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    running = context.Process(
        target=play,
        args=(theirs, plan, f"{url}?client_name={name}-{number}", name, number),
        daemon=True,
    )
    running.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        running.join(PATIENCE)
        if running.is_alive():
            running.kill()
            running.join()


def said(pipe: Connection) -> Any:
    if not pipe.poll(PATIENCE):
        raise TimeoutError(f"a process of the fleet has said nothing for {PATIENCE:.0f} s")
    return pipe.recv()


if __name__ == "__main__":
    sys.exit(main())
