"""The screen of the demo: a bar while calls come back, then a table. It draws, and decides nothing.

A terminal gets a moving bar, anything else (a log, a pipe) a plain line now and then.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Table
from rich.text import Text

SECONDS_BETWEEN_LINES = 2.0


@dataclass(frozen=True)
class Outcome:
    """One run: the counts are the server's own, `seconds` is the client's time from start to last
    reply.
    """

    run: str
    ok: int
    over_rate: int
    over_concurrency: int
    seconds: float
    ideal: float

    @property
    def calls(self) -> int:
        return self.ok + self.refused

    @property
    def refused(self) -> int:
        return self.over_rate + self.over_concurrency

    @property
    def over_ideal(self) -> float:
        return self.seconds / self.ideal - 1


class Tally:
    """Counts the replies of one run and keeps its time, from `begin` to the latest reply."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.ok = self.refused = 0
        self.seconds = 0.0
        self._began = 0.0

    @property
    def done(self) -> int:
        return self.ok + self.refused

    def begin(self) -> None:
        self._began = time.monotonic()

    def reply(self, status: int) -> None:
        self.seconds = time.monotonic() - self._began
        if status == 200:
            self.ok += 1
        else:
            self.refused += 1


class LineTally(Tally):
    """Says now and then how far it is."""

    def __init__(self, console: Console, total: int) -> None:
        super().__init__(total)
        self._console = console
        self._next_line = SECONDS_BETWEEN_LINES

    def reply(self, status: int) -> None:
        super().reply(status)
        if self.seconds >= self._next_line or self.done == self.total:
            self._next_line += SECONDS_BETWEEN_LINES
            counts = f"{self.done:3} of {self.total}  {self.ok:3} ok  {self.refused:3} x 429"
            self._console.print(f"   {counts}  {self.seconds:4.1f} s")


class BarTally(Tally):
    """Moves a bar."""

    def __init__(self, progress: Progress, total: int) -> None:
        super().__init__(total)
        self._progress = progress
        self._bar = progress.add_task("", total=total, start=False, ok=0, refused=0)

    def begin(self) -> None:
        super().begin()
        self._progress.start_task(self._bar)

    def reply(self, status: int) -> None:
        super().reply(status)
        self._progress.update(self._bar, advance=1, ok=self.ok, refused=self.refused)


class Seconds(ProgressColumn):
    """The time of the run so far; rich's own shows whole seconds only."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.elapsed or 0.0:4.1f} s", style="dim")


@contextmanager
def tally(console: Console, total: int) -> Iterator[Tally]:
    if not console.is_interactive:
        yield LineTally(console, total)
        return
    columns = (
        BarColumn(bar_width=40),
        TextColumn("{task.completed:3.0f} of {task.total:.0f}"),
        TextColumn("[green]{task.fields[ok]:3} ok"),
        TextColumn("[red]{task.fields[refused]:3} x 429"),
        Seconds(),
    )
    with Progress(TextColumn("  "), *columns, console=console) as progress:
        yield BarTally(progress, total)


def table(outcomes: list[Outcome]) -> Table:
    drawn = Table(title_justify="left")
    drawn.add_column("run")
    for heading in ("calls", "ok", "429s", "time", "ideal time", "over ideal"):
        drawn.add_column(heading, justify="right")
    for outcome in outcomes:
        drawn.add_row(*_cells(outcome))
    return drawn


def _cells(outcome: Outcome) -> list[str]:
    """A run with refusals has no time to be proud of: its calls did not get through."""
    refused = f"[red]{outcome.refused}[/]" if outcome.refused else "[green]0[/]"
    over = "-" if outcome.refused else f"{outcome.over_ideal:.1%}"
    times = [f"{outcome.seconds:.2f} s", f"{outcome.ideal:.2f} s", over]
    return [outcome.run, str(outcome.calls), str(outcome.ok), refused, *times]
