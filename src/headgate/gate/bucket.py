"""The token bucket, on integers. Twin: bucket.lua, function for function.

Here lives the arithmetic of `Rate`, smooth or in steps; no clock, no I/O, nothing about queues.

The level is counted in parts of a token: one token is `price` parts, every `tick` microseconds bring `gain` parts, and `size`
parts fill the bucket. A bucket in steps is the same bucket with a long tick. Nothing is ever divided, so nothing drifts (T11).
"""

from __future__ import annotations

from typing import ClassVar

from headgate.gate.slots import MOST

DEBT = 2**51  # microseconds, 71 years: the longest that a debt stands in the way


class Bucket:
    """One bucket: `level` parts at the moment `at`."""

    __slots__ = ("at", "capacity", "gain", "level", "peak", "price", "size", "start", "taken", "tick", "unit")

    holds: ClassVar[bool] = False

    def __init__(self, unit: str, capacity: int, price: int, gain: int, tick: int, start: int) -> None:
        self.unit = unit
        self.capacity = capacity
        self.price = price
        self.gain = gain
        self.tick = tick
        self.size = capacity * price
        self.start = start * price
        self.level = self.start
        self.at = 0
        self.taken = 0  # the moment of the last take
        self.peak = 0  # the highest level before a take, over the bookings that still lie ahead

    @property
    def text(self) -> str:
        return f"bucket {self.unit} {self.capacity} {self.price} {self.gain} {self.tick} {self.start // self.price}"

    def open(self, t: int) -> None:
        self.at = t

    def refresh(self, t: int) -> None:
        """Bring the level up to `t`. A full bucket starts its next tick at `t`: no step may stand between two grants (T1)."""
        ticks = (t - self.at) // self.tick
        if ticks > 0:
            self.level += ticks * self.gain
            self.at += ticks * self.tick
        if self.level >= self.size:
            self.level = self.size
            if t > self.at:
                self.at = t

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens are there (T4). Changes nothing."""
        need = cost * self.price - self.level
        if need <= 0:
            return t
        return max(t, self.at - (-need // self.gain) * self.tick)

    def take(self, cost: int, t: int, now: int) -> None:
        self.refresh(t)
        level = self.level
        if self.taken <= now or self.peak < level:
            self.peak = level
        self.taken = t
        self.level = level - cost * self.price

    def admit(self, now: int) -> bool:
        """Take one token if it is there now: `refresh`, `ready` and `take` in one, because this is the hot path."""
        level, at, size = self.level, self.at, self.size
        if now > at:
            ticks = (now - at) // self.tick
            level += ticks * self.gain
            at += ticks * self.tick
        if level >= size:
            level = size
            if now > at:
                at = now
        self.at = at
        if level < self.price:
            self.level = level
            return False
        if self.taken <= now or self.peak < level:
            self.peak = level
        self.taken = now
        self.level = level - self.price
        return True

    def give(self, cost: int, t: int, now: int) -> None:
        """Undo a take at `t` that was never acted on (T5).

        The last take is undone in full. With bookings behind it, what it left would have overflowed at the highest of them:
        the room that was above that peak comes back, and no less than what has not come since. A take of the past that others
        followed stays taken.
        """
        parts = cost * self.price
        if t != self.taken:
            came = -((t - self.taken) // self.tick) * self.gain
            parts = max(min(parts, self.size - self.peak), parts - came) if t > now else 0
            self.peak = min(self.size, self.peak + parts)
        self.level = min(self.size, self.level + parts)

    def settle(self, extra: int, t: int, now: int) -> None:
        """Charge `extra` more tokens for the take at `t`; less than zero gives back. A debt is a level below zero.

        With bookings ahead, what comes back would have overflowed at the highest of them, as in `give`.
        """
        self.refresh(now)
        parts = -extra * self.price
        if parts > 0 and self.taken > now:
            parts = min(parts, self.size - self.peak)
            self.peak += parts
        lowest = -min(MOST, DEBT // self.tick * min(self.gain, self.size))
        self.level = max(lowest, min(self.size, self.level + parts))

    def ahead(self, total: int, t: int) -> int:
        """When `total` tokens will have come, one after another: the estimate for the end of a queue."""
        self.refresh(t)
        need = total * self.price - self.level
        return t if need <= 0 else self.at - (-need // min(self.gain, self.size)) * self.tick

    def idle_at(self) -> int:
        """From this moment on the bucket is as full as a new one (T12)."""
        return self.at - (-(self.size - self.level) // self.gain) * self.tick

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.level // self.price

    def adopt(self, old: Bucket, t: int) -> None:
        """Go on from where a bucket of other numbers stood: as many tokens, nothing minted (T9)."""
        old.refresh(t)
        self.level = min(self.size, int(old.level / old.price * self.price // 1))
        self.at = max(t, old.at)
        self.taken = old.taken
        self.peak = self.size
