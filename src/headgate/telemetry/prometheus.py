"""prometheus-client: a collector, which reads the counts and states when Prometheus scrapes.

Here the values of reading.py get their names and labels. Nothing runs between two scrapes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from headgate.counts import Histogram
from headgate.log_writer import log
from headgate.missing_extra import extra
from headgate.telemetry.reading import (
    Fleet,
    KeyLabel,
    StoreState,
    read_acquires,
    read_estimates,
    read_fleet,
    read_stores,
    read_usage,
    switch_on,
)
from headgate.validation import flag, show

with extra("prometheus"):
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )

__all__ = ["collector"]


def collector(*, keys: KeyLabel | None = None, use_time: bool = False) -> Collector:
    """Switch the counting on, and return a collector: `REGISTRY.register(collector())`.

    `keys` maps the name of a limiter and a key to the label `key`, or to None. Without it, no key
    has series of its own. At most 100 labels of a name are kept; further ones become "other". All
    exporters of a process share the `keys` of the last call.
    `use_time` adds the time for which permits are held, of limiters that are made afterwards.

    Raises TypeError for `keys` that cannot be called.
    """
    if keys is not None and not callable(keys):
        raise TypeError(
            f"collector(keys={show(keys)}): keys is a function of the limiter's name and the key; "
            "pass one, or leave keys out."
        )
    switch_on(keys, flag("collector", "use_time", use_time))
    return Collector()


# A series that begins before its first event shows that event as an increase.
NO_PAUSES = {"caller": 0, "server": 0}


class Family(NamedTuple):
    """A metric. Its labels begin with the limiter's name, and end with the key, if it has them."""

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    labels: tuple[str, ...]
    help: str


COUNTER, GAUGE, HISTOGRAM = CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
FAMILIES = {
    "headgate_acquires": Family(
        COUNTER, ("limiter", "outcome", "key"), "Acquires that have ended."
    ),
    "headgate_cost": Family(
        COUNTER,
        ("limiter", "unit", "key"),
        "Cost of granted acquires, and what settlements charged beyond it.",
    ),
    "headgate_cost_returned": Family(
        COUNTER, ("limiter", "unit", "key"), "Cost that settlements gave back."
    ),
    "headgate_acquire_wait_time_seconds": Family(
        HISTOGRAM,
        ("limiter", "outcome", "key"),
        "Time in the queue, of the acquires that had to queue.",
    ),
    "headgate_permit_use_time_seconds": Family(
        HISTOGRAM, ("limiter", "key"), "Time for which a permit was held, with use_time=True."
    ),
    "headgate_leases_lost": Family(
        COUNTER, ("limiter", "key"), "Leases that ended before their release."
    ),
    "headgate_pauses": Family(
        COUNTER, ("limiter", "reason", "key"), "Pauses that this process began."
    ),
    "headgate_http_refusals": Family(
        COUNTER,
        ("limiter", "status_code", "verdict", "key"),
        "Answers of services that refused a call.",
    ),
    "headgate_permits": Family(GAUGE, ("limiter",), "Permits that this process holds."),
    "headgate_waiters": Family(GAUGE, ("limiter",), "Acquires that wait in this process."),
    "headgate_budget_usage": Family(
        GAUGE,
        ("limiter", "unit", "kind", "key"),
        "Units in use, of the whole fleet. Of several limits of one kind: of the fullest.",
    ),
    "headgate_budget_limit": Family(
        GAUGE, ("limiter", "unit", "kind", "key"), "Capacity of that limit."
    ),
    "headgate_queue_length": Family(
        GAUGE, ("limiter", "key"), "Acquires that wait in the whole fleet."
    ),
    "headgate_pause_remaining_seconds": Family(
        GAUGE, ("limiter", "key"), "Time until the pause of the limiter ends; 0: it has none."
    ),
    "headgate_store_call_duration_seconds": Family(
        HISTOGRAM, ("server", "error"), "Duration of the calls to the servers of stores."
    ),
    "headgate_store_available": Family(
        GAUGE, ("store", "mode"), "1: the servers of the store answer; 0: one of them does not."
    ),
    "headgate_estimate_error_ratio": Family(
        GAUGE, ("model", "token_type"), "Error of the token estimates, as a share of the use."
    ),
}


OF_FLEET = {
    "headgate_budget_usage",
    "headgate_budget_limit",
    "headgate_queue_length",
    "headgate_pause_remaining_seconds",
    "headgate_store_available",
}


class Collector:
    """For a registry of prometheus-client. It has no state, so any thread or child may use it."""

    def describe(self) -> Iterable[Metric]:
        """The metrics without values: a registration must not scrape."""
        return [kind(name, text, labels=labels) for name, (kind, labels, text) in FAMILIES.items()]

    def collect(self) -> Iterable[Metric]:
        """All metrics. A part that cannot be read is left out, and the log says so.

        An exception here would hide all other metrics of the program.
        """
        metrics = {metric.name: metric for metric in self.describe()}
        for part in (acquires, usage, budgets, stores, estimates):
            for name, labels, value in rows_of(part):
                add(metrics[name], labels, value)
        return metrics.values()


