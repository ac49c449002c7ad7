"""What a limiter says about itself.

Here live the values that `status()` returns, the same for every store, and how they are read off a gate's numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote

from headgate.gate.slots import NEVER

if TYPE_CHECKING:
    from headgate.gate.gate import Rule

KINDS = {"bucket": "Rate", "window": "Window", "quota": "Quota", "slots": "Concurrency"}


@dataclass(frozen=True, slots=True)
class LimitStatus:
    """One limit: of `capacity` units, `used` are in use and `left` are free (below zero: a debt)."""

    kind: str
    unit: str
    capacity: int
    used: int
    left: int


@dataclass(frozen=True, slots=True)
class Status:
    """A limiter at one moment: its limits, how many wait, and `retry_after`, seconds until one that comes now could go.

    `retry_after` is 0.0 when it could go at once, and None when only a release can make room.
    """

    name: str
    limits: tuple[LimitStatus, ...]
    waiting: int
    retry_after: float | None

    def line(self) -> str:
        """The whole status in one line, for a repr or a log."""
        limits = ", ".join(f"{limit.used} of {limit.capacity} {limit.unit} used ({limit.kind})" for limit in self.limits)
        return f"{limits}, {self.waiting} waiting"


def status_of(name: str, rules: Iterable[Rule], left: Iterable[int], waiting: int, delay: int) -> Status:
    limits = tuple(
        LimitStatus(KINDS[rule.text.partition(" ")[0]], rule.unit, rule.capacity, rule.capacity - rest, rest)
        for rule, rest in zip(rules, left, strict=True)
    )
    return Status(unquote(name), limits, waiting, None if delay >= NEVER // 2 else max(0, delay) / 1_000_000)
