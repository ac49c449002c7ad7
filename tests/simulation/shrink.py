"""From a run that fails to a shorter one that fails alike: only the steps that the failure needs
are left.

This module leaves steps out and tries again. Chance elsewhere does not depend on the steps that are
left out (World.chance), so most can go.
"""

from __future__ import annotations

from tests.simulation.fleet import Outcome, run
from tests.simulation.plan import OPEN, Fault, Plan

LONGEST = 150  # runs after which the result is short enough
LAST = 40  # lines of a trace that are shown


def shrunk(plan: Plan, outcome: Outcome, most: int = LONGEST) -> tuple[Plan, Outcome]:
    """The same failure with fewer steps, and the outcome of that run."""
    size = max(1, len(plan.steps) // 2)
    while True:
        found = _without_some(plan, outcome, size, most)
        if found is None:
            if size == 1:
                return plan, outcome
            size //= 2
            continue
        plan, outcome, most = found


def _without_some(
    plan: Plan, outcome: Outcome, size: int, most: int
) -> tuple[Plan, Outcome, int] | None:
    """The first run without `size` neighbours that still fails."""
    for first in range(0, len(plan.steps), size):
        if most <= 0:
            return None
        most -= 1
        fewer = plan._replace(steps=plan.steps[:first] + plan.steps[first + size :])
        came = run(fewer)
        if came.broken and came.broken[0].invariant == outcome.broken[0].invariant:
            return fewer, came, most
    return None


def story(plan: Plan, outcome: Outcome) -> str:
    """The text to read when a seed fails."""
    small, came = shrunk(plan, outcome)
    broken = came.broken[0]
    words = (
        " --with-all"
        if any(isinstance(step, Fault) and step.kind in OPEN for step in plan.steps)
        else ""
    )
    return "\n".join(
        [
            f"seed {plan.seed}: {broken.invariant} does not hold: {broken.story}",
            f"{len(plan.steps)} steps, of which these suffice: {[*map(str, small.steps)]}",
            f"limits {[*map(str, small.limits)]}, {small.processes} processes, {small.weather}, "
            f"max_waiters {small.waiters}",
            "the end of it:",
            *came.trace[-LAST:],
            f"again: python -m tests.simulation --seeds {plan.seed} {plan.seed + 1}{words}",
        ]
    )
