"""The holders and waiters of one queue in memory, as an operator sees them.

All functions run under the queue's lock. They change nothing.
"""

from __future__ import annotations

from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, cast

from headgate.gate.gate import ONE_EACH
from headgate.stores.members import MOST, Holder, Members, Waiter
from headgate.stores.process_label import own_label

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.gate.gate import Units
    from headgate.stores.memory import waiters
    from headgate.stores.memory.wait_queue import WaitQueue


def members_of(queue: WaitQueue, now: int) -> Members:
    label, declared = own_label(), queue.declared
    held = queue.holders.held()
    each = chain.from_iterable(repeat(units, count) for units, count in held)
    waiting = [cast("waiters.Waiter", it) for it in islice(queue.gate.queue, MOST)]
    return Members(
        tuple(Holder("", label, units_of(units, declared), None) for units in islice(each, MOST)),
        tuple(
            Waiter("", label, units_of(it.request.units, declared), place, None, waited_by(it, now))
            for place, it in enumerate(waiting)
        ),
        sum(count for _, count in held),
        len(queue.gate.queue),
    )


def oldest_wait_of(queue: WaitQueue, now: int) -> float | None:
    first = cast("waiters.Waiter | None", next(iter(queue.gate.queue), None))
    return None if first is None else waited_by(first, now)


def waited_by(waiter: waiters.Waiter, now: int) -> float | None:
    return None if waiter.since is None else max(0, now - waiter.since) / 1_000_000


def units_of(asked: Units, declared: Declaration) -> dict[str, int]:
    """The cost of an acquire, by unit."""
    costs = {unit: asked.get(unit, ONE_EACH.get(unit, 0)) for unit in declared.capacity}
    return {unit: cost for unit, cost in costs.items() if cost}
