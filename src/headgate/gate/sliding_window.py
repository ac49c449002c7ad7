"""The sliding window, on integers. Twin: sliding_window.lua, function for function. Python alone
has `admit`, `freed_at` and `drop_skipped`. Lua alone has `numbers`, `restore` and the local
functions of its log.

A log of (moment, cost) for one period, merged by moment. A grant at `t` counts until `t + per`, so
no half-open interval of `per` microseconds ever holds more than `amount`.

The log has at most 128 entries, and is exact as long as they suffice. When it is full, entries
merge by cells: equal parts of the time, of which a period overlaps 125 at most. The entries of each
cell become one, at the latest moment among them. For one period from then on, a new entry merges
with the latest one of its cell. A merged entry counts for up to a cell longer. So the window never
holds more than `amount`, and a caller waits for one cell longer at most.
"""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

from headgate.gate.concurrency import MOST

CELLS = 124  # of a period: from 4 ms on, a cell is shorter than per/120
# The log is a flat list: the moment and cost of an entry are two numbers.
FULL = 2 * 127  # numbers in the log; the latest entry is beside it
MOST_SKIPPED = 2 * 16  # numbers in the log that may be of forgotten entries
# The time of a cell, by period. The windows of many keys share the number.
cell_of = lru_cache(maxsize=256)(lambda per: -(-per // CELLS))


class SlidingWindowRule:
    """`used` tokens are in the log, whose moments never decrease."""

    __slots__ = (
        "capacity",
        "cell",
        "freed_earlier",
        "last",
        "log",
        "merges_until",
        "opened",
        "pending",
        "per",
        "skipped",
        "unit",
        "used",
    )

    holds: ClassVar[bool] = False

    def __init__(self, unit: str, amount: int, per: int, t: int = 0) -> None:
        self.unit = unit
        self.capacity = amount
        self.per = per
        self.cell = cell_of(per)
        self.open(t)

    @property
    def text(self) -> str:
        return f"window {self.unit} {self.capacity} {self.per}"

    def open(self, t: int) -> None:
        """Begin at `t`. Giving back an earlier grant returns nothing (T9)."""
        # Moment and cost of each entry but the latest, oldest first. It is empty if `last` is 0.
        # The first `skipped` numbers are those of forgotten entries: to delete each entry at once
        # would move all others.
        log: list[int] = []
        # `last` and `pending` are the moment and cost of the latest entry.
        # One statement: an exception of a signal handler changes nothing or finds all changed.
        self.log, self.skipped, self.used, self.last, self.pending = log, 0, 0, 0, 0
        # `freed_at` without the skipped entries, and when the window began.
        self.freed_earlier, self.opened = 0, t
        self.merges_until = 0  # new entries merge before this moment

    def refresh(self, t: int) -> None:
        """Forget the entries that no longer count at `t`."""
        log, past, end, spent = self.log, t - self.per, self.skipped, 0
        if self.last <= past:
            if self.last > 0:
                freed_at = max(self.freed_at, self.last + self.per)
                self.log, self.skipped, self.used, self.last, self.pending = [], 0, 0, 0, 0
                self.freed_earlier = freed_at
            return
        while end < len(log) and log[end] <= past:
            spent += log[end + 1]
            end += 2
        self.skipped, self.used = end, self.used - spent
        if end >= MOST_SKIPPED:
            self.drop_skipped()

    @property
    def freed_at(self) -> int:
        """When tokens last came free, as an entry expired or the limits changed.

        `give` and `drain` need it.
        """
        if not self.skipped:
            return self.freed_earlier
        return max(self.freed_earlier, self.log[self.skipped - 2] + self.per)

    def drop_skipped(self) -> None:
        freed_at = self.freed_at
        # No signal handler runs from here on, because nothing is called.
        del self.log[: self.skipped]
        self.skipped, self.freed_earlier = 0, freed_at

    def freed(self, need: int) -> int:
        """The moment at which `need` of the tokens in the log no longer count."""
        log = self.log
        for at in range(self.skipped, len(log), 2):
            need -= log[at + 1]
            if need <= 0:
                return log[at] + self.per
        return self.last + self.per

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens fit (T4)."""
        need = self.used + cost - self.capacity
        return t if need <= 0 else max(t, self.freed(need))

    def take(self, cost: int, t: int) -> None:
        self.refresh(t)
        last, pending = self.last, self.pending
        if t != last > 0:  # there is a latest entry, of another moment
            if len(self.log) == FULL:
                if self.skipped:
                    self.drop_skipped()
                else:
                    self.merge(t)
            if t >= self.merges_until or t // self.cell != last // self.cell:
                log = self.log
                # No signal handler runs from here on, because nothing is called.
                log += last, pending  # changes `self.log` in place
                pending = 0
        self.last, self.pending, self.used = t, pending + cost, self.used + cost

    def merge(self, t: int) -> None:
        """Merge the entries of each cell. Until `t + per`, new ones join `last` in its cell."""
        merged: list[int] = []
        for at in range(0, len(self.log), 2):
            moment, cost = self.log[at : at + 2]
            if merged and merged[-2] // self.cell == moment // self.cell:
                merged[-2:] = moment, merged[-1] + cost
            else:
                merged += moment, cost
        self.log, self.merges_until = merged, t + self.per

    def admit(self, now: int) -> bool:
        """`refresh`, `ready` and `take` of one token, because this is the hot path.

        It forgets entries only when it needs their room.
        """
        used = self.used
        if used >= self.capacity:
            log, skipped = self.log, self.skipped
            # Forget the oldest entry, if `skipped` is below both bounds. `refresh` forgets all of
            # them, and drops those that are skipped.
            if MOST_SKIPPED > skipped < len(log) and log[skipped] + self.per <= now:
                used -= log[skipped + 1]
                self.skipped, self.used = skipped + 2, used
            if used >= self.capacity:
                self.refresh(now)
                used = self.used
                if used >= self.capacity:
                    return False
        last, pending = self.last, self.pending
        if now != last > 0:  # as in `take`
            log = self.log
            if len(log) == FULL:
                self.take(1, now)
                return True
            if now >= self.merges_until or now // self.cell != last // self.cell:
                log += last, pending
                pending = 0
        self.last, self.pending, self.used = now, pending + 1, used + 1
        return True

    def give(self, cost: int, t: int) -> None:
        """Undo a take at `t` (T5). Its entry may have merged into the next one of its cell."""
        # It has no entry if the window began later, or if it counts no longer.
        if t < self.opened or t + self.per <= self.freed_at:
            return
        log, at = self.log, self.skipped
        while at < len(log) and log[at] < t:
            at += 2
        moment, there = log[at : at + 2] or (self.last, self.pending)
        if not self.entry_has(moment, t):
            return
        back = min(cost, there)
        if at < len(log):
            log[at + 1] -= back
        else:
            self.pending -= back
        self.used -= back

    def entry_has(self, moment: int, t: int) -> bool:
        """Whether the entry at `moment`, the first one from `t` on, has the take at `t`."""
        same_cell = moment // self.cell == t // self.cell
        return moment == t or (moment > t and same_cell and t < self.merges_until)

    def settle(self, extra: int, t: int, now: int) -> None:
        """Charge at the latest moment of the log. Less than zero gives back at `t`."""
        if extra < 0:
            self.give(-extra, t)
        elif extra > 0:
            self.take(min(extra, MOST - self.used), max(now, self.last))

    def drain(self, left: int, since: int, now: int) -> None:
        """If entries expired after `since`, nothing changes: some tokens came free since then."""
        self.refresh(now)
        if self.freed_at <= since:
            self.settle(max(0, self.capacity - self.used - left), now, now)

    def ahead(self, total: int, t: int, now: int) -> int:
        # Refresh at `now`. `t` may be far in the future, and the limits may change before it.
        self.refresh(now)
        periods, rest = divmod(total - 1, self.capacity)
        return self.ready(rest + 1, t) + periods * self.per

    def idle_at(self) -> int:
        return self.last + self.per if self.last else 0

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.capacity - self.used

    def adopt(self, old: SlidingWindowRule, t: int) -> None:
        """Earlier grants still count, for the new period (T9)."""
        self.log, self.skipped, self.used = old.log[old.skipped :], 0, old.used
        self.last, self.pending = old.last, old.pending
        self.freed_earlier, self.opened = t, old.opened
        self.merges_until = old.merges_until if self.per == old.per else 0
