"""aiolimiter: a leaky bucket in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.stage import PERIOD, PLENTY, Maker, Stage


@contextmanager
def rate(_stage: Stage) -> Iterator[Maker]:
    from aiolimiter import AsyncLimiter

    yield lambda _name: AsyncLimiter(PLENTY, PERIOD)
