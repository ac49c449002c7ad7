"""OpenTelemetry: the metrics of this process's limiters, and a span for each wait.

Here the values of reading.py and the events of waits get their names and attributes. No acquire
calls the SDK: its reader asks for the counts, and a hook of headgate's own thread records waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import ReferenceType, WeakKeyDictionary, ref

from headgate import __version__
from headgate.counts import CALLS, WAITS, place_of
from headgate.events import AnyEvent, Granted, Refused, Released, StoreCalled
from headgate.hooks import add_hook, remove_hook
from headgate.log_writer import flush, log
from headgate.missing_extra import extra
from headgate.telemetry.reading import (
    Acquires,
    Fleet,
    KeyLabel,
    StoreState,
    Usage,
    read_acquires,
    read_estimates,
    read_fleet,
    read_stores,
    read_usage,
    switch_off,
    switch_on,
)
from headgate.validation import flag, show

with extra("otel"):
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import NonRecordingSpan, Span, Tracer, TracerProvider

__all__ = ["Instrumentation", "instrument"]

SCOPE = "headgate"  # the name of the meter and of the tracer
SHORTEST = 0.001  # seconds: a shorter wait has no span
FLUSH = 0.5  # seconds at most until the hook has recorded the waits before a collection
REDIS_PORT = 6379  # the conventions leave out a default port

T = TypeVar("T")
Attributes = dict[str, str | int]


def instrument(
    meter_provider: MeterProvider | None = None,
    *,
    tracer_provider: TracerProvider | None = None,
    keys: KeyLabel | None = None,
    use_time: bool = False,
) -> Instrumentation:
    """Report metrics and spans of all limiters of this process, also of those made later.

    Without providers it takes the global ones, also if they are set later.

    `keys` gets the name of a limiter and a key. It returns the value of `headgate.limiter.key`, or
    None: such a key has no series of its own. At most 100 values of a name are kept; further ones
    become "other". All exporters of a process share the `keys` of the last call. Without `keys`, no
    key has series.

    `use_time=True` times permits from their grant to their release, for `headgate.permit.use_time`.
    It is for limiters that are made from now on, and each acquire of theirs takes longer.

    Raises RuntimeError if headgate is instrumented already, and TypeError for arguments of another
    kind.
    """
    global _current
    check_kind("meter_provider", meter_provider, MeterProvider, "MeterProvider")
    check_kind("tracer_provider", tracer_provider, TracerProvider, "TracerProvider")
    if keys is not None and not callable(keys):
        raise TypeError(
            f"instrument(keys={show(keys)}): keys is a function of the limiter's name and the key; "
            "pass one, or leave keys out."
        )
    flag("instrument", "use_time", use_time)
    if _current is not None:
        raise RuntimeError(
            "instrument(): headgate is instrumented already; call uninstrument() of the object "
            "that the first call has returned, and then instrument() again."
        )
    tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
    _current = Instrumentation(instruments_of(meter_provider), tracer)
    switch_on(keys, use_time)
    return _current


def check_kind(argument: str, value: object, kind: type, name: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(
            f"instrument({argument}={show(value)}): it is no {name} of OpenTelemetry; pass one, or "
            "leave it out for the global one."
        )


class Instrumentation:
    """The reporting that `instrument` has switched on."""

    def __init__(self, instruments: Instruments, tracer: Tracer) -> None:
        self._instruments = instruments
        self._tracer = tracer
        self._on = instruments.on = True
        add_hook(self._note)

    def uninstrument(self) -> None:
        """Report nothing more. After that, `instrument` can be called again.

        OpenTelemetry keeps the instruments of a provider, but these no longer have values. A second
        call does nothing.
        """
        global _current
        if self._on:
            self._on = self._instruments.on = False
            remove_hook(self._note)
            switch_off()
            _current = None

    def _note(self, event: AnyEvent) -> None:
        """The hook: record a wait, the use of a permit, or a call."""
        match event:
            case Granted():
                outcome = "local" if event.local else "waited"
                event.context.run(self._note_wait, event, outcome)
            case Refused() if event.waited:
                event.context.run(self._note_wait, event, event.reason)
            case Released():
                place = place_of(event.limiter, event.key)
                attributes = attributes_of(place.name, place.label)
                self._instruments.use_time.record(event.held, attributes)
            case StoreCalled():
                self._instruments.call_duration.record(event.seconds, call_attributes(event))

    def _note_wait(self, event: Granted | Refused, outcome: str) -> None:
        """Runs in the context of the caller: its span is the parent, and an exemplar names it."""
        place = place_of(event.limiter, event.key)
        attributes = attributes_of(place.name, place.label) | {"headgate.outcome": outcome}
        self._instruments.wait_time.record(event.waited, attributes)
        if event.waited >= SHORTEST and is_recorded(trace.get_current_span()):
            end = round(event.at * 1e9)
            start = end - round(event.waited * 1e9)
            span = self._tracer.start_span("headgate.wait", start_time=start, attributes=attributes)
            span.end(end)


_current: Instrumentation | None = None


def is_recorded(span: Span) -> bool:
    """Whether a span of this process is recorded and exported. It may have ended meanwhile."""
    return not isinstance(span, NonRecordingSpan) and span.get_span_context().trace_flags.sampled


def attributes_of(name: str, label: str) -> Attributes:
    key: Attributes = {"headgate.limiter.key": label} if label else {}
    return {"headgate.limiter.name": name, **key}


def call_attributes(event: StoreCalled) -> Attributes:
    """By the conventions for databases. The path of a Unix socket is an address, too."""
    attributes: Attributes = {"db.system.name": "redis", "server.address": event.server}
    host, colon, port = event.server.rpartition(":")
    if colon and port.isdecimal():
        attributes["server.address"] = host
        if int(port) != REDIS_PORT:
            attributes["server.port"] = int(port)
    if event.error:
        attributes["error.type"] = event.error
    return attributes


# Observable instruments ---------------------------------------------------------------------------


class Reading(Generic[T]):
    """The values for all instruments that show them, read once for each collection.

    A collection asks each instrument once. So an instrument that asks again begins a new reading.
    """

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._served: set[str] = set()
        self._found: T | None = None

    def of(self, instrument: str) -> T | None:
        """None if the values cannot be read."""
        if instrument in self._served or not self._served:
            self._served = set()
            self._found = self._read_safely()
        self._served.add(instrument)
        return self._found

    def _read_safely(self) -> T | None:
        try:
            return self._read()
        except Exception as error:
            name = self._read.__name__
            message = "A collection of OpenTelemetry has left out metrics: %s has failed."
            log(logging.WARNING, message, name, error=error, kind="collection", name=name)
            return None


def read_counts() -> list[Acquires]:
    """The counts, once the hook has recorded earlier waits: histograms and counts then agree."""
    flush(FLUSH)
    return read_acquires()


Rows = Callable[[Any], Iterator[Observation]]


def by(attribute: str, values: Callable[[Acquires], Mapping[Any, int]]) -> Rows:
    """The rows of a count by one attribute."""

    def rows(found: list[Acquires]) -> Iterator[Observation]:
        for each in found:
            where = attributes_of(each.name, each.label)
            for value, count in values(each).items():
                yield Observation(count, where | {attribute: value})

    return rows


def lost_leases(found: list[Acquires]) -> Iterator[Observation]:
    for each in found:
        yield Observation(each.lost, attributes_of(each.name, each.label))


def refusals(found: list[Acquires]) -> Iterator[Observation]:
    for each in found:
        where = attributes_of(each.name, each.label)
        for (status, verdict), count in each.refusals.items():
            answer: Attributes = {"http.response.status_code": status, "headgate.verdict": verdict}
            yield Observation(count, where | answer)


def permits(found: dict[str, Usage]) -> Iterator[Observation]:
    for name, usage in found.items():
        yield Observation(usage.permits, attributes_of(name, ""))


def waiters(found: dict[str, Usage]) -> Iterator[Observation]:
    for name, usage in found.items():
        yield Observation(usage.waiters, attributes_of(name, ""))


def usages(fleet: Fleet) -> Iterator[Observation]:
    for where, limit in fleet.limits.items():
        yield Observation(limit.used, limit_attributes(*where))


def capacities(fleet: Fleet) -> Iterator[Observation]:
    for where, limit in fleet.limits.items():
        yield Observation(limit.capacity, limit_attributes(*where))


def limit_attributes(name: str, label: str, unit: str, kind: str) -> Attributes:
    return attributes_of(name, label) | {"headgate.unit": unit, "headgate.limit.kind": kind}


def queue_lengths(fleet: Fleet) -> Iterator[Observation]:
    for place, count in fleet.waiting.items():
        yield Observation(count, attributes_of(*place))


def pauses_left(fleet: Fleet) -> Iterator[Observation]:
    for place, seconds in fleet.paused.items():
        yield Observation(seconds, attributes_of(*place))


def availabilities(found: list[StoreState]) -> Iterator[Observation]:
    for store in found:
        for mode in store.modes:
            where: Attributes = {"headgate.store.name": store.name, "headgate.mode": mode}
            yield Observation(int(store.available), where)


def errors(found: dict[tuple[str, str], float]) -> Iterator[Observation]:
    for (model, kind), error in found.items():
        yield Observation(error, {"headgate.model": model, "headgate.token.type": kind})


class Observed(NamedTuple):
    """An observable instrument: its kind, unit and description, and the rows that it shows."""

    kind: str
    unit: str
    description: str
    read: Callable[[], Any]
    rows: Rows


COUNTER, GAUGE, UP_DOWN = "counter", "gauge", "up_down_counter"
outcomes = by("headgate.outcome", lambda each: each.outcomes)
costs = by("headgate.unit", lambda each: each.cost)
returns = by("headgate.unit", lambda each: each.returned)
pauses = by("headgate.reason", lambda each: each.pauses)
OBSERVED = {
    "headgate.acquires": Observed(
        COUNTER, "{acquire}", "Acquires that have ended.", read_counts, outcomes
    ),
    "headgate.cost": Observed(
        COUNTER, "{unit}", "Cost of granted acquires, with later charges.", read_counts, costs
    ),
    "headgate.cost.returned": Observed(
        COUNTER, "{unit}", "Cost that settlements gave back.", read_counts, returns
    ),
    "headgate.pauses": Observed(
        COUNTER, "{pause}", "Pauses that this process began.", read_counts, pauses
    ),
    "headgate.leases.lost": Observed(
        COUNTER, "{lease}", "Leases that ended before their release.", read_counts, lost_leases
    ),
    "headgate.http.refusals": Observed(
        COUNTER, "{refusal}", "Answers of services that refused a call.", read_counts, refusals
    ),
    "headgate.permit.count": Observed(
        UP_DOWN, "{permit}", "Permits that this process holds.", read_usage, permits
    ),
    "headgate.waiter.count": Observed(
        UP_DOWN, "{waiter}", "Acquires that wait in this process.", read_usage, waiters
    ),
    "headgate.budget.usage": Observed(
        GAUGE, "{unit}", "Units in use, in the whole fleet.", read_fleet, usages
    ),
    "headgate.budget.limit": Observed(
        GAUGE, "{unit}", "Capacity of the limit, for the whole fleet.", read_fleet, capacities
    ),
    "headgate.queue.length": Observed(
        GAUGE, "{waiter}", "Acquires that wait in the whole fleet.", read_fleet, queue_lengths
    ),
    "headgate.pause.remaining": Observed(
        GAUGE, "s", "Time until the pause of the fleet ends.", read_fleet, pauses_left
    ),
    "headgate.store.available": Observed(
        GAUGE, "{store}", "1: the servers answer. 0: one does not.", read_stores, availabilities
    ),
    "headgate.estimate.error": Observed(
        GAUGE, "1", "Error of token estimates, as a share of the use.", read_estimates, errors
    ),
}


class Instruments:
    """The instruments of one meter provider. They have values only while `on`."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = metrics.get_meter(SCOPE, __version__, provider)
        self.on = False
        self.wait_time = meter.create_histogram(
            "headgate.acquire.wait_time",
            unit="s",
            description="Time in the queue, of acquires that had to queue.",
            explicit_bucket_boundaries_advisory=WAITS,
        )
        self.use_time = meter.create_histogram(
            "headgate.permit.use_time",
            unit="s",
            description="Time for which permits were held.",
            explicit_bucket_boundaries_advisory=WAITS,
        )
        self.call_duration = meter.create_histogram(
            "headgate.store.call.duration",
            unit="s",
            description="Duration of calls to the servers of stores.",
            explicit_bucket_boundaries_advisory=CALLS,
        )
        readings = {row.read: Reading(row.read) for row in OBSERVED.values()}
        for name, row in OBSERVED.items():
            create = getattr(meter, f"create_observable_{row.kind}")
            callback = self._callback(name, readings[row.read], row.rows)
            create(name, [callback], unit=row.unit, description=row.description)

    def _callback(
        self, name: str, reading: Reading[Any], rows: Rows
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = reading.of(name) if self.on else None
            return () if found is None else rows(found)

        return observe


# OpenTelemetry cannot remove an instrument, and ignores the callbacks of a second one of its name.
# So each provider has one `Instruments` for good, which its own callbacks keep alive.
_by_provider: WeakKeyDictionary[MeterProvider, ReferenceType[Instruments]] = WeakKeyDictionary()
# Before a program sets its global provider, OpenTelemetry has a proxy in that place. Later it makes
# the proxy's instruments again in the program's provider. So the two share this object.
_of_global_provider: Instruments | None = None


def instruments_of(provider: MeterProvider | None) -> Instruments:
    global _of_global_provider
    global_provider = metrics.get_meter_provider()
    provider = global_provider if provider is None else provider
    known = _by_provider.get(provider)
    found = None if known is None else known()
    if found is None and provider is global_provider:
        found = _of_global_provider
    if found is None:
        found = Instruments(provider)
    if provider is global_provider:
        _of_global_provider = found
    _by_provider[provider] = ref(found)
    return found
