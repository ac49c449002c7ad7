"""The last declarations of a process for one name, and the log lines of disagreements."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from headgate.keys import title, unquoted
from headgate.log_writer import log
from headgate.validation import plain

# Microseconds. For so long after limits were replaced, only the process that replaced them can
# declare the former ones again. Twin: HOLD in prelude.lua.
HOLD = 60_000_000
REMEMBERED = 8  # former programs of one name


class Declarations:
    """The limits of one name in this process: those declared, and those of its update.

    Each is a program, a text that gate/compile.py explains.
    """

    __slots__ = ("_former", "last", "overruling")

    def __init__(self) -> None:
        self.last = ""  # the program that was declared last; "": none yet
        # Former programs, the oldest first. True: an update set it, and no code declared it. Each
        # change makes a new dict.
        self._former: dict[str, bool] = {}
        self.overruling = ""  # the program of the last update; "": none yet

    def update(self, program: str) -> None:
        """Note an update. The one that it replaces becomes a former program, unless it is known."""
        if self.overruling not in ("", program, self.last, *self._former):
            self._note_former(self.overruling, True)
        self.overruling = program

    def updated(self, present: str) -> bool:
        """Whether the limits that hold, `present`, are those of the update."""
        return present == self.overruling

    def overruled(self, program: str, present: str) -> bool:
        """Whether `program` was declared before the update, so that it changes nothing now."""
        return self.updated(present) and (program == self.last or program in self._former)

    def declare(self, program: str) -> None:
        if program != self.last:
            if self.last:
                self._note_former(self.last, False, program)
            self.last = program

    def _note_former(self, program: str, only_updated: bool, back: str = "") -> None:
        """Note `program` as a former one, and forget `back`, which is declared again.

        A new dict is safe while another thread or a signal handler does the same.
        """
        former = {each: only for each, only in self._former.items() if each not in (program, back)}
        former[program] = only_updated
        # Forget updates first: the user's code declares no limits that it has only updated to.
        if len(former) > REMEMBERED:
            updates = (each for each, only in former.items() if only)
            del former[next(updates, next(iter(former)))]
        self._former = former


# By name: the limits as a program, and the line of code. None: a disagreement was logged for it.
Written = dict[str, tuple[str, str] | None]
MOST_WRITTEN = 4096  # names of one store whose places are remembered


def note_limits(written: Written, name: str, program: str) -> None:
    """Note where the first limiter of `name` is made. Warn once of one with other limits."""
    known = written.get(name)
    if not program or ":" in name or (known is None and name in written):
        return  # no limits of its own, or a key, or it was logged
    if known is None:
        if len(written) >= MOST_WRITTEN:
            written.clear()
        written[name] = program, line_of_user()
    elif known[0] != program:
        former, line = known
        written[name] = None
        log(
            logging.WARNING,
            "Two limiters of one name disagree: %s is made with %s at %s, and with %s at %s. "
            "The one that acquires later replaces the limits of the other. Give both the same "
            "limits, take them from the store with Limiter.attach, or call update().",
            title(name),
            in_words(former),
            line,
            in_words(program),
            line_of_user(),
        )


def line_of_user() -> str:
    """The line of code outside this package that makes the limiter. No frame is kept."""
    frame = sys._getframe(2)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] == "headgate"
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def warn_of_processes(name: str, declared: str, holds: str) -> None:
    """Log that another process disagrees, and its declaration holds."""
    log(
        logging.WARNING,
        "Limiter %r is declared as %s in this process, but another process has replaced that, and "
        "%s holds instead. Make the code of both agree, or call update() to set the limits that "
        "are to hold.",
        *(unquoted(name), in_words(declared), in_words(holds)),
        kind="limits_disagree",
        name=name,
    )


def in_words(program: str) -> str:
    if not program:
        return "limits that are in the store"
    return " and ".join(
        WORDS[kind](unit, *map(int, numbers))
        for kind, unit, *numbers in map(str.split, program.split(";"))
    )


def bucket(unit: str, capacity: int, price: int, gain: int, tick: int, start: int) -> str:
    # Each tick adds `gain`; a unit costs `price`.
    begins = "" if start == capacity else f", {start} at first"
    return f"{gain} {unit} every {seconds(price * tick)}, at most {capacity} at once{begins}"


def window(unit: str, capacity: int, per: int) -> str:
    return f"{capacity} {unit} in any {seconds(per)}"


def quota(unit: str, capacity: int, per: int, anchor: int, slack: int) -> str:
    window = f"{capacity} {unit} in each {seconds(per)} from {seconds(anchor)}"
    return f"{window} with {seconds(slack)} of slack" if slack else window


def slots(unit: str, capacity: int, lease: int) -> str:
    return f"{capacity} {unit} held at once for {seconds(lease)} each"


def seconds(microseconds: int) -> str:
    return f"{plain(microseconds / 1_000_000)} s"


WORDS: dict[str, Callable[..., str]] = {
    "bucket": bucket,
    "window": window,
    "quota": quota,
    "slots": slots,
}
