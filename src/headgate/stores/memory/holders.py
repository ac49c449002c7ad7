"""Who is inside of a line in memory, whatever its limits are and become.

Here lives the count that outlasts a change of limits: who holds a permit of former limits holds it
under those that follow (S1), and what is released was counted. When anybody comes or goes is the
line's to know; all of it happens under its lock.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from headgate.gate.concurrency import ConcurrencyRule
from headgate.gate.gate import Gate

if TYPE_CHECKING:
    from headgate.gate.gate import Units


class Holders:
    """Permits for particular units are counted here by their units, besides what the gate counts of
    them.

    Who entered, or asked for nothing in particular, has one of each: the gate counts them if it
    can, and else `inside` does, which is popped by whoever leaves without the lock.
    """

    __slots__ = ("_gate", "_units", "counted", "inside")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._units: Counter[frozenset[tuple[str, int]]] = Counter()
        self.inside: list[None] = []
        self.put_in(0)

    def add(self, units: Units) -> None:
        """One to whom the gate has just granted `units`, to be held."""
        if units:
            self._units[frozenset(units.items())] += 1
        elif not self.counted:
            self.inside += [None]  # no call: see lock.py

    def add_late(self, units: Units) -> None:
        """One to whom they were granted when nothing was held."""
        gate = self._gate
        for (_, rule), cost in zip(gate.slots, self._slot_costs(units), strict=True):
            rule.take(cost, gate.t, gate.t)
        self.add(units)

    def remove(self, units: Units) -> None:
        """One who has given `units` back to the gate."""
        if not units:
            if not self.counted:
                del self.inside[-1:]
            return
        its = frozenset(units.items())
        self._units[its] -= 1
        if self._units[its] <= 0:
            del self._units[its]

    def take_out(self) -> int:
        """How many have one of each: none of them is counted any more."""
        counted = zip(self._slots(), self._slot_costs({}), self._others(), strict=True)
        number = max((slots.used - others for slots, cost, others in counted if cost), default=0)
        while self.inside:
            with suppress(IndexError):  # somebody leaves this moment
                self.inside.pop()
                number += 1
        return number

    def put_in(self, number: int) -> None:
        """So many have one of each: under the present limits they are counted, and whoever holds
        anything else.
        """
        for slots, cost, others in zip(
            self._slots(), self._slot_costs({}), self._others(), strict=True
        ):
            slots.used = number * cost + others
        self.counted = any(
            rule.holds for rule, _ in self._gate.single
        )  # whether a limit counts who has one of each
        if not self.counted:
            self.inside.extend([None] * number)

    def forget(self) -> None:
        self._units.clear()
        self.put_in(0)

    def _slots(self) -> list[ConcurrencyRule]:
        return [cast(ConcurrencyRule, rule) for _, rule in self._gate.slots]

    def _slot_costs(self, units: Units) -> list[int]:
        costs = self._gate.costs(units)
        return [costs[index] for index, _ in self._gate.slots]

    def _others(self) -> list[int]:
        """What each concurrency limit counts of permits for particular units."""
        sums = [0] * len(self._gate.slots)
        for its, number in self._units.items():
            costs = self._slot_costs(dict(its))
            sums = [total + number * cost for total, cost in zip(sums, costs, strict=True)]
        return sums
