"""The counts are exact, whichever threads add to them and read them at the same time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from headgate import Concurrency, Limiter
from headgate.changes import Pause
from headgate.counts import counts_of, note_refusal
from headgate.http import feedback
from headgate.stores.change_events import note_change
from headgate.telemetry import reading
from tests.telemetry.conftest import acquires

THREADS, TIMES, CHANGES = 4, 20_000, 100


@pytest.fixture(autouse=True)
def _hasty_threads() -> Iterator[None]:
    """The threads switch as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def at_once(*works: Callable[[], object]) -> None:
    start = threading.Barrier(len(works))
    threads = [threading.Thread(target=repeated, args=(work, start)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def repeated(work: Callable[[], object], start: threading.Barrier) -> None:
    start.wait()
    for _ in range(TIMES):
        work()


@pytest.mark.parametrize(
    ("work", "read"),
    [
        (
            lambda name: note_refusal(counts_of(name), name, "not_now"),
            lambda counts: counts.refused["not_now"],
        ),
        (
            lambda name: counts_of(name).costs.settle({"tokens": -1}),
            lambda counts: counts.costs.returned["tokens"],
        ),
        (
            lambda name: feedback.note_refusal(name, 429, "refused"),
            lambda counts: counts.refusals[429, "refused"],
        ),
        (
            lambda name: note_change(name, Pause(1, reason="server")),
            lambda counts: counts.pauses["server"],
        ),
    ],
    ids=["refusals", "settlements", "http", "pauses"],
)
def test_no_addition_of_two_threads_is_lost(
    work: Callable[[str], object], read: Callable[[object], int], name: str
) -> None:
    at_once(*[lambda: work(name)] * THREADS)
    assert read(counts_of(name)) == THREADS * TIMES


def test_two_readers_take_no_acquire_away(name: str) -> None:
    """An acquire of a fast path counts there first, until a reader collects it. Others do not."""
    counts = counts_of(name)
    counts.sources.add(lambda: 0)

    def pass_slowly() -> None:
        counts.passed += 1

    at_once(pass_slowly, pass_slowly, counts.collect_all, counts.collect_all)
    assert counts.passed == 2 * TIMES


def test_no_acquire_is_lost_while_the_fast_path_changes(name: str) -> None:
    """A thread may go on with the fast path that was there before an update or a switch."""
    limiter = Limiter(name, Concurrency(100))

    def acquire() -> None:
        for _ in range(TIMES // 10):
            with limiter:
                pass

    def change() -> None:
        for number in range(CHANGES):
            limiter.update(Concurrency(100 + number % 10))
            reading.switch_on()
            reading.switch_off()

    reading.switch_on()
    changes = threading.Thread(target=change)
    changes.start()
    threads = [threading.Thread(target=acquire) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    changes.join()
    assert sum(acquires(name).outcomes.values()) == THREADS * TIMES // 10
