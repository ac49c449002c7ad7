"""Calls that wait while their process is forked, or while it ends.

A waiting thread can fork in a signal handler or an `on_wait`. The parent goes on with its call and
gets the answer. The child has neither the thread that would answer nor a place in the queue. So
there the call ends with an error, and cancels or gives back nothing of the parent's.

A logging handler may wait for hours for its turn, and the end of the process would wait for the
lock of that handler. So the call of a handler ends with an error when the process ends.

Some modules are imported at their first use. Python keeps the lock of a module that another thread
imports during a fork, and the child would wait for it for ever. So a fork waits for those that are
in progress, and for modules of the standard library that headgate imports in a function. An import
that has only just begun can still be missed.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from typing import Protocol

from headgate.keys import title


class Pending(Protocol):
    """A call that a thread waits for."""

    thread: int  # the one that waits

    def forked(self) -> None:
        """In the child of a fork: wake the thread, which raises `fork_error`."""

    def end_wait(self) -> None:
        """Wake the thread, which raises `exit_error`."""


IMPORTED_IN_FUNCTIONS = {"datetime", "decimal", "difflib", "fractions", "html", "urllib.parse"}
WAITING: set[Pending] = set()  # all calls of threads that have begun to wait and have not ended
_ending: set[int] = set()  # threads in which every wait must end at once


def begin_wait(call: Pending) -> None:
    WAITING.add(call)
    if call.thread in _ending:
        call.end_wait()


def end_waits(thread: int) -> None:
    """From now on no call of `thread` waits."""
    _ending.add(thread)
    for call in list(WAITING):
        if call.thread == thread:
            call.end_wait()


def exit_error() -> RuntimeError:
    """The error of a call that a logging handler waits for when the process ends."""
    return RuntimeError(
        "The process ends, so a logging handler cannot wait for a limiter any longer. Use "
        "try_acquire() in a handler."
    )


def fork_error(name: str) -> RuntimeError:
    """The error, in the child, of a call that waited during the fork. `name`: of the queue."""
    return RuntimeError(
        f"This process was forked while a call of {title(name)} waited. The call goes on in the "
        "parent, which keeps its place and gets the answer. In the child, call again, or end the "
        "child in the function that forks: os._exit(0)."
    )


def _before_fork() -> None:
    for name in list(sys.modules):
        if name.startswith("headgate.") or name in IMPORTED_IN_FUNCTIONS:
            with suppress(Exception):  # the other thread has the error, too
                import_module(name)


def _after_fork() -> None:
    for call in list(WAITING):
        call.forked()
    WAITING.clear()
    _ending.clear()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
