"""The actions of a fleet, and the report of each of its processes.

Plain data and its types only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headgate import Limit


@dataclass(frozen=True)
class Plan:
    """One work. A `capacity` or a `rate` of 0: the limiter has no such limit. Times are seconds."""

    title: str
    capacity: int
    rate: int
    burst: int
    hold: float
    processes: int
    waiters: int
    seconds: float
    # Over which the waiters of a process arrive: otherwise all of one process stand together in the
    # queue for ever.
    spread: float

    def limits(self) -> list[Limit]:
        from headgate import Concurrency, Rate

        concurrency = [Concurrency(self.capacity)] if self.capacity else []
        return [*concurrency, *([Rate(self.rate, per=1, capacity=self.burst)] if self.rate else [])]


class Grant(NamedTuple):
    """One grant, as its caller saw it."""

    process: int
    caller: str  # "session:number:asked": the name by which the server's queue has it
    fence: int
    booked: int  # microseconds, the server's clock
    acted: float  # seconds, this machine's clock of the time of day, which is the server's too
    granted: float  # seconds, the monotonic clock that all processes share: when the caller went on
    released: float  # and when it gave back

    @property
    def session(self) -> str:
        return self.caller.split(":")[0]

    @property
    def number(self) -> int:
        return int(self.caller.split(":")[1])
