"""Calls that wait while their process is forked.

A waiting thread can fork in a signal handler or an `on_wait`. In the child its call ends with an
error.

The parent goes on with such a call and gets its answer. The child has neither the thread that would
answer nor a place in the queue. So the call ends there, and takes nothing back that belongs to the
parent.
"""

from __future__ import annotations

import os
from typing import Protocol

from headgate.keys import title


class Pending(Protocol):
    """A call that a thread waits for."""

    def fork(self) -> None:
        """In the child of a fork: wake the thread, which raises `forked`."""


WAITING: set[Pending] = set()  # all calls of threads that have begun to wait and have not ended


def forked(name: str) -> RuntimeError:
    """The error of a call that was forked while it waited, in the child. `name`: of the queue."""
    return RuntimeError(
        f"This process was forked while a call of {title(name)} waited. The call goes on in the "
        "parent, which keeps its place and gets the answer. In the child, call again, or end the "
        "child in the function that forks: os._exit(0)."
    )


def _after_fork() -> None:
    for call in list(WAITING):
        call.fork()
    WAITING.clear()


os.register_at_fork(after_in_child=_after_fork)
