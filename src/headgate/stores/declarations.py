"""What a process declares one name with, and the sentence that is logged when declarations keep replacing each other.

Here lives the memory of the last few of them; what holds is the line's to know, and between processes the script's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from urllib.parse import unquote

from headgate.checks import plain
from headgate.logs import log

HOLD = 60_000_000  # microseconds after which a declaration that comes again is a change of mind, as in shared.lua
REMEMBERED = 8  # of the texts of one name
MOST_TOLD = 1024  # disagreements that are known to have been logged

_told: dict[tuple[str, frozenset[str]], float] = {}  # what was logged, and when


class Declarations:
    """The texts that one name was declared with in this process, and the one that an update has put in their place."""

    __slots__ = ("_former", "_update", "last")

    def __init__(self, program: str) -> None:
        self.last = program
        self._former: dict[str, int] = {}  # those before it, and when they were replaced; former updates too
        self._update = ""

    def update(self, program: str) -> None:
        """Whatever held until now is overruled by `program`, for as long as that holds."""
        if self._update not in ("", program, self.last) and self._update not in self._former:
            self._replaced(self._update, -HOLD)
        self._update = program

    def updated(self, present: str) -> bool:
        """Whether what holds at present is an update of this process."""
        return present == self._update

    def overruled(self, program: str, present: str) -> bool:
        """Whether a declaration is no news: it held before the update that holds at present."""
        return self.updated(present) and (program == self.last or program in self._former)

    def declare(self, program: str, now: int) -> bool:
        """Note a declaration. True when it comes again a moment after another one of this process took its place."""
        if program == self.last:
            return False
        comes_again = now - self._former.pop(program, -HOLD) < HOLD
        self._replaced(self.last, now)
        self.last = program
        return comes_again

    def _replaced(self, program: str, now: int) -> None:
        self._former.pop(program, None)
        self._former[program] = now
        if len(self._former) > REMEMBERED:  # no part of the program declares what it has only updated to
            updates = (each for each, t in self._former.items() if t == -HOLD)
            del self._former[next(updates, next(iter(self._former)))]


def warn_of_parts(name: str, declared: str, former: str) -> None:
    """Two parts of this program disagree."""
    tell(
        name,
        declared,
        former,
        "Limiter %r is declared as %s in this process, a moment after it was declared as %s: each declaration replaces the other. "
        "Make both parts of the program agree, or call update() to set the limits that are to hold.",
    )


def warn_of_processes(name: str, declared: str, holds: str) -> None:
    """Another process disagrees, and what it has declared holds for now."""
    tell(
        name,
        declared,
        holds,
        "Limiter %r is declared as %s in this process, but another process has replaced that, and %s holds instead. "
        "Make the code of both agree, or call update() to set the limits that are to hold.",
    )


def tell(name: str, declared: str, other: str, sentence: str) -> None:
    """Log it, and not again for the same name and limits within a minute."""
    what, now = (name, frozenset((declared, other))), monotonic()
    if now - _told.get(what, -HOLD) < HOLD / 1_000_000:
        return
    if len(_told) >= MOST_TOLD:
        _told.clear()
    _told[what] = now
    log(logging.WARNING, sentence, unquote(name), in_words(declared), in_words(other))


def in_words(program: str) -> str:
    """The limits of a declaration, for people."""
    return " and ".join(WORDS[kind](unit, *map(int, numbers)) for kind, unit, *numbers in map(str.split, program.split(";")))


def bucket(unit: str, capacity: int, price: int, gain: int, tick: int, start: int) -> str:
    begins = "" if start == capacity else f", {start} at first"
    return f"{gain} {unit} every {seconds(price * tick)}, at most {capacity} at once{begins}"


def window(unit: str, capacity: int, per: int) -> str:
    return f"{capacity} {unit} in any {seconds(per)}"


def quota(unit: str, capacity: int, per: int, anchor: int, slack: int) -> str:
    return f"{capacity} {unit} in each {seconds(per)} from {seconds(anchor)}{f' with {seconds(slack)} of slack' if slack else ''}"


def slots(unit: str, capacity: int, lease: int) -> str:
    return f"{capacity} {unit} held at once for {seconds(lease)} each"


def seconds(ticks: int) -> str:
    return f"{plain(ticks / 1_000_000)} s"


WORDS: dict[str, Callable[..., str]] = {"bucket": bucket, "window": window, "quota": quota, "slots": slots}
