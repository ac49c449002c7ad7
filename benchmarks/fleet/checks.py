"""The checks of a fleet's grants, and the figures that can be computed from them.

Pure: no clock, no server, no process.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from benchmarks.fleet.plan import Grant

STRAY = (
    # seconds: two clocks of one machine may differ by so much while a caller sleeps until a
    # reserved moment
    0.0002
)


def most_at_once(grants: Iterable[Grant]) -> int:
    """Permits in flight, at the worst moment: from the caller's going on to its giving back."""
    ends = [(grant.granted, 1) for grant in grants] + [(grant.released, -1) for grant in grants]
    now = worst = 0
    for _, change in sorted(ends):  # a release at the same instant comes first
        now += change
        worst = max(worst, now)
    return worst


def most_over(moments: Iterable[int], rate: int, burst: int) -> float:
    """Tokens beyond the limit in the worst of all intervals between two moments (microseconds); 0
    or less: within it.
    """
    worst, lowest = float("-inf"), float("inf")
    for count, moment in enumerate(sorted(moments)):
        earned = count - rate * moment / 1_000_000
        lowest = min(lowest, earned)
        worst = max(worst, earned - lowest + 1 - burst)
    return worst


def overtaken(grants: Iterable[Grant]) -> int:
    """Grants of one session whose fence is smaller than that of a later request: sessions number
    their requests, in order.
    """
    sessions: defaultdict[str, list[Grant]] = defaultdict(list)
    for grant in grants:
        sessions[grant.session].append(grant)
    return sum(
        descents([one.fence for one in sorted(its, key=lambda one: one.number)])
        for its in sessions.values()
    )


def overtaken_by_place(grants: Iterable[Grant], places: Mapping[str, float]) -> tuple[int, int]:
    """The same over all processes, by the places that the server's queue was seen to give them; and
    how many were seen there.
    """
    seen = [grant for grant in grants if grant.caller in places]
    return descents([one.fence for one in sorted(seen, key=lambda one: places[one.caller])]), len(
        seen
    )


def descents(fences: Iterable[int]) -> int:
    return sum(later <= earlier for earlier, later in pairwise(fences))


def early(grants: Iterable[Grant]) -> int:
    """Callers that went on before the reserved moment."""
    return sum(late < -STRAY for late in lateness(grants))


def lateness(grants: Iterable[Grant]) -> list[float]:
    """Seconds from the reserved moment, by the server's clock, until the caller went on, by the
    same machine's.
    """
    return [grant.acted - grant.booked / 1_000_000 for grant in grants]


def hand_offs(grants: Sequence[Grant], capacity: int) -> list[float]:
    """Seconds from each release to the grant that it made possible: the k-th release is that of the
    (capacity + k)-th grant.
    """
    in_order = sorted(grants, key=lambda grant: grant.fence)
    releases = sorted(grant.released for grant in grants)
    return [
        grant.granted - released
        for grant, released in zip(in_order[capacity:], releases, strict=False)
    ]


def abroad(grants: Iterable[Grant]) -> float:
    """The share of grants that follow one to another process: neighbours by fence."""
    processes = [grant.process for grant in sorted(grants, key=lambda grant: grant.fence)]
    return sum(one != other for one, other in pairwise(processes)) / max(1, len(processes) - 1)


def busy(grants: Iterable[Grant], start: float, end: float) -> float:
    """Seconds for which permits were held, added up, between two moments."""
    return sum(max(0.0, min(grant.released, end) - max(grant.granted, start)) for grant in grants)
