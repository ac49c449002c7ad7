"""How much was simulated: counted the same way in CI and in a long run."""

from __future__ import annotations

from typing import NamedTuple

from tests.simulation.fleet import Outcome, run
from tests.simulation.loop import SECOND
from tests.simulation.plan import Fault, Plan, planned
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
        return cls(1, seconds, seconds * plan.processes, len(plan.steps) - faults, faults, outcome.acted, outcome.commits)

    def __add__(self, other: tuple[object, ...]) -> Tally:
        assert isinstance(other, Tally), "sums are added to sums"
        return Tally._make(ours + theirs for ours, theirs in zip(self, other, strict=True))

    def told(self, seconds: float) -> str:
        minutes, pace = self.fleet / 60, self.fleet / max(seconds, 1e-9)
        return (
            f"{self.seeds} seeds, {minutes:.0f} minutes of fleets ({self.process / 60:.0f} of processes) in {seconds:.1f} s: "
            f"{pace:.0f} fleet-minutes a minute; {self.callers} callers, {self.faults} faults, {self.acted} permits, "
            f"{self.calls} calls"
        )


def lived(seed: int, without: tuple[str, ...]) -> tuple[Tally, str]:
    """What one seed adds, and what is to be told of it."""
    plan = planned(seed, without)
    outcome = run(plan)
    return Tally.of(plan, outcome), story(plan, outcome) if outcome.broken else ""
