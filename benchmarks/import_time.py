"""`python -m benchmarks.import_time`: the time of `import headgate` beside that of asyncio.

Each round is an interpreter of its own, which imports first the one and then the other. The figure
is the median of the rounds. Exit status: 1 when it is over the goal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from statistics import median

from benchmarks.table import say

GOAL = 1 / 3
ROUNDS = 40
TIMES = (
    "from time import perf_counter; start = perf_counter(); import asyncio; "
    "between = perf_counter(); import headgate; end = perf_counter(); "
    "print(between - start, end - between)"
)


def measured() -> tuple[float, float]:
    """The seconds of both imports."""
    command = [sys.executable, "-c", TIMES]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}  # else each round compiles anew
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    first, second = map(float, done.stdout.split())
    return first, second


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.import_time")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"{ROUNDS} unless told")
    measured()  # writes what both have compiled
    rounds = [measured() for _ in range(parser.parse_args(arguments).rounds)]
    ratio = median(ours / peer for peer, ours in rounds)
    say(
        f"import asyncio {median(peer for peer, _ in rounds) * 1000:.0f} ms; import headgate adds "
        f"{median(ours for _, ours in rounds) * 1000:.0f} ms, x{ratio:.2f} (goal x{GOAL:.2f})"
    )
    return int(ratio > GOAL)


if __name__ == "__main__":
    raise SystemExit(main())
