"""`python -m benchmarks`: measure headgate and its peers side by side and say on how many rows it
is ahead.

Exit status: 0 ahead of every peer on every row they share, 1 not, 2 nothing could be measured.
"""

from __future__ import annotations

import argparse
import signal
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch

from benchmarks import connections, goals, handoff, machine, server, table
from benchmarks.goals import Line
from benchmarks.rows import all_rows
from benchmarks.stage import Role, Row
from benchmarks.timing import measure

DESCRIPTION = (
    "headgate and its peers on the same work, side by side in one run; at the end, the goals and "
    "which are reached"
)
OTHER_WORKS: dict[str, Callable[[str, str, bool], Line]] = {
    connections.KEY: connections.measured,
    handoff.KEY: handoff.measured,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    rows, others = chosen(options.rows), [key for key in OTHER_WORKS if fnmatch(key, options.rows)]
    if not rows and not others:
        keys = " ".join([*(row.key for row in all_rows()), *OTHER_WORKS])
        table.say(f"no row matches {options.rows!r}; there are: {keys}")
        return 2
    mark = f"bench{uuid.uuid4().hex[:8]}"
    # A kill must not leave a redis-server behind: it becomes an exit, which every `finally` sees.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        with server_for(options.redis, mark) as url:
            table.say(machine.facts(server.server_version(url)))
            return run(rows, others, url, mark, options.quick)
    except server.ServerMissingError as error:
        table.say(str(error))
        return 2


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=DESCRIPTION)
    add = parser.add_argument
    add(
        "--rows",
        default="*",
        metavar="PATTERN",
        help="only rows whose key matches, as in 'bucket-*'",
    )
    add("--quick", action="store_true", help="fewer rounds and shorter loops: a look, not a figure")
    add("--redis", metavar="URL", help="measure on this server; otherwise a private one is started")
    return parser.parse_args(arguments)


def chosen(pattern: str) -> list[Row]:
    return [row for row in all_rows() if fnmatch(row.key, pattern)]


@contextmanager
def server_for(url: str | None, mark: str) -> Iterator[str]:
    """The user's server, left without our keys; or one of our own, left stopped."""
    if url is None:
        with server.private_server() as private:
            yield private
        return
    server.server_version(url)  # a server that does not answer has nothing to be swept
    try:
        yield url
    finally:
        server.sweep(url, mark)


def run(rows: Sequence[Row], others: Sequence[str], url: str, mark: str, quick: bool) -> int:
    table.say(f"{machine.versions()}\n")
    outcomes = []
    for number, row in enumerate(rows):
        outcome = measure(row, url, f"{mark}r{number}", quick)
        table.show(outcome)
        outcomes.append(outcome)
    lines = [OTHER_WORKS[key](url, mark, quick) for key in others]
    goals.show([*goals.lines_of(outcomes), *lines])
    with_peers = [
        outcome
        for outcome in outcomes
        if any(each.role is Role.PEER for each in outcome.row.contestants)
    ]
    return 0 if not with_peers or table.verdict(with_peers) else 1


if __name__ == "__main__":
    sys.exit(main())
