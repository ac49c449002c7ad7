"""How a run is shown: a table a row, as soon as it is measured, and the verdict. Neater where rich
is there.

Only words and columns live here; timing.py decides on the meaning of a figure.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from benchmarks.stage import Role
from benchmarks.timing import Outcome, Result

try:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table
except ImportError:  # plain text does as well
    RICH = False
else:
    RICH = True

HEADS = ("", "us each", "against headgate", "middle half", "")
Cells = tuple[str, ...]
# Piped output is no narrower than a table: nothing may be cut out of an error.
PIPE_WIDTH = 190
REACHED = {True: "reached", False: "NOT REACHED", None: "not measured"}
NOTES = {Role.FLOOR: "floor, no peer", Role.VARIANT: "for comparison"}


def show(outcome: Outcome) -> None:
    say(f"{outcome.row.title.format(times=f'{outcome.times:,}')}  [{outcome.row.key}]")
    rows = [cells(outcome, result) for result in outcome.results]
    columns(HEADS, rows)
    for result in outcome.results:
        if result.failure is not None:
            say(f"  {result.contestant.name} fails: {result.failure}")
    if goal := goal_line(outcome):
        say(goal)
    say("")


def cells(outcome: Outcome, result: Result) -> Cells:
    role = result.contestant.role
    if not result.finished:
        return result.contestant.name, "fails", "", "", NOTES.get(role, "")
    ratio = spread = ""
    if role is not Role.OURS and outcome.ours.finished:
        ratio = compared(outcome.ratio(result))
        low, high = outcome.spread(result)
        spread = f"{low:.2f} .. {high:.2f}"
    return result.contestant.name, figure(result.microseconds), ratio, spread, NOTES.get(role, "")


def figure(microseconds: float) -> str:
    """Three digits that mean something, and no more."""
    for bound, digits in ((10, 2), (100, 1)):
        if microseconds < bound:
            return f"{microseconds:.{digits}f}"
    return f"{microseconds:,.0f}"


def compared(ratio: float) -> str:
    return f"x{ratio:.2f} slower" if ratio >= 1 else f"x{1 / ratio:.2f} faster"


def goal_line(outcome: Outcome) -> str:
    lead = outcome.lead
    if lead is None:
        return ""
    now = f"x{lead:.2f} ahead" if lead >= 1 else f"x{1 / lead:.2f} behind"
    return f"  goal: {goal_words(outcome)}; now {now}: {reached_words(outcome)}"


def reached_words(outcome: Outcome) -> str:
    most = outcome.out_of_reach
    return REACHED[outcome.reached] + (
        "" if most is None or outcome.reached else f", the floor is x{most:.2f} ahead"
    )


def goal_words(outcome: Outcome) -> str:
    goal, mark = outcome.row.goal, outcome.mark
    if goal is None:
        return ""
    whom = "the best peer" if goal.role is Role.PEER or mark is None else mark.contestant.name
    if goal.factor == 1:
        return f"below {whom}"
    return (
        f"x{goal.factor:.0f} ahead of {whom}"
        if goal.factor > 1
        else f"within x{1 / goal.factor:.2f} of {whom}"
    )


def verdict(outcomes: Sequence[Outcome]) -> bool:
    """Say on how many rows headgate is ahead, and where not; True when it is ahead everywhere."""
    shared = [outcome for outcome in outcomes if outcome.shared]
    ahead = [outcome for outcome in shared if outcome.ahead]
    for outcome in shared:
        if not outcome.ahead:
            say(f"not ahead on {outcome.row.key}: {behind(outcome)}")
    for outcome in outcomes:
        if not outcome.shared:
            say(f"not counted: {outcome.row.key}, where no peer finished")
    results = [result for outcome in outcomes for result in outcome.results]
    if absent := {result.contestant.name for result in results if result.absent}:
        say(f"not installed, so not compared: {', '.join(sorted(absent))}")
    say(f"headgate is ahead of every peer on {len(ahead)} of {len(shared)} shared rows")
    return bool(shared) and len(ahead) == len(shared)


def behind(outcome: Outcome) -> str:
    if not outcome.ours.finished:
        return f"headgate fails: {outcome.ours.failure}"
    quicker = [peer for peer in outcome.finished(Role.PEER) if outcome.ratio(peer) <= 1.0]
    return ", ".join(f"{peer.contestant.name} {compared(outcome.ratio(peer))}" for peer in quicker)


def columns(heads: Cells, rows: Sequence[Cells], left: Collection[int] = ()) -> None:
    """Lines under their heads; the first and the last column, and those said, are words and start
    at the left.
    """
    left = {0, len(heads) - 1, *left}
    if RICH:
        show_rich(heads, rows, left)
    else:
        show_plain(heads, rows, left)


def show_rich(heads: Cells, rows: Sequence[Cells], left: Collection[int]) -> None:
    table = Table(show_edge=False)
    for index, head in enumerate(heads):
        table.add_column(
            escape(head), justify="left" if index in left else "right", no_wrap=index not in left
        )
    for row in rows:
        table.add_row(*map(escape, row), style="bold" if row[0] == "headgate" else "")
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH, highlight=False).print(table)


def show_plain(heads: Cells, rows: Sequence[Cells], left: Collection[int]) -> None:
    widths = [max(len(line[index]) for line in (heads, *rows)) for index in range(len(heads))]
    for line in (heads, *rows):
        cells = (
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  ".join(["", *cells]).rstrip())


def say(text: str) -> None:
    print(text, flush=True)
