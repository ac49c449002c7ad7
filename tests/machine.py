"""How slow this machine is: every allowance of real time in the tests is a number of seconds on an idle machine, scaled by it.

The first process of a run measures, and the processes that it starts inherit what it found: they must agree on the times of
haste.py. `HEADGATE_TEST_PACE=3` sets it by hand.
"""

from __future__ import annotations

import os
import time

CORES = os.cpu_count() or 1
NAME = "HEADGATE_TEST_PACE"
SPIN = 0.05  # seconds of a processor


def measured() -> float:
    """Return how many times longer work takes now than on an idle machine: at least 1."""
    start, end = time.perf_counter(), time.thread_time() + SPIN
    while time.thread_time() < end:
        pass
    return max(1.0, os.getloadavg()[0] / CORES, (time.perf_counter() - start) / SPIN)


PACE = float(os.environ.setdefault(NAME, f"{measured():.2f}"))


def scaled(seconds: float) -> float:
    """Return what `seconds` of an idle machine are on this one."""
    return seconds * PACE


def scaled_now(seconds: float) -> float:
    """The same by the load of this moment, for what no other process has to agree on: a run makes a load of its own."""
    return seconds * max(PACE, os.getloadavg()[0] / CORES)