UNREAD = "headgate_exporter_unread_names"


class FleetState(NamedTuple):
    """The budgets of a store's limiters, whether its servers answer, and the number of names whose
    status could not be read.
    """

    fleet: Fleet
    store: StoreState
    unread: int


class FleetCollector:
    """The metrics of the fleet alone, as `read` finds them, for `headgate exporter`: it uses no
    limiter itself.
    """

    def __init__(self, read: Callable[[], FleetState]) -> None:
        self._read = read

    def describe(self) -> Iterable[Metric]:
        of_fleet = [metric for metric in Collector().describe() if metric.name in OF_FLEET]
        text = "Names in use whose status could not be read in this scrape."
        return [*of_fleet, GaugeMetricFamily(UNREAD, text, labels=("store",))]

    def collect(self) -> Iterable[Metric]:
        """Metrics without values if the fleet cannot be read, as at the end of the process."""
        metrics = {metric.name: metric for metric in self.describe()}
        for name, labels, value in rows_of(self.fleet):
            add(metrics[name], labels, value)
        return metrics.values()

    def fleet(self) -> Iterator[Row]:
        fleet, store, unread = self._read()
        yield from budgets_of(fleet)
        yield from availability(store)
        yield Row(UNREAD, (store.name,), unread)


class Row(NamedTuple):
    metric: str
    labels: tuple[str, ...]
    value: float | Histogram


def rows_of(part: Callable[[], Iterator[Row]]) -> list[Row]:
    """The rows of a part of a scrape. A part that cannot be read has none, and is logged."""
    try:
        return list(part())
    except Exception as error:
        message, name = "A scrape has left out the metrics of %s.", part.__name__
        log(logging.WARNING, message, name, error=error, kind="scrape", name=name)
        return []


def add(metric: Metric, labels: tuple[str, ...], value: float | Histogram) -> None:
    if isinstance(metric, HISTOGRAM) and isinstance(value, Histogram):
        bounds = [*(str(float(bound)) for bound in value.bounds), "+Inf"]
        metric.add_metric(
            labels, list(zip(bounds, accumulate(value.counts), strict=True)), value.sum
        )
    elif isinstance(metric, COUNTER | GAUGE) and not isinstance(value, Histogram):
        metric.add_metric(labels, value)


# The parts of a scrape ----------------------------------------------------------------------------


def key_of(label: str) -> tuple[str, ...]:
    """The value of the last label, or nothing: a series without a key lacks that label."""
    return (label,) if label else ()


def acquires() -> Iterator[Row]:
    for row in read_acquires():
        name, key = row.name, key_of(row.label)
        for outcome, count in row.outcomes.items():
            yield Row("headgate_acquires", (name, outcome, *key), count)
        for unit, cost in row.cost.items():
            yield Row("headgate_cost", (name, unit, *key), cost)
            yield Row("headgate_cost_returned", (name, unit, *key), row.returned.get(unit, 0))
        for outcome, times in row.waits.items():
            yield Row("headgate_acquire_wait_time_seconds", (name, outcome, *key), times)
        for reason, count in {**NO_PAUSES, **row.pauses}.items():
            yield Row("headgate_pauses", (name, reason, *key), count)
        for (status, verdict), count in row.refusals.items():
            labels = name, f"{status}", verdict, *key
            yield Row("headgate_http_refusals", labels, count)
        yield Row("headgate_leases_lost", (name, *key), row.lost)
        if any(row.held.counts):
            yield Row("headgate_permit_use_time_seconds", (name, *key), row.held)


def usage() -> Iterator[Row]:
    for name, used in read_usage().items():
        yield Row("headgate_permits", (name,), used.permits)
        yield Row("headgate_waiters", (name,), used.waiters)


def budgets() -> Iterator[Row]:
    yield from budgets_of(read_fleet())


def budgets_of(fleet: Fleet) -> Iterator[Row]:
    for (name, label, unit, kind), limit in fleet.limits.items():
        labels = name, unit, kind, *key_of(label)
        yield Row("headgate_budget_usage", labels, limit.used)
        yield Row("headgate_budget_limit", labels, limit.capacity)
    for (name, label), count in fleet.waiting.items():
        yield Row("headgate_queue_length", (name, *key_of(label)), count)
    for (name, label), seconds in fleet.paused.items():
        yield Row("headgate_pause_remaining_seconds", (name, *key_of(label)), seconds)


def stores() -> Iterator[Row]:
    """Two stores may have the same server, such as two databases of one."""
    calls: dict[tuple[str, str], Histogram] = {}
    for store in read_stores():
        yield from availability(store)
        for where, times in store.calls.items():
            calls.setdefault(where, Histogram(times.bounds)).include(times)
    for where, times in calls.items():
        yield Row("headgate_store_call_duration_seconds", where, times)


def availability(store: StoreState) -> Iterator[Row]:
    for mode in store.modes:
        yield Row("headgate_store_available", (store.name, mode), store.available)


def estimates() -> Iterator[Row]:
    for labels, error in read_estimates().items():
        yield Row("headgate_estimate_error_ratio", labels, error)
