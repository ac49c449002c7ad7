"""Many seeds: run by processes of their own, and counted the same way in CI and in a long run."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import NamedTuple

from tests.simulation.fleet import Outcome, run
from tests.simulation.loop import SECOND
from tests.simulation.plan import OPEN, Fault, Plan, planned
from tests.simulation.shrink import story


class Tally(NamedTuple):
    """Sums over runs; `fleet` and `process` are seconds."""

    seeds: int = 0
    fleet: float = 0.0
    process: float = 0.0
    callers: int = 0
    faults: int = 0
    acted: int = 0
    calls: int = 0

    @classmethod
    def of(cls, plan: Plan, outcome: Outcome) -> Tally:
        faults = sum(isinstance(step, Fault) for step in plan.steps)
        seconds = outcome.simulated / SECOND
        return cls(
            1,
            seconds,
            seconds * plan.processes,
            len(plan.steps) - faults,
            faults,
            outcome.acted,
            outcome.commits,
        )

    def __add__(self, other: tuple[object, ...]) -> Tally:
        assert isinstance(other, Tally), "sums are added to sums"
        return Tally._make(ours + theirs for ours, theirs in zip(self, other, strict=True))

    def summary(self, seconds: float) -> str:
        minutes, pace = self.fleet / 60, self.fleet / max(seconds, 1e-9)
        return (
            f"{self.seeds} seeds, {minutes:.0f} minutes of fleets ({self.process / 60:.0f} of "
            f"processes) in {seconds:.1f} s: {pace:.0f} fleet-minutes a minute; {self.callers} "
            f"callers, {self.faults} faults, {self.acted} permits, {self.calls} calls"
        )


@contextmanager
def workers(jobs: int) -> Iterator[Pool]:
    """Processes that run seeds.

    When the tests are measured for coverage, these are not, and are twice as fast.
    """
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield pool
    pool.join()


def lived(seed: int, without: Sequence[str] = OPEN) -> tuple[Tally, str]:
    """The counts of one seed, and the text about its failure."""
    plan = planned(seed, without)
    outcome = run(plan)
    return Tally.of(plan, outcome), story(plan, outcome) if outcome.broken else ""
