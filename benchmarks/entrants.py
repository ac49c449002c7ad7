"""The entrants across processes: the semaphores of capacity 1 on Redis, for the works that are no
loop with a clock in it.

Data only: the openings are those of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.peers import headgate, limiters, self_limiters, steindamm
from benchmarks.stage import Opening

OURS = "headgate"


class Entrant(NamedTuple):
    name: str
    opening: Opening


SEMAPHORES = (
    Entrant(OURS, headgate.semaphore(1)),
    Entrant("self-limiters", self_limiters.semaphore(1)),
    Entrant("redis-rate-limiters", limiters.semaphore(1)),
    Entrant("steindamm", steindamm.semaphore(1)),
)
