"""The goals of the design, section 5, in one table at the end of a run: each beside its measured
figure.

The text of a line is put together here; its figures were measured in the rows, in `connections` and
in `handoff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.stage import Goal, Role
from benchmarks.table import REACHED, columns, compared, figure, goal_words, reached_words, say
from benchmarks.timing import Outcome, Result

HEADS = ("work", "best peer", "bare floor", "headgate", "goal", "")


@dataclass(frozen=True)
class Line:
    """One work's cells: ratios are how many times as long as headgate the others need, in
    this run.
    """

    work: str
    peer: str
    floor: str
    ours: str
    goal: str
    reached: bool | None  # None: it could not be measured
    verdict: str = ""  # when there is more to say than that


def lines_of(outcomes: Sequence[Outcome]) -> list[Line]:
    return [
        line_of(outcome, outcome.row.goal) for outcome in outcomes if outcome.row.goal is not None
    ]


def line_of(outcome: Outcome, goal: Goal) -> Line:
    ours = f"{figure(outcome.ours.microseconds)} us" if outcome.ours.finished else "fails"
    work = goal.work.format(times=f"{outcome.times:,}")
    floor = Role.VARIANT if goal.role is Role.VARIANT else Role.FLOOR
    return Line(
        work,
        best(outcome, Role.PEER),
        best(outcome, floor),
        ours,
        goal_words(outcome),
        outcome.reached,
        reached_words(outcome),
    )


def best(outcome: Outcome, role: Role) -> str:
    """The best of a role, and its ratio; none if no member of it takes part."""
    taking_part = [result for result in outcome.results if result.contestant.role is role]
    found: Result | None = outcome.best(role)
    if found is None:
        return "all fail" if taking_part else "-"
    return (
        f"{found.contestant.name} {figure(found.microseconds)} us, {compared(outcome.ratio(found))}"
    )


def show(lines: Sequence[Line]) -> None:
    if not lines:
        return
    say(
        "The goals (DESIGN, section 5). Microseconds are medians; ratios compare with headgate, "
        "round by round, in this run."
    )
    cells = [
        (
            line.work,
            line.peer,
            line.floor,
            line.ours,
            line.goal,
            line.verdict or REACHED[line.reached],
        )
        for line in lines
    ]
    columns(HEADS, cells, {1, 2, 4})
    reached = sum(line.reached is True for line in lines)
    say(f"{reached} of {len(lines)} goals reached\n")
