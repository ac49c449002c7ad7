"""The acquires and events of a test, as `headgate.telemetry` reports them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from headgate import counts, log_writer
from headgate.stores.memory.store import STORES
from headgate.stores.registry import store_of
from headgate.telemetry import AnyEvent, StoreCalled, add_hook, reading, remove_hook
from headgate.telemetry.reading import Acquires
from tests.places import Place
from tests.telemetry.sdk import Telemetry

FEW = 50  # names of earlier tests that may go on


class Events:
    """The events of this process so far, but for the calls to servers."""

    def __init__(self) -> None:
        self.all: list[AnyEvent] = []

    def of(self, name: str) -> list[AnyEvent]:
        assert log_writer.flush()
        return [each for each in self.all if getattr(each, "limiter", None) == name]

    def note(self, event: AnyEvent) -> None:
        if not isinstance(event, StoreCalled):
            self.all.append(event)


@pytest.fixture
def events() -> Iterator[Events]:
    found = Events()
    add_hook(found.note)
    yield found
    remove_hook(found.note)


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    """Each test begins without names. Beyond a thousand, a process counts them together, and the
    SDK of OpenTelemetry keeps 2,000 rows of a metric: those of 200 names.
    """
    stores = list(STORES)
    if sum(len(store.queues()) for store in stores) > FEW:
        for store in stores:
            store.kept.clear()
        gc.collect()
    counts.ALL.clear()
    counts.labelled_counts.cache_clear()
    reading.switch_on()
    yield
    while counts.TELEMETRY.on:  # a test may have switched it on again
        reading.switch_off()


@pytest.fixture(autouse=True)
def reading_of_the_test(redis_place: Place, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the stores of earlier tests: their servers are gone, and each reading would wait
    for them. Ask for the status of no other test's names: a reading has a second for all.
    """
    all_shown = reading.make_filter

    def shown() -> Callable[[str], bool]:
        is_shown = all_shown()
        return lambda queue: name in queue and is_shown(queue)

    monkeypatch.setattr(reading, "make_filter", shown)
    shared = store_of(redis_place.user_url)
    earlier = {id(store) for store in reading.redis_stores()} - {id(shared)}
    every = reading.redis_stores
    monkeypatch.setattr(
        reading, "redis_stores", lambda: [store for store in every() if id(store) not in earlier]
    )


def acquires(name: str, label: str = "") -> Acquires:
    [found] = [each for each in reading.read_acquires() if (each.name, each.label) == (name, label)]
    return found


def outcomes(name: str, label: str = "") -> dict[str, int]:
    """Those that have happened."""
    return {outcome: times for outcome, times in acquires(name, label).outcomes.items() if times}


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    found = Telemetry()
    yield found
    found.stop()
