"""`python -m benchmarks.ceiling`: how many acquires a second a fleet gets through one Redis, and
what limits them.

Processes acquire as fast as they can, each with 50 tasks, through one name and through 1,000. All
limits have plenty, so no caller waits for its turn. The same work goes through a Cluster of three
primaries. The processors of server and clients are measured with it: the busiest is the limit.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks import table, tool
from benchmarks.entrants import OURS, Entrant
from benchmarks.peers import bare, headgate, limiters, limits, self_limiters, throttled
from benchmarks.shapes import describe
from benchmarks.stage import Stage
from benchmarks.usage import stats

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PROCESSES, NAMES = (2, 4, 8), (1, 1000)
SECONDS = 2.0
TASKS = 50  # of a process
READY, DONE = 30.0, 60.0  # seconds after which a process that says nothing has failed
END = 5.0  # seconds that it may take to end
FLOOR = "bare EVALSHA by redis-py"
ENTRANTS = (
    Entrant(OURS, headgate.token_bucket),
    Entrant("limits, fixed window", limits.fixed_window),
    Entrant("limits, moving window", limits.moving_window),
    Entrant("self-limiters", self_limiters.token_bucket),
    Entrant("redis-rate-limiters", limiters.token_bucket_patient),
    Entrant("throttled-py", throttled.token_bucket_patient),
    Entrant(FLOOR, bare.evalsha),
)


class ProcessFailedError(Exception):
    """A process could not do its part; the text is its reason."""


@dataclass(frozen=True)
class Work:
    entrant: str
    url: str
    mark: str
    names: int
    seconds: float
    processes: int


@dataclass(frozen=True)
class Done:
    """`cores`: how many the clients and the server have kept busy."""

    acquires: int
    seconds: float
    clients: float
    server: float


# A process ----------------------------------------------------------------------------------------


def acquire_at_full_speed(pipe: Connection, work: Work) -> None:
    """Say that all is set up, wait for the start, and report acquires and processor seconds."""
    try:
        opening = next(each.opening for each in ENTRANTS if each.name == work.entrant)
        with asyncio.Runner() as runner, ExitStack() as stack:
            make = stack.enter_context(opening(Stage(work.url, runner, work.mark)))
            entries = [entry_of(make(f"{work.mark}n{number}")) for number in range(work.names)]
            runner.run(crowd(entries, 0.0))  # sets up everything that is set up once
            pipe.send("ready")
            pipe.recv()
            start, used = perf_counter(), process_time()
            acquires = runner.run(crowd(entries, start + work.seconds))
            pipe.send((acquires, perf_counter() - start, process_time() - used))
    except EOFError:
        pass  # another process has failed
    except Exception as error:
        pipe.send(describe(error))


def entry_of(made: Any) -> Callable[[], Awaitable[object]]:
    """Some limiters are called, and some are entered."""
    if not hasattr(made, "__aenter__"):
        called: Callable[[], Awaitable[object]] = made
        return called

    async def enter() -> None:
        async with made:
            pass

    return enter


async def crowd(entries: Sequence[Callable[[], Awaitable[object]]], end: float) -> int:
    """Acquire until the moment `end`; once through each name, if that is over."""
    done = [0] * TASKS

    async def task(number: int) -> None:
        for index in count(number, TASKS):
            await entries[index % len(entries)]()
            done[number] += 1
            if perf_counter() >= end and index + TASKS >= len(entries):
                return

    await asyncio.gather(*map(task, range(TASKS)))
    return sum(done)


# All of them --------------------------------------------------------------------------------------


def played(work: Work, servers: Sequence[Redis]) -> Done:
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for _ in range(work.processes):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=acquire_at_full_speed, args=(theirs, work), daemon=True
            )
            process.start()
            stack.callback(process.kill)  # if it has not ended by itself
            stack.callback(process.join, END)
            stack.callback(ours.close)
            theirs.close()
            pipes.append(ours)
        for pipe in pipes:
            answer(pipe, READY)
        before = [stats(server).cpu for server in servers]
        for pipe in pipes:
            pipe.send("go")
        answers = [answer(pipe, DONE) for pipe in pipes]
        spent = sum(stats(server).cpu for server in servers) - sum(before)
    seconds = max(each[1] for each in answers)
    clients = sum(each[2] for each in answers)
    return Done(sum(each[0] for each in answers), seconds, clients / seconds, spent / seconds)


def answer(pipe: Connection, patience: float) -> Any:
    if not pipe.poll(patience):
        raise ProcessFailedError(f"no answer within {patience:.0f} s")
    said = pipe.recv()
    if isinstance(said, str) and said != "ready":
        raise ProcessFailedError(said)
    return said


def cells(work: Work, servers: Sequence[Redis]) -> tuple[str, ...]:
    try:
        done = played(work, servers)
    except (ProcessFailedError, EOFError) as error:
        return work.entrant, str(work.processes), "fails", describe(error), "", ""
    each = 1e6 / done.acquires
    return (
        work.entrant,
        str(work.processes),
        f"{done.acquires / done.seconds:,.0f}",
        f"{done.server:.2f}",
        f"{done.clients:.2f}",
        f"{done.server * done.seconds * each:.0f} + {done.clients * done.seconds * each:.0f}",
    )


HEADS = (
    "",
    "processes",
    "acquires a second",
    "cores: server",
    "clients",
    "us of a core each, server + client",
)


def measured(url: str, processes: Sequence[int], seconds: float) -> bool:
    with Redis.from_url(url) as server:
        for names in NAMES:
            table.say(f"\nOne server, {names:,} name{'s' * (names > 1)}")
            works = [
                Work(each.name, url, f"{index}x{number}x{names}", names, seconds, number)
                for index, each in enumerate(ENTRANTS)
                for number in processes
            ]
            rows = [cells(work, [server]) for work in works]
            table.columns(HEADS, rows)
    return all(row[2] != "fails" for row in rows if row[0] == OURS)


def measured_cluster(processes: Sequence[int], seconds: float) -> None:
    from tests.clusters import Cluster

    cluster = Cluster()
    try:
        cluster.start()
        servers = [node.admin for node in cluster.masters()]
        for names in NAMES:
            table.say(f"\nA Cluster of {len(servers)} primaries, {names:,} name{'s' * (names > 1)}")
            works = [
                Work(OURS, cluster.user_url, f"c{number}x{names}", names, seconds, number)
                for number in processes
            ]
            table.columns(HEADS, [cells(work, servers) for work in works])
    finally:
        cluster.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.ceiling", description="the acquires of a fleet through one Redis"
    )
    add = parser.add_argument
    add("--seconds", type=float, default=SECONDS, metavar="S", help=f"of each work; {SECONDS:g}")
    add("--processes", type=int, nargs="*", default=PROCESSES, metavar="N", help="2, 4 and 8")
    add("--no-cluster", action="store_true", help="one server alone")
    options = parser.parse_args(arguments)
    table.say(f"{os.cpu_count()} cores for all; {TASKS} tasks in each process")
    status = tool.on_private_server(lambda url: measured(url, options.processes, options.seconds))
    if not options.no_cluster and status != tool.NOTHING_MEASURED:
        measured_cluster(options.processes, options.seconds)
    return status


if __name__ == "__main__":
    sys.exit(main())
