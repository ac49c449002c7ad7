"""The calendar window, on integers. Twin: fixed_window.lua, function for function.
Python alone has `admit`. Lua alone has `numbers` and `restore`.

Fixed windows of `per` microseconds start at `anchor`. With slack, a window closes that much before
its end: the service could count a call of its last moment in the next window.
"""

from __future__ import annotations

from typing import ClassVar

from headgate.gate.concurrency import MOST


class FixedWindowRule:
    """`used` tokens since `start`, which is the later of the window's and the quota's start."""

    __slots__ = ("anchor", "capacity", "per", "slack", "start", "unit", "used")

    holds: ClassVar[bool] = False

    def __init__(
        self, unit: str, amount: int, per: int, anchor: int, slack: int, t: int = 0
    ) -> None:
        self.unit = unit
        self.capacity = amount
        self.per = per
        self.anchor = anchor
        self.slack = slack
        self.open(t)

    @property
    def text(self) -> str:
        return f"quota {self.unit} {self.capacity} {self.per} {self.anchor} {self.slack}"

    def open(self, t: int) -> None:
        """Begin at `t`. Nothing is used of the window that holds `t`."""
        self.start = t
        self.used = 0

    def began(self, t: int) -> int:
        """The start of the window that holds `t`."""
        return t - (t - self.anchor) % self.per

    def refresh(self, t: int) -> None:
        began = self.began(t)
        if began > self.start:
            self.start = began
            self.used = 0

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens are left (T4)."""
        # `used` belongs to the window that holds `start`. An earlier `t` counts as in this window:
        # the gate lets no call pass before `start`.
        running = self.began(self.start)
        began = max(self.began(t), running)
        spent = began == running and self.used + cost > self.capacity
        return began + self.per if spent or t >= began + self.per - self.slack else t

    def take(self, cost: int, t: int) -> None:
        self.refresh(t)
        self.used += cost

    def admit(self, now: int) -> bool:
        if self.ready(1, now) != now:
            return False
        self.take(1, now)
        return True

    def give(self, cost: int, t: int) -> None:
        """Undo a take at `t`, if `start` is not after it (T9), and in the window of `t` (T5)."""
        if self.began(t) <= self.start <= t:
            self.used = max(0, self.used - cost)

    def settle(self, extra: int, t: int, now: int) -> None:
        if extra < 0:
            self.give(-extra, t)
        elif extra > 0:
            self.refresh(now)
            self.used = min(MOST, self.used + extra)

    def drain(self, left: int, since: int, now: int) -> None:
        """If a new window began after `since`, nothing changes."""
        self.refresh(now)
        if self.began(since) == self.began(self.start):
            self.used = max(self.used, self.capacity - left)

    def ahead(self, total: int, t: int, now: int) -> int:
        periods, rest = divmod(total - 1, self.capacity)
        return self.ready(rest + 1, t) + periods * self.per

    def idle_at(self) -> int:
        return self.began(self.start) + self.per if self.used else 0

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.capacity - self.used

    def adopt(self, old: FixedWindowRule, t: int) -> None:
        """The used part of the running window stays used (T9)."""
        old.refresh(t)
        self.start = max(self.began(t), old.start)
        self.used = old.used
