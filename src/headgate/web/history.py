"""The samples of the last ten minutes, in memory, of the names that were read last."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import NamedTuple

MINUTES = 10
LENGTH = MINUTES * 60.0  # seconds
# Seconds between two samples at least, and the most samples of a name.
APART, MOST_SAMPLES = 0.8, 600
MOST_NAMES = 100

Target = tuple[str, "str | None"]  # a name, and a key of it


class Sample(NamedTuple):
    """`time`: of the system's clock. `full`: the used share of each limit; above 1.0 in a debt."""

    time: float
    waiting: int
    full: tuple[float, ...]


class History:
    def __init__(self) -> None:
        self._samples: OrderedDict[Target, deque[Sample]] = OrderedDict()

    def add(self, target: Target, sample: Sample) -> None:
        samples = self._samples.setdefault(target, deque(maxlen=MOST_SAMPLES))
        self._samples.move_to_end(target)
        if not samples or abs(sample.time - samples[-1].time) >= APART:
            samples.append(sample)
        while len(self._samples) > MOST_NAMES:
            self._samples.popitem(last=False)

    def since(self, target: Target, time: float, now: float) -> list[Sample]:
        """The samples after `time`, and none older than ten minutes."""
        first = max(time, now - LENGTH)
        known: Iterable[Sample] = self._samples.get(target, ())
        return [sample for sample in known if sample.time > first]
