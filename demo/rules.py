"""The limits of the demo's server, decided without I/O and without a clock: the time of arrival is
an argument.

The server and the demo's idea of the best possible time both come from here. Neither knows
headgate: the subject of the test must not be its judge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "rate", "concurrency"]

NANOSECONDS = 1_000_000_000


@dataclass(frozen=True)
class Rules:
    """At most `amount` calls in any `per` seconds, at most `at_once` at a time; a call takes
    `call_time`.
    """

    amount: int = 20
    per: float = 1.0
    at_once: int = 5
    call_time: float = 0.05


class Doorkeeper:
    """Admits or refuses each call and counts.

    Instants are whole nanoseconds, so the window is exact.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._per = round(rules.per * NANOSECONDS)
        self._admitted: deque[int] = deque(maxlen=rules.amount)
        self.inside = 0
        self.verdicts: dict[Verdict, int] = {"ok": 0, "rate": 0, "concurrency": 0}

    def arrive(self, now: int) -> Verdict:
        verdict = self._judge(now)
        self.verdicts[verdict] += 1
        if verdict == "ok":
            self._admitted.append(now)
            self.inside += 1
        return verdict

    def leave(self) -> None:
        self.inside -= 1

    def _judge(self, now: int) -> Verdict:
        """Only admitted calls count.

        The deque holds the last `amount`: the oldest must be a period ago.
        """
        if len(self._admitted) == self._rules.amount and now - self._admitted[0] < self._per:
            return "rate"
        if self.inside >= self._rules.at_once:
            return "concurrency"
        return "ok"


def ideal_time(calls: int, rules: Rules) -> float:
    """Seconds from first start to last end if every call starts at the first moment the rules
    allow.
    """
    starts: list[float] = []
    for call in range(calls):
        window_opens = starts[call - rules.amount] + rules.per if call >= rules.amount else 0.0
        place_is_free = (
            starts[call - rules.at_once] + rules.call_time if call >= rules.at_once else 0.0
        )
        starts.append(max(window_opens, place_is_free))
    return starts[-1] + rules.call_time
