"""The standard library's semaphores: one process, no rate, no order to speak of, and very quick."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from benchmarks.stage import Maker, Opening, Stage


def asyncio_semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(_stage: Stage) -> Iterator[Maker]:
        yield lambda _name: asyncio.Semaphore(capacity)

    return opening


def threading_semaphore(capacity: int) -> Opening:
    @contextmanager
    def opening(_stage: Stage) -> Iterator[Maker]:
        yield lambda _name: threading.Semaphore(capacity)

    return opening


@contextmanager
def nothing(_stage: Stage) -> Iterator[Maker]:
    """An entry that does nothing: only the cost of asyncio's tasks remains."""
    yield lambda _name: nullcontext()
