"""The counter of a concurrency limit. Twin: concurrency.lua, function for function.
Python alone has `admit`. Lua alone has `numbers` and `restore`.

The store knows which callers hold the permits, and for how long.
"""

from __future__ import annotations

from typing import ClassVar

NEVER = 2**53  # no moment: only a release can make room
# The largest count of anything. The sum of two counts is at most 2^53, which Lua counts exactly.
MOST = 2**52


class ConcurrencyRule:
    __slots__ = ("capacity", "lease", "unit", "used")

    holds: ClassVar[bool] = True

    def __init__(self, unit: str, capacity: int, lease: int) -> None:
        self.unit = unit
        self.capacity = capacity
        self.lease = lease
        self.used = 0

    @property
    def text(self) -> str:
        return f"slots {self.unit} {self.capacity} {self.lease}"

    def open(self, t: int) -> None:
        """Held permits stay held."""

    def ready(self, cost: int, t: int) -> int:
        return t if self.used + cost <= self.capacity else NEVER

    def take(self, cost: int, t: int) -> None:
        self.used += cost

    def admit(self, now: int) -> bool:
        if self.ready(1, now) != now:
            return False
        self.take(1, now)
        return True

    def give(self, cost: int, t: int) -> None:
        self.used = max(0, self.used - cost)

    def settle(self, extra: int, t: int, now: int) -> None:
        """Held permits stay held until they are released."""

    def drain(self, left: int, since: int, now: int) -> None:
        """A remaining budget says nothing about permits that others hold."""

    def ahead(self, total: int, t: int, now: int) -> int:
        """The moment of a release is not known."""
        return t

    def idle_at(self) -> int:
        return NEVER if self.used else 0

    def left(self, t: int) -> int:
        return self.capacity - self.used

    def adopt(self, old: ConcurrencyRule, t: int) -> None:
        """Holders stay holders. After a cut nothing is granted until enough have left (S1)."""
        self.used = old.used
