"""The token bucket, on integers. Twin: token_bucket.lua, function for function.

Here lives the arithmetic of `Rate`, smooth or in steps; no clock, no I/O, nothing about queues.

The level is counted in parts of a token. One token is `price` parts, every `tick` microseconds
bring `gain` parts, and `size` parts fill the bucket. A bucket in steps is the same bucket with a
long tick. Nothing is ever divided, so nothing drifts (T11).
"""

from __future__ import annotations

from typing import ClassVar

from headgate.gate.concurrency import MOST

DEBT = 2**51  # microseconds, 71 years: the longest that a debt stands in the way
MARKS = 16  # levels that are remembered, a sixteenth of the bucket apart (S9)


class TokenBucketRule:
    """One bucket: `level` parts at the moment `at`."""

    __slots__ = (
        "at",
        "capacity",
        "gain",
        "grain",
        "level",
        "marks",
        "price",
        "size",
        "start",
        "taken",
        "tick",
        "top",
        "unit",
    )

    holds: ClassVar[bool] = False

    def __init__(
        self, unit: str, capacity: int, price: int, gain: int, tick: int, start: int
    ) -> None:
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
        self.top = 0  # how full the bucket was before it, at most
        self.marks: list[
            tuple[int, int]
        ] = []  # the same of takes before that, where it was fuller: see `note`
        self.grain = self.size // MARKS + 1

    @property
    def text(self) -> str:
        refill = f"{self.price} {self.gain} {self.tick}"
        return f"bucket {self.unit} {self.capacity} {refill} {self.start // self.price}"

    def open(self, t: int) -> None:
        """Begin at `t`, as a new bucket.

        Earlier grants do not belong to this bucket: giving them back returns nothing (T9).
        """
        self.level = self.start
        self.at = self.taken = t
        self.top = self.size
        self.marks = []

    def refresh(self, t: int) -> None:
        """Bring the level up to `t`.

        A full bucket starts its next tick at `t`: no step may stand between two grants (T1).
        """
        ticks = (t - self.at) // self.tick
        if ticks > 0:
            self.level += ticks * self.gain
            self.at += ticks * self.tick
        if self.level >= self.size:
            self.level = self.size
            if t > self.at:
                self.at = t

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens are there (T4).

        Changes nothing.
        """
        need = cost * self.price - self.level
        if need <= 0:
            return t
        return max(t, self.at - (-need // self.gain) * self.tick)

    def take(self, cost: int, t: int, now: int) -> None:
        self.refresh(t)
        self.note(t)
        self.level -= cost * self.price

    def note(self, t: int) -> None:
        """Remember how full the bucket was before the take at `t`: tokens of an earlier take that
        come back could overflow there.

        The marks fall: one that is no higher than a later one says nothing. One that is hardly
        lower than the one before it is taken for as high, and can only keep back too much.
        """
        level, marks = self.level, self.marks
        if level > self.top:
            while marks and marks[-1][1] <= level:
                marks.pop()
            self.top = level
        elif (
            t > self.taken and self.top - level >= self.grain
        ):  # of takes at one moment the first has seen it at its fullest
            marks.append((self.taken, self.top))
            self.top = level
            if len(marks) > MARKS:
                (_, oldest), (moment, old) = marks[:2]
                marks[:2] = [(moment, max(oldest, old))]
        self.taken = t

    def admit(self, now: int) -> bool:
        """Take one token if it is there now: `refresh`, `ready` and `take` in one, because this is
        the hot path.
        """
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
        if self.top - self.grain < level <= self.top:
            self.taken = now
        else:
            self.level = level
            self.note(now)
        self.level = level - self.price
        return True

    def undo(self, parts: int, t: int) -> None:
        """Put back parts of a take at `t`: as many as would be there if it had never taken them.
        The rest would have run over.

        Less than zero are parts that it should have taken: then the bucket has been no fuller than
        the marks say.
        """
        if parts > 0 and t < self.taken:
            levels = [level for moment, level in self.marks if moment > t]
            parts = min(parts, self.size - max([self.top, *levels]))
            self.top += parts
            self.marks = [
                (moment, level + parts if moment > t else level) for moment, level in self.marks
            ]
        self.level = min(self.size, self.level + parts)

    def give(self, cost: int, t: int, now: int) -> None:
        """Undo a take at `t` that was never acted on (T5)."""
        self.undo(cost * self.price, t)

    def settle(self, extra: int, t: int, now: int) -> None:
        """Charge `extra` more tokens for the take at `t`; less than zero gives back.

        A debt is a level below zero.
        """
        self.refresh(now)
        lowest = -min(MOST, DEBT // self.tick * min(self.gain, self.size))
        self.undo(max(-extra * self.price, lowest - self.level), t)

    def drain(self, left: int, since: int, now: int) -> None:
        """At `since` there were no more than `left`: by now there are no more than that and the
        refill since.
        """
        self.refresh(now)
        ticks = -((since - now) // self.tick)
        self.level = min(self.level, left * self.price + ticks * self.gain)

    def ahead(self, total: int, t: int, now: int) -> int:
        """When `total` tokens will have come, one after another from `t` on: the estimate for the
        end of a queue.

        Changes nothing: `t` may be far away, and the limits be others by then.
        """
        ticks = max(0, (t - self.at) // self.tick)
        level, at = self.level + ticks * self.gain, self.at + ticks * self.tick
        if level >= self.size:
            level, at = self.size, max(t, at)
        need = total * self.price - level
        return t if need <= 0 else at - (-need // min(self.gain, self.size)) * self.tick

    def idle_at(self) -> int:
        """From this moment on the bucket is as full as a new one (T12)."""
        return self.at - (-(self.size - self.level) // self.gain) * self.tick

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.level // self.price

    def pace(self) -> float:
        """Tokens a microsecond."""
        return self.gain / self.price / self.tick

    def adopt(self, old: TokenBucketRule, t: int) -> None:
        """Go on from the level of a bucket with other numbers: as many tokens, and no extra ones
        (T9).

        The elapsed part of the running step is the part that the former rate would have brought by
        now. So quick successive changes postpone no step for ever. The rest of the step comes at
        the new rate.
        """
        old.refresh(t)
        self.level = min(self.size, int(old.level / old.price * self.price // 1))
        self.at = t - min(self.tick - 1, int((t - old.at) * (old.pace() / self.pace()) // 1))
        self.taken = old.taken
        self.top = self.size  # earlier takes keep the parts that they did not need
