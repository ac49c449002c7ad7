"""The counts, events and log lines of a pause, of its end, and of other limits.

This process may have made the change, or learned from the store that another process did.
"""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from headgate.changes import Change, Pause, Resume, Update
from headgate.counts import add, counts_of
from headgate.hooks import emit, has_hooks
from headgate.keys import names_of, title
from headgate.log_writer import log
from headgate.stores.limit_history import in_words
from headgate.validation import duration

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration

# Seconds. A process may learn of one pause several times, with ends that differ by less than this.
SLACK = 0.5
WHY = {"caller": "", "server": ", because of a service's answer", "fleet": " by another process"}


def note_change(name: str, change: Change) -> None:
    """Count and report a change that this process makes."""
    match change:
        case Pause(time=time, reason=reason):
            add(counts_of(name).pauses, reason)
            _note_pause(name, time / 1_000_000, reason)
        case Resume():
            counts_of(name).paused_until = 0.0
            log(logging.INFO, "The pause of %s is over.", title(name), kind="resumed", name=name)
            if has_hooks():
                from headgate.events import Resumed

                emit(Resumed(*names_of(name)))
        case Update(declared=declared, reason=reason):
            _note_limits(name, declared, reason)


def note_fleet_pause(name: str, seconds: float) -> None:
    """The store says that `name` is paused. Report it, unless this process paused it itself."""
    if monotonic() + seconds > counts_of(name).paused_until + SLACK:
        _note_pause(name, seconds, "fleet")


def note_fleet_limits(name: str, declared: Declaration) -> None:
    """The store says that other limits hold: another process declared or updated them."""
    _note_limits(name, declared, "fleet")


def _note_pause(name: str, seconds: float, reason: str) -> None:
    counts = counts_of(name)
    counts.paused_until = max(counts.paused_until, monotonic() + seconds)
    message, time = "%s is paused for %s%s.", duration(seconds)
    log(logging.INFO, message, title(name), time, WHY[reason], kind="paused", name=name)
    if has_hooks():
        from headgate.events import Paused

        emit(Paused(*names_of(name), seconds, reason))


def _note_limits(name: str, declared: Declaration, reason: str) -> None:
    words = in_words(declared.program)
    log(
        logging.INFO,
        "%s has other limits now (%s): %s.",
        *(title(name), reason, words),
        kind="limits_changed",
        name=name,
    )
    if has_hooks():
        from headgate.events import LimitsChanged

        emit(LimitsChanged(*names_of(name), words, reason))
