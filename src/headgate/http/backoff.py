"""How long to wait after a refusal that states no time.

Each limited client counts by itself. The pause that follows holds the whole fleet, and of several
pauses the longest counts.
"""

from __future__ import annotations

import random
from math import inf
from time import monotonic

FIRST = 0.5  # seconds
LONGEST = 30.0
MOST_NAMES = 1000  # limiters that are refused at the same time
# This generator leaves the user's random state alone, and differs after a fork.
JITTER = random.SystemRandom()


class Backoff:
    """Each limiter's refusals in a row since its last success, by its encoded name."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        # How many, and when the last one came. An entry ends with a success.
        self._refused: dict[str, tuple[int, float]] = {}

    def refuse(self, name: str, departed: float) -> float:
        """Return the seconds to wait: about half a second, twice as long each time, at most 30.

        0.0 for a call that left before the refusal that came last: it says nothing new.
        """
        count, last = self._refused.get(name, (0, -inf))
        if departed <= last:
            return 0.0
        if len(self._refused) >= MOST_NAMES:
            self._refused.clear()
        wait = min(LONGEST, FIRST * float(2**count))
        # The count stops at the longest wait, because a float holds no very large power.
        self._refused[name] = count + (wait < LONGEST), monotonic()
        return wait * JITTER.uniform(0.75, 1)

    def succeed(self, name: str, departed: float) -> None:
        """Begin anew, unless the call left before the last refusal."""
        if departed > self._refused.get(name, (0, inf))[1]:
            self._refused.pop(name, None)
