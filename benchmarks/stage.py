"""The stage of every contestant, and the types of a row, a contestant and a goal.

Plain data and its types only: nothing here measures, prints or knows a library by name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Any, TypeVar

T = TypeVar("T")

# One setting for all entrants: so many tokens that no caller ever waits. Only the way to a grant is
# timed.
PLENTY = 1_000_000
PERIOD = 3600


@dataclass(frozen=True)
class Stage:
    """One row's surroundings: the server, and one event loop that lives as long as the row."""

    redis_url: str
    runner: asyncio.Runner
    mark: str
    _numbers: count[int] = field(default_factory=count)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def fresh_name(self) -> str:
        """A name that no contestant has used before: no round finds the state of another."""
        return f"{self.mark}x{next(self._numbers)}"


# A peer's module opens its clients once a row and yields a maker: a name in, a thing to enter or to
# call out.
Maker = Callable[[str], Any]
Opening = Callable[[Stage], AbstractContextManager[Maker]]

# A shape does the row's work once with the entries of the maker, `times` times over, and returns
# the seconds.
Shape = Callable[[Stage, Maker, str, int], float]


class Role(Enum):
    OURS = "headgate"
    PEER = "peer"
    # Not a limiter of this kind: the least that the work can cost, or the mark a goal names.
    FLOOR = "floor"
    VARIANT = "variant"  # headgate used in another way, shown for honesty; decides nothing


@dataclass(frozen=True)
class Contestant:
    name: str
    role: Role
    opening: Opening
    shape: Shape


@dataclass(frozen=True)
class Goal:
    """How far ahead of the best of a role headgate wants to be: its time times `factor` is at most
    theirs. `work`: in short.
    """

    work: str
    role: Role
    factor: float


@dataclass(frozen=True)
class Row:
    key: str
    title: str
    times: int
    contestants: tuple[Contestant, ...]
    rounds: int = 15
    quick_times: int | None = None  # None: the number is part of the work and stays
    goal: Goal | None = None
