"""The seconds before another attempt. They are random, and grow with each failed attempt."""

from __future__ import annotations

import random

# Doubled for each failed attempt, this gives the most seconds before the next one.
BACKOFF = 0.05
# The most seconds before any attempt, while callers wait and while none does.
LONGEST = 1.0
REVIVAL = 5.0
# This generator leaves the user's random state alone, and differs after a fork.
JITTER = random.SystemRandom()


def backoff(attempt: int, longest: float) -> float:
    """The seconds before another attempt, with full jitter, after `attempt` failed ones."""
    return JITTER.uniform(0, min(longest, BACKOFF * 2 ** min(attempt, 10)))
