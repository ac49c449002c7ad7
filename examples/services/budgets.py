"""The limits of the local services of examples and tests: decided without I/O and without a clock,
the time of arrival is an argument.

It knows nothing of headgate: the subject of the test must not be its judge.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """The allowed number in any `per` seconds (requests), refilled evenly over them (tokens), and
    at once; None: as much as you like.

    `tokens` are those of input and output together. A call takes `call_time` seconds, a stream as
    much for each word.
    """

    requests: int | None = None
    tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    at_once: int | None = None
    per: float = 60.0
    call_time: float = 0.005


class Window:
    """So many requests in any `per` seconds, no matter how they lie."""

    def __init__(self, amount: int, per: float) -> None:
        self.amount, self.per = amount, per
        self._admitted: deque[float] = deque()

    def left(self, now: float) -> int:
        while self._admitted and now - self._admitted[0] >= self.per:
            self._admitted.popleft()
        return self.amount - len(self._admitted)

    def wait(self, now: float, wanted: int) -> float:
        """Seconds until there is room for them."""
        return 0.0 if self.left(now) >= wanted else self._admitted[0] + self.per - now

    def reset(self, now: float) -> float:
        """Seconds until all of it is there again."""
        return 0.0 if self.left(now) == self.amount else self._admitted[-1] + self.per - now

    def take(self, now: float, many: int) -> None:
        self._admitted.extend([now] * many)


class Bucket:
    """So many tokens, which come back evenly over `per` seconds.

    It may fall below zero: an answer is charged once it is there.
    """

    def __init__(self, amount: int, per: float) -> None:
        self.amount, self.per = amount, per
        self._level, self._moment = float(amount), 0.0

    def left(self, now: float) -> int:
        passed, self._moment = now - self._moment, now
        self._level = min(self.amount, self._level + passed * self.amount / self.per)
        return int(self._level)

    def wait(self, now: float, wanted: int) -> float:
        """Seconds until they are there."""
        return max(0, wanted - self.left(now)) * self.per / self.amount

    def reset(self, now: float) -> float:
        """Seconds until all of it is there again."""
        return self.wait(now, self.amount)

    def take(self, now: float, many: int) -> None:
        self.left(now)
        self._level -= many


class Budgets:
    """All of one service.

    A new call needs room in each; an answer needs that the one before it has been paid for.
    """

    def __init__(self, rules: Rules) -> None:
        self._all: dict[str, Window | Bucket] = {}
        if rules.requests is not None:
            self._all["requests"] = Window(rules.requests, rules.per)
        for unit in ("tokens", "input_tokens", "output_tokens"):
            amount = getattr(rules, unit)
            if amount is not None:
                self._all[unit] = Bucket(amount, rules.per)

    def arrive(self, now: float, into: int) -> dict[str, float]:
        """Charges a call, or says which budgets refuse it, and for how many seconds."""
        wanted = {"requests": 1, "tokens": into, "input_tokens": into, "output_tokens": 1}
        waits = {unit: budget.wait(now, wanted[unit]) for unit, budget in self._all.items()}
        refused = {unit: wait for unit, wait in waits.items() if wait > 0}
        if not refused:
            self._take(now, requests=1, tokens=into, input_tokens=into)
        return refused

    def answer(self, now: float, out: int) -> None:
        """Charges the written words."""
        self._take(now, tokens=out, output_tokens=out)

    def said(self, now: float) -> dict[str, tuple[int, int, float]]:
        """Of each: limit, remaining, seconds until it is full."""
        return {
            unit: (each.amount, max(0, each.left(now)), each.reset(now))
            for unit, each in self._all.items()
        }

    def _take(self, now: float, **many: int) -> None:
        for unit, number in many.items():
            if unit in self._all:
                self._all[unit].take(now, number)
