"""The held permits of one queue. They count under all later limits (S1 in docs/promises.md).

All methods run under the queue's lock. The fast path uses `inside` and `pool` without it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from headgate.gate.concurrency import ConcurrencyRule
    from headgate.gate.gate import Gate, Units
    from headgate.stores.memory.waiters import Waiter

T = TypeVar("T")
A = TypeVar("A")


class Holders:
    """The permits that are held, and the pool of those that were released and still count as held.

    The rules of concurrency limits count the units in use. Limits that are declared later also
    count the present permits, so their number must be known:

    - A usual permit has one of each unit. If a limit counts it (`counted`), the number of usual
      permits follows from the rule of that limit. Otherwise `inside` has an entry for each.
    - `_units` has the numbers of all other permits, by their units.
    """

    __slots__ = ("_gate", "_uncounted", "_units", "counted", "inside", "pool")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._units: Counter[frozenset[tuple[str, int]]] = Counter()
        # The number of usual permits, between `uncount` and `count_again`. None: they are counted.
        self._uncounted: int | None = 0
        self.counted = False  # whether a limit counts the usual permits
        self.inside: list[None] = []
        self.pool: list[None] = []  # a caller takes one and asks no gate: see fast_path.py
        self.count_again()

    def all_or_nothing(self, change: Callable[[A], T], argument: A) -> T:
        """`change(argument)`. An exception before its end leaves the counts as they were.

        `change` is written in Python, not in C: no signal handler runs when it returns.
        """
        holding = self._gate.rules.holding
        before = [rule.used for rule in holding] if holding else []
        try:
            return change(argument)
        except BaseException:
            for rule, used in zip(holding, before, strict=True):
                rule.used = used
            raise

    def add(self, units: Units) -> None:
        if units:
            self._units[frozenset(units.items())] += 1
        elif not self.counted:
            self.inside += [None]  # no call: see lock.py

    def add_late(self, units: Units) -> None:
        """Count a permit that was granted when no limit counted holders."""
        t = self._gate.t
        for rule, cost in zip(self._gate.rules.holding, self._slot_costs(units), strict=True):
            rule.take(cost, t)
        self.add(units)

    def count_late(self, waiter: Waiter) -> None:
        """Count a block as a holder. At its grant no limit counted holders."""
        self.all_or_nothing(self.add_late, {})
        waiter.holds = True

    def remove(self, units: Units) -> None:
        """Stop counting a permit whose units the gate already has back."""
        if not units:
            if not self.counted:
                del self.inside[-1:]
            return
        its = frozenset(units.items())
        self._units[its] -= 1
        if self._units[its] <= 0:
            del self._units[its]

    def give_back(self, units: Units) -> None:
        if units or not self.counted:
            self.remove(units)
        rules = self._gate.rules
        if not units and len(rules.slots) == 1:  # a single step needs no `all_or_nothing`
            ((index, rule),) = rules.slots
            rule.give(rules.usual[index], 0)  # a ConcurrencyRule ignores the time
        else:
            self.all_or_nothing(self._gate.release, units)

    def empty_pool(self) -> None:
        """Return the permits of the pool to the gate, before it decides anything."""
        while self.pool:
            try:
                self.pool.pop()
                self.give_back({})
            except IndexError:  # another thread has entered with it
                return
            except BaseException:
                self.pool.append(None)
                raise

    def held(self) -> list[tuple[Units, int]]:
        """The units of the held permits, each with the number of such permits."""
        usual = self._usual() + len(self.inside) - len(self.pool)
        return [({}, max(0, usual)), *((dict(its), count) for its, count in self._units.items())]

    def _usual(self) -> int:
        """The number of usual permits that limits count."""
        # Their cost is 1 or 0. Each limit where it is 1 gives the same number.
        return max((rule.used - others for rule, cost, others in self._uses() if cost), default=0)

    def uncount(self) -> int:
        """Stop counting the usual permits, and return their number."""
        self._uncounted = self._usual()
        while self.inside:
            try:
                self.inside.pop()
            except IndexError:  # a caller leaves this moment
                break
            except BaseException:
                self.inside += [None]
                raise
            self._uncounted += 1
        return self._uncounted

    def count_again(self) -> None:
        """Count under the present limits what `uncount` no longer counts."""
        number = self._uncounted
        if number is None:
            return
        for rule, cost, others in self._uses():
            rule.used = number * cost + others
        self.counted = any(rule.holds for rule, _ in self._gate.rules.single)
        # No call comes between these lines, so an interrupt does not count a permit twice.
        self._uncounted = None
        if not self.counted:
            self.inside += [None] * number

    def forget(self) -> None:
        """In the child of a fork: the permits are the parent's.

        Code without the lock may go on with the old pool. So that one is emptied and replaced.
        """
        self.pool.clear()
        self.pool = []
        self._units.clear()
        self._uncounted = 0
        self.count_again()

    def _slot_costs(self, units: Units) -> list[int]:
        rules = self._gate.rules
        costs = rules.costs(units)
        return [costs[index] for index, _ in rules.slots]

    def _uses(self) -> zip[tuple[ConcurrencyRule, int, int]]:
        """Each concurrency limit, with the cost of a usual permit and the total of all others."""
        sums = [0] * len(self._gate.rules.slots)
        for its, number in self._units.items():
            costs = self._slot_costs(dict(its))
            sums = [total + number * cost for total, cost in zip(sums, costs, strict=True)]
        return zip(self._gate.rules.holding, self._slot_costs({}), sums, strict=True)
