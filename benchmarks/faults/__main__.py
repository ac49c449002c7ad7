"""`python -m benchmarks.faults`: the same faults done to headgate and its peers, on a redis-server
of our own.

Prints a table in Markdown, as docs/guarantees.md has it (three minutes). Exit status: 0 when
headgate lost nothing, 1 when it did, 2 when there is no server.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import warnings
from collections.abc import Sequence

from benchmarks import machine, tool
from benchmarks.faults.works import WORKS, entrants, outcome
from benchmarks.table import say

SOUND = (  # the result that headgate must have for each
    "5 of 5; 5 a lease later",
    "5 of 5",
    "granted, charged 1",
    "granted; 5 of 5 left",
    "40 of 40 through, 0 overtaken",
    "40 of 40 through, 0 overtaken",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument(
        "--entrant", default="", metavar="WORD", help="only those whose names contain it"
    )
    asked = parser.parse_args(arguments)
    return tool.on_private_server(lambda url: told(url, asked.entrant))


def told(url: str, pattern: str) -> bool:
    say(f"{machine.versions()}\n")
    say(f"| {' | '.join(['', *WORKS])} |\n{'|---' * (len(WORKS) + 1)}|")
    sound = True
    for entrant in entrants(pattern):
        words = [asyncio.run(outcome(work, entrant, url), debug=False) for work in WORKS.values()]
        say(f"| {' | '.join([entrant.name, *words])} |")
        sound = sound and (entrant.name != "headgate" or tuple(words[: len(SOUND)]) == SOUND)
    return sound


if __name__ == "__main__":
    warnings.simplefilter("ignore", ResourceWarning)  # peers leave connections to the collector
    sys.exit(main())
