"""How slow this machine is: every allowance of real time in the tests is a number of seconds on an
idle machine, scaled by it.

The first process of a run measures, and the processes that it starts inherit the result: they must
agree on the times of haste.py. `HEADGATE_TEST_PACE=3` sets it by hand.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from time import monotonic, sleep  # a test may replace those of the module

CORES = os.cpu_count() or 1
NAME = "HEADGATE_TEST_PACE"
SPIN = 0.05  # seconds of a processor
TICK = 0.02  # seconds
# Seconds by which a thread wakes too late, when its process stands still and is not just busy.
STALL = 0.1


def measured() -> float:
    """Return how many times longer work takes now than on an idle machine: at least 1."""
    start, end = time.perf_counter(), time.thread_time() + SPIN
    while time.thread_time() < end:
        pass
    return max(1.0, os.getloadavg()[0] / CORES, (time.perf_counter() - start) / SPIN)


PACE = float(os.environ.setdefault(NAME, f"{measured():.2f}"))


def scaled(seconds: float) -> float:
    """Return the time on this machine for `seconds` of an idle machine."""
    return seconds * PACE


def scaled_now(seconds: float) -> float:
    """The same by the load of this moment, for times that no other process has to agree on: a run
    makes its own load.
    """
    return seconds * max(PACE, os.getloadavg()[0] / CORES)


class Stalls:
    """Measures for how long this process stands still from now on. A test allows for that."""

    def __init__(self) -> None:
        self._before = ticks().stalled

    @property
    def seconds(self) -> float:
        """How long it has stood still so far, in all."""
        return ticks().stalled - self._before

    def slack(self) -> float:
        """Seconds by which a test may be late: a second for load, and all stalls so far."""
        return scaled(1.0) + self.seconds


class Ticks:
    """A thread that wakes at each tick. Each stall of the process makes it late."""

    def __init__(self) -> None:
        self._seen = (0.0, monotonic())  # the stalls until the last tick, and when that was
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            sleep(TICK)
            self._seen = (self.stalled, monotonic())

    @property
    def stalled(self) -> float:
        """The stalls until now: the next tick may be late already.

        A thread that is merely busy counts as in time.
        """
        stalled, last = self._seen
        late = monotonic() - last - TICK
        return stalled + late if late > STALL else stalled


@cache
def ticks() -> Ticks:
    """The tick thread of this process. A thread for each test would keep the machine busy."""
    return Ticks()
