"""The counts and states of all limiters of this process, for the exporters. Nothing is declared.

An exporter calls `switch_on` first. A name that is used in two stores is one name here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from headgate.counts import (
    ALL,
    MOST_LABELS,
    OTHER,
    TELEMETRY,
    Counts,
    Histogram,
    Place,
    exportable,
    place_of,
    set_label,
    time_permits,
)
from headgate.gate.gate import ONE_EACH
from headgate.keys import names_of
from headgate.stores.fallback import modes_of
from headgate.stores.memory.store import STORES as MEMORY_STORES
from headgate.stores.memory.store import recount_all
from headgate.stores.status import LimitStatus, Status
from headgate.threads import snapshot

KeyLabel: TypeAlias = Callable[[str, str], str | None]
TIMEOUT = 1.0  # seconds for the status of all names of a store
GRANTED = "passed", "waited"
_exporters = 0


@dataclass(frozen=True)
class Acquires:
    """The acquires of one name since the process began, or of the keys with one `label`."""

    name: str
    label: str  # of a key; "": the name itself, and its keys without a label
    outcomes: dict[str, int]
    cost: dict[str, int]  # by unit: granted, and charged by settlements
    returned: dict[str, int]  # by unit: given back by settlements
    waits: dict[str, Histogram]  # by outcome
    held: Histogram
    lost: int
    pauses: dict[str, int]  # by reason
    refusals: dict[tuple[int, str], int]  # of services, by status and verdict


@dataclass
class Usage:
    """The permits that this process holds under a name, and its waiters."""

    permits: int = 0
    waiters: int = 0


@dataclass(frozen=True)
class Budget:
    """The status of a name, or of a key with a `label`, in its store."""

    name: str
    label: str
    status: Status


@dataclass(frozen=True)
class StoreState:
    """A store with servers.

    `modes`: each `on_store_error` of its limiters. `calls`: the durations of the calls to its
    servers, by server and error ("": answered).
    """

    name: str
    available: bool
    modes: tuple[str, ...] = ("raise",)
    calls: dict[tuple[str, str], Histogram] = field(default_factory=dict)


def switch_on(keys: KeyLabel | None = None, use_time: bool = False) -> None:
    """Begin to count, also in the fast path of memory queues.

    `keys` gives the label of a key from its name and the key. None: no key has counts of its own.
    `use_time`: time the permits of all limiters that are made from now on.
    The exporters of a process share the `keys` of the last call.
    """
    global _exporters
    _exporters += 1
    if use_time:
        time_permits(True)
    set_label(keys)
    TELEMETRY.on = True
    recount_all()


def switch_off() -> None:
    """Undo one `switch_on`. The last exporter that leaves ends the counting."""
    global _exporters
    _exporters = max(0, _exporters - 1)
    if _exporters:
        return
    time_permits(False)
    set_label(None)
    TELEMETRY.on = False
    recount_all()


def stores() -> list[Any]:
    return [*snapshot(MEMORY_STORES), *redis_stores()]


def redis_stores() -> list[Any]:
    module = redis_module()
    return [] if module is None else snapshot(module.STORES)


def redis_module() -> Any:
    """The module of the Redis store, if the program uses it: this one does not import redis-py."""
    return sys.modules.get("headgate.stores.redis.store")


# Reading ----------------------------------------------------------------------------------------


def read_acquires() -> list[Acquires]:
    units, counts = units_by_place(), ALL.copy()
    # While the store is away, a name may have counts of its share alone.
    names = dict.fromkeys(place._replace(is_share=False) for place in counts)
    return [
        merged(
            place,
            counts.get(place) or Counts(),
            counts.get(place._replace(is_share=True)),
            units.get(place, set()),
        )
        for place in names
    ]


def units_by_place() -> dict[Place, set[str]]:
    """The units that the limits of each name count now."""
    units: dict[Place, set[str]] = {}
    found = [each for store in snapshot(MEMORY_STORES) for each in store.declarations()]
    for store in redis_stores():
        found += [(queue.name, queue.declared) for queue in store.queues()]
    for queue, declared in found:
        place = place_of(*names_of(queue))
        units.setdefault(place, set()).update(declared.capacity)
    return units


def merged(place: Place, counts: Counts, share: Counts | None, units: set[str]) -> Acquires:
    """The counts of a name. Grants of its share of the limits have the outcome "local"."""
    both = [counts] if share is None else [counts, share]
    for each in both:
        each.collect_all()
        each.costs.units |= units  # kept, because a store forgets the limits of an idle name
    outcomes, waits = counts.outcomes(), dict(counts.waits)
    if share is not None:
        for outcome, count in share.outcomes().items():
            outcomes["local" if outcome in GRANTED else outcome] += count
        for outcome, times in share.waits.copy().items():
            total = waits[outcome] = Histogram(times.bounds)  # a new one: the parts go on counting
            for part in filter(None, (counts.waits.get(outcome), times)):
                total.include(part)
    return Acquires(
        name=place.name,
        label=place.label,
        outcomes=outcomes,
        cost=summed(map(cost_of, both)),
        returned=summed(each.costs.returned for each in both),
        waits=waits,
        held=counts.held,
        lost=counts.lost,
        pauses=dict(counts.pauses),
        refusals=dict(counts.refusals),
    )


def summed(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    sums = Counter[str]()
    for part in parts:
        sums.update(part)
    return dict(sums)


def cost_of(counts: Counts) -> dict[str, int]:
    """The cost by unit. An acquire takes one of each unit in ONE_EACH that it does not name."""
    granted = counts.passed + counts.waited
    costs = counts.costs
    cost = dict(costs.charged)
    for unit in costs.units | costs.named.keys():
        named, acquires = costs.named.get(unit, (0, 0))
        unnamed = (granted - acquires) * ONE_EACH.get(unit, 0)
        cost[unit] = cost.get(unit, 0) + named + unnamed
    return cost


def read_usage() -> dict[str, Usage]:
    """The present usage by this process, by name."""
    found: dict[str, Usage] = {}
    for store in stores():
        for queue, permits, waiters in store.usages():
            usage = found.setdefault(place_of(*names_of(queue)).name, Usage())
            usage.permits += permits
            usage.waiters += waiters
    return found


def read_budgets() -> list[Budget]:
    """The status of each name that has limits, and of each key with a label.

    The servers have TIMEOUT for their answers. A name without one is left out.
    """
    is_shown = make_filter()
    found = [status for store in snapshot(MEMORY_STORES) for status in store.statuses(is_shown)]
    if redis := redis_stores():
        found += redis_module().read_statuses(redis, is_shown, TIMEOUT)
    return [Budget(*place_of(*names_of(queue))[:2], status) for queue, status in found]


def make_filter() -> Callable[[str], bool]:
    """A function that says whether the budget of a queue is read: a status is work for a server.

    Any number of keys may share a label, so it chooses at most MOST_LABELS keys of a name. Names
    and labels that are counted as OTHER have no budgets.
    """
    keys: Counter[str] = Counter()

    def is_shown(queue: str) -> bool:
        name, key = names_of(queue)
        place = place_of(name, key)
        if place.name != name:
            return False
        if key is None:
            return True
        if place.label in ("", OTHER):
            return False
        keys[name] += 1
        return keys[name] <= MOST_LABELS

    return is_shown


class Fleet(NamedTuple):
    """The budgets, as exporters show them. `waiting` and `paused` are by name and label."""

    limits: dict[tuple[str, str, str, str], LimitStatus]  # by name, label, unit and kind
    waiting: dict[tuple[str, str], int]
    paused: dict[tuple[str, str], float]


def read_fleet() -> Fleet:
    return fleet_of(read_budgets())


def fleet_of(budgets: Iterable[Budget]) -> Fleet:
    """Of several limits with the same name, label, unit and kind, the fullest is kept."""
    fleet = Fleet({}, {}, {})
    for budget in budgets:
        place, status = (budget.name, budget.label), budget.status
        fleet.waiting[place] = fleet.waiting.get(place, 0) + status.waiting
        fleet.paused[place] = max(fleet.paused.get(place, 0.0), status.paused)
        for limit in status.limits:
            where = (*place, limit.unit, limit.kind.lower())
            fleet.limits[where] = max(limit, fleet.limits.get(where, limit), key=fullness)
    return fleet


def fullness(limit: LimitStatus) -> float:
    return limit.used / max(1, limit.capacity)


def read_stores() -> list[StoreState]:
    """One for each name: a program may reach a store in two ways, such as with other timeouts."""
    found: dict[str, StoreState] = {}
    for store in redis_stores():
        name, modes = f"{store}", set(modes_of(store))
        available = store.available
        if name in found:
            available, modes = available and found[name].available, modes | set(found[name].modes)
        # `calls` has those of all stores with this name.
        found[name] = StoreState(name, available, tuple(sorted(modes)), store.calls())
    return list(found.values())


def read_estimates() -> dict[tuple[str, str], float]:
    """The error of the token estimates, by model and kind ("input", "output"): a share of the use.

    If several `Estimates` know a model, the largest error counts.
    """
    module = sys.modules.get("headgate.http.token_estimates")
    found: dict[tuple[str, str], float] = {}
    for estimates in [] if module is None else snapshot(module.ALL):
        for learned in estimates.status():
            errors = {"input": learned.input_error, "output": learned.output_error}
            for kind, error in errors.items():
                if error is not None:
                    where = exportable(learned.model), kind
                    found[where] = max(error, found.get(where, 0.0))
    return found
