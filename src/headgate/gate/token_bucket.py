"""The token bucket, on integers. Twin: token_bucket.lua, function for function.
Python alone has `admit`. Lua alone has `numbers` and `restore`.

The level is counted in parts of a token. One token is `price` parts, every `tick` microseconds
bring `gain` parts, and `size` parts fill the bucket. A bucket in steps is the same bucket with a
long tick. Nothing is ever divided, so nothing drifts (T11).

`-(-a // b)` is `a / b` rounded up: `ceil` in the Lua twin. A function for it would cost time.
"""

from __future__ import annotations

from typing import ClassVar

from headgate.gate.concurrency import MOST

DEBT = 2**51  # microseconds, 71 years: the longest that a debt stands in the way
MARKS = 16  # of a bucket, at most (S9). Their levels are a sixteenth of its size apart: see `note`


class TokenBucketRule:
    """`level` parts at the moment `at`."""

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
        self, unit: str, capacity: int, price: int, gain: int, tick: int, start: int, t: int = 0
    ) -> None:
        self.unit = unit
        self.capacity = capacity
        self.price = price
        self.gain = gain
        self.tick = tick
        self.size = capacity * price
        self.start = start * price
        self.grain = self.size // MARKS + 1
        self.open(t)

    @property
    def text(self) -> str:
        refill = f"{self.price} {self.gain} {self.tick}"
        return f"bucket {self.unit} {self.capacity} {refill} {self.start // self.price}"

    def open(self, t: int) -> None:
        """Begin at `t`. Giving back an earlier grant returns nothing (T9)."""
        marks: list[tuple[int, int]] = []  # of takes: the moment, and `top` then; see `note`
        self.level, self.marks = self.start, marks
        self.at = self.taken = t  # `taken`: the moment of the last take
        self.top = self.size  # the highest level before a take since the newest mark

    def refresh(self, t: int) -> None:
        """A full bucket starts its next tick at `t`.

        Otherwise a tick soon after a grant from a full bucket would add tokens too early (T1).
        """
        ticks = (t - self.at) // self.tick
        if ticks > 0:
            # One statement: if a signal handler raises in a multiplication, neither changes.
            self.level, self.at = self.level + ticks * self.gain, self.at + ticks * self.tick
        if self.level >= self.size:
            self.level = self.size
            if t > self.at:
                self.at = t

    def ready(self, cost: int, t: int) -> int:
        """The first moment at or after `t` at which `cost` tokens are there (T4)."""
        need = cost * self.price - self.level
        if need <= 0:
            return t
        return max(t, self.at + -(-need // self.gain) * self.tick)

    def take(self, cost: int, t: int) -> None:
        self.refresh(t)
        self.note(t)
        self.level -= cost * self.price

    def note(self, t: int) -> None:
        """Remember how full the bucket was before the take at `t`, for `undo`.

        An undone take would have left more tokens for each later take, but never more than the
        bucket holds. So `undo` needs the highest level before any later take. `top` is an upper
        bound for the takes since the newest mark. The level of a mark is one for the takes up to
        its moment, and after the mark before. Each mark is lower than the one before. A drop of
        less than `grain` makes no mark: then an undo may return too little, never too much.
        """
        level, marks = self.level, self.marks
        if level > self.top:
            while marks and marks[-1][1] <= level:
                marks.pop()
            self.top = level
        # Of several takes at one moment, only the first counts: the bucket was fullest before it.
        elif t > self.taken and self.top - level >= self.grain:
            marks.append((self.taken, self.top))
            self.top = level
            if len(marks) > MARKS:
                (_, oldest), (moment, old) = marks[:2]
                marks[:2] = [(moment, max(oldest, old))]
        self.taken = t

    def admit(self, now: int) -> bool:
        """`refresh`, `ready` and `take` of one token, because this is the hot path."""
        level, elapsed = self.level, now - self.at
        if self.tick == 1 and elapsed > 0:
            level += elapsed * self.gain
            self.at = now
        elif elapsed >= self.tick:
            ticks = elapsed // self.tick
            level += ticks * self.gain
            self.at += ticks * self.tick
        if level >= self.size:
            level = self.size
            if elapsed > 0:
                self.at = now
        if level < self.price:
            self.level = level
            return False
        if 0 <= self.top - level < self.grain:
            self.taken = now  # `note` would do nothing else
        else:
            self.level = level
            self.note(now)
        self.level = level - self.price
        return True

    def undo(self, parts: int, t: int) -> None:
        """Put back `parts` of a take at `t`.

        Put back fewer if the bucket would have been full without the take. Negative `parts` are a
        further charge. It only lowers levels, so the marks stay upper bounds.
        """
        if parts > 0 and t < self.taken:
            levels = [level for moment, level in self.marks if moment > t]
            parts = min(parts, self.size - max([self.top, *levels]))
            self.top += parts  # the later takes would have found a fuller bucket
            self.marks = [
                (moment, level + parts if moment > t else level) for moment, level in self.marks
            ]
        self.level = min(self.size, self.level + parts)

    def give(self, cost: int, t: int) -> None:
        """Undo a take at `t` that was never acted on (T5)."""
        self.undo(cost * self.price, t)

    def settle(self, extra: int, t: int, now: int) -> None:
        """A debt is a level below zero."""
        self.refresh(now)
        # The refill of DEBT microseconds pays every debt back.
        lowest = -min(MOST, DEBT // self.tick * min(self.gain, self.size))
        self.undo(max(-extra * self.price, lowest - self.level), t)

    def drain(self, left: int, since: int, now: int) -> None:
        """By now there are no more than `left` and the refill since `since`."""
        self.refresh(now)
        ticks = -(-(now - since) // self.tick)
        self.level = min(self.level, left * self.price + ticks * self.gain)

    def ahead(self, total: int, t: int, now: int) -> int:
        """Changes nothing: `t` may be far in the future, and the limits may change before it."""
        ticks = max(0, (t - self.at) // self.tick)
        level, at = self.level + ticks * self.gain, self.at + ticks * self.tick
        if level >= self.size:
            level, at = self.size, max(t, at)
        need = total * self.price - level
        # A step brings at most a full bucket.
        return t if need <= 0 else at + -(-need // min(self.gain, self.size)) * self.tick

    def idle_at(self) -> int:
        """From this moment on the bucket is as full as a new one (T12)."""
        return self.at + -(-(self.size - self.level) // self.gain) * self.tick

    def left(self, t: int) -> int:
        self.refresh(t)
        return self.level // self.price

    def pace(self) -> float:
        """Tokens a microsecond."""
        return self.gain / self.price / self.tick

    def adopt(self, old: TokenBucketRule, t: int) -> None:
        """Go on with as many tokens, and no extra ones (T9).

        `open` comes first. It sets `top` to `size`, as if the bucket had been full before the last
        take. So an undo of an earlier take returns nothing. The time since the last step is
        rescaled to the new rate, so frequent changes never postpone a step for ever.
        """
        old.refresh(t)
        # `// 1` rounds down, as `floor` in the Lua twin. `int` alone would round a debt up.
        self.level = min(self.size, int(old.level / old.price * self.price // 1))
        self.at = t - min(self.tick - 1, int((t - old.at) * (old.pace() / self.pace()) // 1))
        self.taken = old.taken
