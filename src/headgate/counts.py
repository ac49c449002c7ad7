"""The counts of acquires, by the name of the limiter: plain integers, to which acquires only add.

`headgate.telemetry` reads them. Python switches threads only at a call and at the turn of a loop.
So an addition needs no lock if it makes no call between the read and the write of its integer.
"""

from __future__ import annotations

import contextvars
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from headgate.errors import (
    CostExceedsCapacityError,
    MaxSleepExceededError,
    QueueFullError,
    StoreError,
)
from headgate.hooks import emit, has_hooks
from headgate.keys import names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headgate.gate.gate import Units

# The outcomes of an acquire without a permit.
REFUSED = "not_now", "too_long", "queue_full", "never", "cancelled", "store_error"
# The upper bounds of a histogram's buckets, in seconds.
WAITS = 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300
CALLS = 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5
MOST_NAMES = 1000  # further names share the counts of OTHER
MOST_LABELS = 100  # of the keys of one name
OTHER = "other"


class Histogram:
    """How many times were added, and their sum. `counts` has one more bucket than `bounds`."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum += seconds

    def include(self, other: Histogram) -> None:
        """Add all that `other`, which has the same bounds, has counted."""
        self.counts = [ours + more for ours, more in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


K = TypeVar("K")


def add(sums: dict[K, int], key: K, amount: int = 1) -> None:
    sums.setdefault(key, 0)
    sums[key] += amount


class Costs:
    """The costs of granted acquires, and their settlements, by unit."""

    __slots__ = ("charged", "named", "returned", "units")

    def __init__(self) -> None:
        # The units that limits have counted. The store forgets the limits of an idle name.
        self.units: set[str] = set()
        # For each unit that acquires named: the sum of the costs, and the number of acquires.
        self.named: dict[str, list[int]] = {}
        # The amounts that settlements charged beyond the costs, and those that they gave back.
        self.charged: dict[str, int] = {}
        self.returned: dict[str, int] = {}

    def grant(self, units: Units) -> None:
        for unit, cost in units.items():
            entry = self.named.setdefault(unit, [0, 0])
            entry[0] += cost
            entry[1] += 1

    def settle(self, extras: Mapping[str, int]) -> None:
        for unit, extra in extras.items():
            add(self.charged if extra > 0 else self.returned, unit, abs(extra))


class Counts:
    """The acquires of all limiters and keys that share these counts."""

    __slots__ = (
        "costs",
        "held",
        "is_share",
        "lost",
        "passed",
        "paused_until",
        "pauses",
        "refusals",
        "refused",
        "sources",
        "unlimited",
        "waits",
    )

    def __init__(self, is_share: bool = False) -> None:
        self.is_share = is_share  # they count the grants by a share: see `outcomes`
        self.passed = self.unlimited = 0
        self.refused = dict.fromkeys(REFUSED, 0)
        # A fast path has a count of its own. Each of these functions returns one and sets it to 0,
        # so that `passed` can include it.
        self.sources: set[Callable[[], int]] = set()
        self.lost = 0  # leases
        self.costs = Costs()
        self.pauses: dict[str, int] = {}  # by reason: caller, server
        self.paused_until = 0.0  # as far as this process knows, on the monotonic clock
        # Refusals of services, by the status and the verdict of the answer.
        self.refusals: dict[tuple[int, str], int] = {}
        # The waits in the queue, by outcome. The first wait of an outcome makes its histogram.
        self.waits: dict[str, Histogram] = {}
        self.held = Histogram(WAITS)  # the time from a grant to its release, of timed limiters

    @property
    def waited(self) -> int:
        """The acquires that were granted after a wait."""
        times = self.waits.get("local" if self.is_share else "waited")
        return sum(times.counts) if times else 0

    def outcomes(self) -> dict[str, int]:
        """The acquires that have ended, by outcome.

        "unlimited" and "local": the store could not be asked, and the acquire went on as its
        `on_store_error` says. A share of the limits has counts of its own, with `is_share`: there
        its acquires are "passed" and "waited". So "local" is 0 until an exporter adds them.
        """
        granted = {"passed": self.passed, "waited": self.waited}
        return {**granted, **self.refused, "unlimited": self.unlimited, "local": 0}

    def collect(self, source: Callable[[], int]) -> None:
        """Take the last count of a fast path."""
        taken = source()
        self.passed += taken
        self.sources.discard(source)

    def collect_all(self) -> None:
        """Take the counts of all fast paths so far."""
        for source in self.sources.copy():
            taken = source()
            self.passed += taken

    def add_wait(self, outcome: str, seconds: float) -> None:
        found = self.waits.get(outcome) or self.waits.setdefault(outcome, Histogram(WAITS))
        found.add(seconds)


def remember_units(queue: str, units: Iterable[str]) -> None:
    counts_of(queue).costs.units.update(units)


# Returns the label of a name and a key. None: the key has no counts of its own.
Label = Callable[[str, str], str | None]


class Place(NamedTuple):
    """The owner of counts: a name, and the label of a key ("": it has none).

    `is_share`: they count the grants by a share of the limits.
    """

    name: str
    label: str
    is_share: bool = False


ALL: dict[Place, Counts] = {}
_labels: dict[str, set[str]] = {}  # of the keys in ALL, by name
_label: Label | None = None


def counts_of(queue: str, is_share: bool = False) -> Counts:
    """The counts of a queue, by its encoded name. Keys without a label share those of the name."""
    # Without labels, all keys share the counts of the name. Then the name alone is looked up, so
    # many keys do not fill the cache.
    return labelled_counts(queue if _label else queue.partition(":")[0], is_share)


@lru_cache(maxsize=1024)
def labelled_counts(queue: str, is_share: bool) -> Counts:
    place = place_of(*names_of(queue), is_share)
    if place.label:
        _labels.setdefault(place.name, set()).add(place.label)
    return ALL.get(place) or ALL.setdefault(place, Counts(is_share))


def place_of(name: str, key: str | None, is_share: bool = False) -> Place:
    """The place of the counts of a name and a key. Beyond MOST_NAMES places it is OTHER."""
    place = Place(name, label_of(name, key), is_share)
    return place if place in ALL or len(ALL) < MOST_NAMES else Place(OTHER, "", is_share)


def exportable(text: str) -> str:
    """`text` as UTF-8 can write it: a lone surrogate becomes an escape sequence."""
    return text.encode(errors="backslashreplace").decode()


def label_of(name: str, key: str | None) -> str:
    """The label of a key. At most MOST_LABELS keys of a name have one; the others are OTHER."""
    if key is None or _label is None:
        return ""
    try:
        label = exportable(_label(name, key) or "")
    except Exception:  # the user's function raised, or returned no text: the acquire goes on
        return OTHER
    labels = _labels.get(name, ())
    return label if not label or label in labels or len(labels) < MOST_LABELS else OTHER


_timed = False  # whether new limiters time their permits


class Telemetry:
    """While it is `on`, calls to servers and the fast path of memory queues are counted, too.

    When it changes, the memory queues that exist must `recount`. Other queues find their counts by
    name at each acquire.
    """

    on = False


TELEMETRY = Telemetry()


def counts_blocks() -> bool:
    """Whether acquires on the fast path of blocks are counted."""
    return TELEMETRY.on or has_hooks()


def permits_are_timed() -> bool:
    return _timed


def time_permits(timed: bool) -> None:
    """Time the permits of all limiters that are made from now on."""
    global _timed
    _timed = timed


def set_label(label: Label | None) -> None:
    """Label the keys of all queues that are made from now on."""
    global _label
    _label = label
    labelled_counts.cache_clear()


class Costly(Protocol):
    """A request. Its own type is not imported, because request.py imports this module."""

    @property
    def units(self) -> Units: ...


def note_grant(counts: Counts, queue: str, request: Costly, waited: float | None) -> None:
    """Count a granted acquire. `waited`: its seconds in the queue; None: it passed at once."""
    if waited is None:
        counts.passed += 1
    else:
        counts.add_wait("local" if counts.is_share else "waited", waited)
        if has_hooks():
            from headgate.events import Granted

            context, local = contextvars.copy_context(), counts.is_share
            emit(Granted(*names_of(queue), waited, dict(request.units), context, local))
    if request.units:
        counts.costs.grant(request.units)


def note_refusal(counts: Counts, queue: str, reason: str, waited: float | None = None) -> None:
    """Count an acquire without a permit. `waited`: its seconds in the queue; None: it was in
    none.
    """
    counts.refused[reason] += 1
    if waited is not None:
        counts.add_wait(reason, waited)
    if has_hooks():
        from headgate.events import Refused

        emit(Refused(*names_of(queue), reason, waited or 0.0))


def note_release(queue: str, held: float) -> None:
    """Time a permit that was held, of a limiter that is timed."""
    counts_of(queue).held.add(held)
    if has_hooks():
        from headgate.events import Released

        emit(Released(*names_of(queue), held))


def reason_of(error: BaseException) -> str:
    """The outcome of an acquire that ends with `error`."""
    for kind, reason in REASONS:
        if isinstance(error, kind):
            return reason
    return "cancelled"


REASONS = (
    (QueueFullError, "queue_full"),
    (MaxSleepExceededError, "too_long"),
    (CostExceedsCapacityError, "never"),
    (StoreError, "store_error"),
)


# The calls to servers, by store, server and error ("": it was answered).
STORE_CALLS: dict[tuple[str, str, str], Histogram] = {}


class Server(Protocol):
    @property
    def place(self) -> str: ...


def note_call(store: object, server: Server, outcome: object, seconds: float) -> None:
    """Time a call to a server. `outcome`: its exception, or its reply."""
    error = type(outcome).__name__ if isinstance(outcome, BaseException) else ""
    where = f"{store}", server.place, error
    (STORE_CALLS.get(where) or STORE_CALLS.setdefault(where, Histogram(CALLS))).add(seconds)
    if has_hooks():
        from headgate.events import StoreCalled

        emit(StoreCalled(where[1], seconds, error))


def note_loss(queue: str, fences: list[int]) -> None:
    """Count leases that holders have lost."""
    counts, lost = counts_of(queue), len(fences)
    counts.lost += lost
    if has_hooks():
        from headgate.events import LeaseLost

        for fence in fences:
            emit(LeaseLost(*names_of(queue), fence))
