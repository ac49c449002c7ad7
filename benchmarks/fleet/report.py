"""The result of a fleet's run: each figure with its goal, and the checks that failed.

The line itself says which figures are compared; checks.py says how they are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median, quantiles

from benchmarks import table
from benchmarks.fleet import checks
from benchmarks.fleet.plan import Grant, Plan
from benchmarks.fleet.watch import REDIS_PY, WIRE, Seen

SHARE = 0.995  # of the ideal throughput: the goal
TRIPS = 3.0  # bare round trips for a hand-off: the goal
CONNECTIONS = 3  # for each process: the goal
RAMP = 0.1  # of the run: at its start all arrive, and that does not count for moments and shares


@dataclass(frozen=True)
class Line:
    """One figure. `reached`: None where no goal decides."""

    what: str
    figure: str
    goal: str = ""
    reached: bool | None = None


class Report:
    """All lines of one work.

    Times are seconds; `start` and `end` are the run's, on the monotonic clock.
    """

    def __init__(
        self, plan: Plan, grants: Sequence[Grant], seen: Seen, start: float, end: float
    ) -> None:
        self._plan, self._grants, self._seen = plan, grants, seen
        self._start, self._end = start + max(plan.spread, RAMP * plan.seconds), end
        self._steady = [grant for grant in grants if self._start <= grant.granted < end]
        self._trip, self._slow_trip = median(seen.bare[WIRE]), median(seen.bare[REDIS_PY])
        self.lines = list(self._lines())

    @property
    def right(self) -> bool:
        return all(line.reached is not False for line in self.lines)

    def _lines(self) -> Iterator[Line]:
        count, away = f"{len(self._grants):,}", percent(checks.abroad(self._steady))
        yield Line("grants; and to another process than the one before", f"{count}; {away}")
        yield from self._safety()
        if self._plan.capacity:
            yield from self._concurrency()
        if self._plan.rate:
            yield from self._rate()
        yield from self._moments()
        yield from self._cost()

    def _safety(self) -> Iterator[Line]:
        plan, grants = self._plan, self._grants
        if plan.capacity:
            most = checks.most_at_once(grants)
            yield Line(
                "permits in flight at once, the most",
                f"{most}",
                f"at most {plan.capacity}",
                most <= plan.capacity,
            )
        if plan.rate:
            over = checks.most_over((grant.booked for grant in grants), plan.rate, plan.burst)
            goal = f"at most {plan.burst} + {plan.rate} a second"
            yield Line(
                "tokens beyond the limit, in the worst interval",
                f"{max(0.0, over):.3f}",
                goal,
                over <= 0.001,
            )
        overtaken = checks.overtaken(grants)
        yield Line("overtaken within a session, by fences", f"{overtaken}", "none", overtaken == 0)
        overtaken, seen = checks.overtaken_by_place(grants, self._seen.places)
        yield Line(
            f"overtaken over all processes, of {seen:,} seen in the server's queue",
            f"{overtaken}",
            "none",
            overtaken == 0,
        )
        early = checks.early(grants)
        yield Line("gone before the booked moment", f"{early}", "none", early == 0)

    def _concurrency(self) -> Iterator[Line]:
        plan, seconds = self._plan, self._end - self._start
        held = mean(grant.released - grant.granted for grant in self._steady)
        busy = checks.busy(self._grants, self._start, self._end) / (plan.capacity * seconds)
        decides = not plan.rate
        yield Line(f"held each, on average (asked for {plan.hold * 1000:g} ms)", milliseconds(held))
        yield Line(
            "throughput, of capacity / time held, as if a hand-off took no time", percent(busy)
        )
        for trips in (1.0, TRIPS):
            share = len(self._steady) * (held + trips * self._trip) / (plan.capacity * seconds)
            goal, reached = (
                (at_least(SHARE), share >= SHARE) if decides and trips == TRIPS else ("", None)
            )
            yield Line(
                f"throughput, of capacity / (time held + bare round trips: {trips:.0f})",
                percent(share),
                goal,
                reached,
            )
        if decides:
            yield from self._hand_offs()

    def _hand_offs(self) -> Iterator[Line]:
        taken = checks.hand_offs(self._grants, self._plan.capacity)
        p50, p99 = middle_and_tail(taken[-len(self._steady) :])
        what = "hand-off, from a release to the grant that it made possible: p50, p99"
        yield Line(what, f"{milliseconds(p50)}, {milliseconds(p99)}")
        for name, trip in ((WIRE, self._trip), (REDIS_PY, self._slow_trip)):
            goal, reached = (
                (f"p50 at most {TRIPS:.0f}", p50 <= TRIPS * trip) if name == WIRE else ("", None)
            )
            yield Line(
                f"the same, in bare round trips by {name}",
                f"{p50 / trip:.1f}, {p99 / trip:.1f}",
                goal,
                reached,
            )

    def _rate(self) -> Iterator[Line]:
        plan = self._plan
        first = min(grant.booked for grant in self._grants)
        seconds = (
            0.95 * plan.seconds
        )  # from the first grant; the last moments do not end for all processes at once
        count = sum(grant.booked <= first + seconds * 1_000_000 for grant in self._grants)
        share = count / (plan.burst + plan.rate * seconds)
        what = f"throughput, of burst + rate x time, {seconds:.1f} s from the first grant"
        yield Line(what, percent(share), at_least(SHARE), share >= SHARE)

    def _moments(self) -> Iterator[Line]:
        p50, p99 = middle_and_tail(checks.lateness(self._steady))
        what = "late: from the moment granted, by the server's clock, to going on: p50, p99"
        yield Line(what, f"{milliseconds(p50)}, {milliseconds(p99)}")
        for name, seconds in self._seen.bare.items():
            p50, p99 = middle_and_tail(seconds)
            yield Line(
                f"a bare round trip beside the fleet, by {name}: p50, p99",
                f"{milliseconds(p50)}, {milliseconds(p99)}",
            )

    def _cost(self) -> Iterator[Line]:
        done, count, plan = self._seen.done, len(self._grants), self._plan
        most, whole = (
            max(self._seen.connections.values(), default=0),
            sum(self._seen.connections.values()),
        )
        what, reached = (
            f"connections of a process, the most (all {plan.processes}: {whole})",
            0 < most <= CONNECTIONS,
        )
        yield Line(what, f"{most}", f"at most {CONNECTIONS}", reached)
        calls = done.calls - sum(
            map(len, self._seen.bare.values())
        )  # our bare round trips are calls of a script, too
        yield Line(
            "calls of the script, announcements, each grant",
            f"{calls / count:.2f}, {done.announced / count:.2f}",
        )
        yield Line(
            "script time, each grant (our bare round trips included)",
            f"{done.microseconds / count:.0f} us",
        )
        yield Line("the server's CPU, of one core", percent(done.cpu / plan.seconds))


def show(report: Report, plan: Plan) -> None:
    limits = ", ".join(map(str, plan.limits()))
    table.say(
        f"\n{plan.title}: {plan.processes} processes x {plan.waiters} waiters, {plan.seconds:g} s, "
        f"{limits}"
    )
    rows = [(line.what, line.figure, line.goal, verdict(line)) for line in report.lines]
    table.columns(("", "", "goal", ""), rows, {2})


def verdict(line: Line) -> str:
    return "" if line.reached is None else table.REACHED[line.reached]


def middle_and_tail(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = quantiles(seconds, n=100, method="inclusive")
    return cuts[49], cuts[98]


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def at_least(share: float) -> str:
    return f"at least {percent(share)}"
