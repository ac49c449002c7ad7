"""The exact sliding window, on integers. Twin: sliding_window.lua, function for function.
Python alone has `admit`. Lua alone has `numbers`, `restore`, `each` and `recount`.

A log of (moment, cost) for one period, merged by moment. A grant at `t` counts until `t + per`, so
no half-open interval of `per` microseconds ever holds more than `amount`.
"""

from __future__ import annotations

from collections import OrderedDict
from math import ceil
from typing import ClassVar

from headgate.gate.concurrency import MOST

STRIDE = 100  # tokens whose release an estimate looks up one by one


class SlidingWindowRule:
    """`used` tokens are in the log, whose moments never decrease."""

    __slots__ = ("capacity", "gone", "log", "per", "unit", "used")

    holds: ClassVar[bool] = False

    def __init__(self, unit: str, amount: int, per: int) -> None:
        self.unit = unit
        self.capacity = amount
        self.per = per
        self.used = 0
        # When tokens last came free: an entry expired, or the limits changed. For `drain`.
        self.gone = 0
        self.log: OrderedDict[int, int] = OrderedDict()

    @property
    def text(self) -> str:
        return f"window {self.unit} {self.capacity} {self.per}"

    def open(self, t: int) -> None:
        self.used = self.gone = 0
        self.log = OrderedDict()

    def refresh(self, t: int) -> None:
        """Forget the entries that no longer count at `t`."""
        log = self.log
        while log:
            moment, cost = next(iter(log.items()))
            if moment + self.per > t:
                return
            del log[moment]
            self.used -= cost
            self.gone = moment + self.per

    def freed(self, need: int) -> int:
        """The moment at which `need` of the tokens in the log no longer count."""
        moment = 0
        for moment, cost in self.log.items():  # noqa: B007 - its last moment is the answer
            need -= cost
            if need <= 0:
                break
        return moment + self.per

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens fit (T4)."""
        need = self.used + cost - self.capacity
        return t if need <= 0 else max(t, self.freed(need))

    def take(self, cost: int, t: int) -> None:
        self.refresh(t)
        self.log[t] = self.log.get(t, 0) + cost
        self.used += cost

    def admit(self, now: int) -> bool:
        if self.ready(1, now) != now:
            return False
        self.take(1, now)
        return True

    def give(self, cost: int, t: int) -> None:
        """Undo a take at `t` (T5)."""
        if t in self.log:
            back = min(cost, self.log[t])
            self.log[t] -= back
            self.used -= back

    def settle(self, extra: int, t: int, now: int) -> None:
        """Charge at the latest moment of the log. Less than zero gives back at `t`."""
        if extra < 0:
            self.give(-extra, t)
        elif extra > 0:
            latest = next(reversed(self.log), now)
            self.take(min(extra, MOST - self.used), max(now, latest))

    def drain(self, left: int, since: int, now: int) -> None:
        """If entries expired after `since`, nothing changes: some tokens came free since then."""
        self.refresh(now)
        if self.gone <= since:
            self.settle(max(0, self.capacity - self.used - left), now, now)

    def ahead(self, total: int, t: int, now: int) -> int:
        """Exact for the next `STRIDE` tokens to be freed, then at the average pace (S9)."""
        # Not at `t`: it may be far in the future, and the limits may change before it.
        self.refresh(now)
        periods, rest = divmod(total - 1, self.capacity)
        need = self.used + rest + 1 - self.capacity
        beyond = max(0, need - STRIDE)
        pace = ceil(beyond / self.capacity * self.per)
        return (t if need <= 0 else max(t, self.freed(need - beyond) + pace)) + periods * self.per

    def idle_at(self) -> int:
        return next(reversed(self.log)) + self.per if self.log else 0

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.capacity - self.used

    def adopt(self, old: SlidingWindowRule, t: int) -> None:
        """Earlier grants still count, for the new period (T9)."""
        self.log, self.used, self.gone = old.log, old.used, t
