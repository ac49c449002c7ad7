"""`python -m benchmarks.floor`: the cost of a round trip with a small script, and where its time
goes.

The same EVALSHA by three clients, and headgate beside them, one call after another. Contestants
take short turns in one run; the server's own figures are read between the turns, when no clock
runs. Exit status: 0, or 2 when nothing could be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import gc
import io
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any
from urllib.parse import urlsplit

from redis import Redis

from benchmarks import shapes, table, tool
from benchmarks.peers import bare, headgate, wire
from benchmarks.peers.bare import PER_TOKEN, SCRIPT
from benchmarks.stage import PLENTY, Opening, Shape, Stage
from benchmarks.usage import SCRIPTS

CALLS, ROUNDS = 200, 50
PROGRAM_CALLS = (
    1_000  # of redis-benchmark, which is started for each turn: its start must not weigh
)
QUICK_ROUNDS = 5
HEADS = (
    "",
    "us each",
    "against the first",
    "script",
    "server, rest",
    "client, user",
    "client, kernel",
    "waiting",
    "",
)
ABOUT = """\
us each          from one call to the next, the median of the turns; the other columns are means
                 of the same turns
script           in the script, by the server's INFO commandstats
server, rest     the server's CPU besides that, its kernel's included (INFO cpu)
client, user     the client's CPU in Python and libraries (getrusage)
client, kernel   the client's CPU in system calls
waiting          what is left of the time: wires, wake-ups of a sleeping process, and whatever else
                 the machine does"""


@dataclass(frozen=True)
class Way:
    """A way to make calls: so many of them a turn, and the seconds that they took."""

    name: str
    make: Callable[[str, int], float]
    calls: int = CALLS
    whose: int = resource.RUSAGE_SELF


@dataclass
class Cost:
    """The cost of turns, microseconds each."""

    way: Way
    each: list[float] = field(default_factory=list)
    script: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    user: list[float] = field(default_factory=list)
    kernel: list[float] = field(default_factory=list)

    def parts(self) -> tuple[float, float, float, float, float]:
        """Script, the server's rest, the client's user and kernel time: means, because clocks of
        CPU tick; and the remainder.
        """
        script, server, user, kernel = (
            sum(part) / len(part) for part in (self.script, self.server, self.user, self.kernel)
        )
        rest = max(0.0, server - script)
        return (
            script,
            rest,
            user,
            kernel,
            max(0.0, sum(self.each) / len(self.each) - script - rest - user - kernel),
        )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.floor", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--quick", action="store_true", help="fewer turns: a look, not a figure")
    options = parser.parse_args(arguments)
    return tool.on_private_server(
        lambda url: measured(url, QUICK_ROUNDS if options.quick else ROUNDS)
    )


def measured(url: str, rounds: int) -> bool:
    with asyncio.Runner() as runner, ExitStack() as stack, Redis.from_url(url) as server:
        stage = Stage(url, runner, "floor")
        costs = [Cost(way) for way in ways(stage, stack)]
        for number in range(1 + rounds):
            for cost in costs[number % len(costs) :] + costs[: number % len(costs)]:
                turn(cost, server, stage.fresh_name(), counts=number > 0)
    show(costs, rounds)
    return True


def ways(stage: Stage, stack: ExitStack) -> Iterator[Way]:
    program = shutil.which("redis-benchmark")
    if program is None:
        table.say(
            "redis-benchmark is not on the PATH (Debian's package redis-tools has it): its line is "
            "left out"
        )
    else:
        yield Way(
            "redis-benchmark -c 1, EVALSHA",
            by_program(program, stage),
            PROGRAM_CALLS,
            resource.RUSAGE_CHILDREN,
        )
    shaped: tuple[tuple[str, Opening, Shape], ...] = (
        ("headgate's wire, EVALSHA", wire.evalsha, shapes.called_in_turn),
        ("redis-py, EVALSHA", bare.evalsha, shapes.called_in_turn),
        ("redis-py without asyncio, EVALSHA", bare.evalsha_sync, shapes.called_in_turn_sync),
        ("headgate, `async with`", headgate.token_bucket, shapes.entered_in_turn),
        ("headgate, `with`", headgate.token_bucket, shapes.entered_in_turn_sync),
    )
    for name, opening, shape in shaped:
        yield Way(name, by_shape(stage, stack.enter_context(opening(stage)), shape))


def by_shape(stage: Stage, maker: Any, shape: Shape) -> Callable[[str, int], float]:
    return lambda name, calls: shape(stage, maker, name, calls)


def by_program(program: str, stage: Stage) -> Callable[[str, int], float]:
    where = urlsplit(stage.redis_url)
    with Redis.from_url(stage.redis_url) as client:
        sha = client.script_load(SCRIPT.read_text())
    options = ["-h", str(where.hostname), "-p", str(where.port), "-c", "1", "--csv", "-n"]

    def play(name: str, calls: int) -> float:
        words = [
            program,
            *options,
            str(calls),
            "EVALSHA",
            sha,
            "1",
            name,
            str(PLENTY),
            str(PER_TOKEN),
        ]
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        (found,) = csv.DictReader(io.StringIO(said))
        return (
            calls * float(found["avg_latency_ms"]) / 1000
        )  # it counts the milliseconds of its start as time of its calls

    return play


def turn(cost: Cost, server: Redis, name: str, counts: bool) -> None:
    gc.collect()
    script, cpu, own = script_time(server), server_cpu(server), resource.getrusage(cost.way.whose)
    start, calls = perf_counter(), cost.way.calls
    seconds = cost.way.make(name, calls)
    whole = perf_counter() - start
    own_after, cpu_after, script_after = (
        resource.getrusage(cost.way.whose),
        server_cpu(server),
        script_time(server),
    )
    if not counts:
        return
    share = seconds / whole if cost.way.whose == resource.RUSAGE_SELF else 1.0
    cost.each.append(seconds / calls * 1e6)
    cost.script.append((script_after[1] - script[1]) / (script_after[0] - script[0]))
    cost.server.append((cpu_after - cpu) / calls * 1e6)
    cost.user.append((own_after.ru_utime - own.ru_utime) * share / calls * 1e6)
    cost.kernel.append((own_after.ru_stime - own.ru_stime) * share / calls * 1e6)


def script_time(server: Redis) -> tuple[int, int]:
    """Calls of scripts, and the microseconds in them."""
    stats = server.info("commandstats")
    found = [stats[f"cmdstat_{name}"] for name in SCRIPTS if f"cmdstat_{name}" in stats]
    return sum(each["calls"] for each in found), sum(each["usec"] for each in found)


def server_cpu(server: Redis) -> float:
    """Of its main thread, if the server reports it separately."""
    cpu = server.info("cpu")
    return sum(
        float(cpu.get(f"used_cpu_{kind}_main_thread", cpu[f"used_cpu_{kind}"]))
        for kind in ("user", "sys")
    )


def show(costs: Sequence[Cost], rounds: int) -> None:
    table.say(
        f"\none call after another, one connection; {rounds} turns each, in a rotating order; "
        "microseconds a call"
    )
    rows = []
    for cost in costs:
        ratio = median(one / first for one, first in zip(cost.each, costs[0].each, strict=True))
        against = f"x{ratio:.2f}" if cost is not costs[0] else ""
        rows.append(
            (
                cost.way.name,
                table.figure(median(cost.each)),
                against,
                *map(table.figure, cost.parts()),
                "",
            )
        )
    table.columns(HEADS, rows)
    table.say(f"\n{ABOUT}")


if __name__ == "__main__":
    sys.exit(main())
