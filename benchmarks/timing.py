"""The measurement: contestants take turns, round by round, and are compared within each round.

Nothing here knows a library or how a figure is shown. A contestant that fails is reported with its
error and sits out the rest of its row; none is dropped in silence.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles

from benchmarks.shapes import RunFailedError, describe
from benchmarks.stage import Contestant, Maker, Role, Row, Stage

QUICK_ROUNDS = 3
SETTLE = (
    # a pause before each turn: calls in flight of the turn before are not charged to the next
    0.005
)


@dataclass
class Result:
    """One contestant's figures in one row: seconds per operation by round, or why there are
    none.
    """

    contestant: Contestant
    seconds: dict[int, float] = field(default_factory=dict)
    failure: str | None = None
    absent: bool = False

    @property
    def finished(self) -> bool:
        return self.failure is None and bool(self.seconds)

    @property
    def microseconds(self) -> float:
        return median(self.seconds.values()) * 1e6

    def ratios(self, ours: Result) -> list[float]:
        """Their time over ours, round by round: both stood in the same weather."""
        return [self.seconds[number] / ours.seconds[number] for number in self.seconds]


@dataclass
class Outcome:
    row: Row
    times: int
    results: list[Result]

    @property
    def ours(self) -> Result:
        return next(result for result in self.results if result.contestant.role is Role.OURS)

    def finished(self, role: Role) -> list[Result]:
        return [
            result for result in self.results if result.contestant.role is role and result.finished
        ]

    def ratio(self, result: Result) -> float:
        """How many times as long as headgate: the median of the rounds' ratios.

        Both have finished.
        """
        return median(result.ratios(self.ours))

    def spread(self, result: Result) -> tuple[float, float]:
        """The middle half of the rounds' ratios."""
        ratios = result.ratios(self.ours)
        if len(ratios) == 1:
            return ratios[0], ratios[0]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        return low, high

    @property
    def shared(self) -> bool:
        """Whether a peer did this work at all, so that there is a peer to compare with."""
        return bool(self.finished(Role.PEER))

    @property
    def ahead(self) -> bool:
        """Ahead of every peer that finished; not ahead of any when headgate itself failed."""
        return self.ours.finished and all(
            self.ratio(peer) > 1.0 for peer in self.finished(Role.PEER)
        )

    def best(self, role: Role) -> Result | None:
        """The quickest of a role, beside a headgate that finished."""
        return (
            min(self.finished(role), key=self.ratio, default=None) if self.ours.finished else None
        )

    @property
    def mark(self) -> Result | None:
        """The subject of the goal: the best of its role."""
        return None if self.row.goal is None else self.best(self.row.goal.role)

    @property
    def lead(self) -> float | None:
        """How far ahead of the goal's mark, if there is a goal and all entrants that matter
        finished.
        """
        return None if self.mark is None else self.ratio(self.mark)

    @property
    def out_of_reach(self) -> float | None:
        """How far ahead of the goal's mark the floor is, where even that is less than the goal.

        Of several the highest counts.
        """
        goal, mark = self.row.goal, self.mark
        floor = (
            max(self.finished(Role.FLOOR), key=self.ratio, default=None)
            if self.ours.finished
            else None
        )
        if goal is None or floor is None or mark is None or floor is mark:
            return None
        most = median(mark.ratios(floor))
        return most if most < goal.factor else None

    @property
    def reached(self) -> bool | None:
        """Whether the goal is; None where there is none, or nothing to compare with."""
        goal, lead = self.row.goal, self.lead
        return None if goal is None or lead is None else lead >= goal.factor


def measure(row: Row, redis_url: str, mark: str, quick: bool) -> Outcome:
    """Play every round of a row: one to warm up, then those that count, each in another order."""
    times = row.quick_times if quick and row.quick_times is not None else row.times
    outcome = Outcome(row, times, [Result(contestant) for contestant in row.contestants])
    with asyncio.Runner() as runner, ExitStack() as stack:
        stage = Stage(redis_url, runner, mark)
        makers = {id(result): open_contestant(result, stage, stack) for result in outcome.results}
        gc.collect()
        # The modules and clients: to look through them before each turn takes longer than the turn.
        gc.freeze()
        stack.callback(gc.unfreeze)
        for number in range(1 + (min(row.rounds, QUICK_ROUNDS) if quick else row.rounds)):
            for result in rotated(outcome.results, number):
                make = makers[id(result)]
                if make is not None and result.failure is None:
                    take_turn(result, number, stage, make, times)
    return outcome


def open_contestant(result: Result, stage: Stage, stack: ExitStack) -> Maker | None:
    try:
        return stack.enter_context(result.contestant.opening(stage))
    except ImportError as error:
        result.failure, result.absent = describe(error), True
    except Exception as error:
        result.failure = describe(error)
    return None


def rotated(results: Sequence[Result], number: int) -> list[Result]:
    start = number % len(results)
    return [*results[start:], *results[:start]]


def take_turn(result: Result, number: int, stage: Stage, make: Maker, times: int) -> None:
    """One contestant does the work once. Round 0 warms up: it may fail, and it is not counted."""
    stage.run(asyncio.sleep(SETTLE))
    try:
        with collector_out_of_the_way():
            elapsed = result.contestant.shape(stage, make, stage.fresh_name(), times)
    except RunFailedError as error:
        result.failure = str(error)
    except Exception as error:
        result.failure = describe(error)
    else:
        if number > 0:
            result.seconds[number] = elapsed / times


@contextmanager
def collector_out_of_the_way() -> Iterator[None]:
    """Garbage is collected before each turn and not during it, for all entrants alike (as timeit
    does).
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
