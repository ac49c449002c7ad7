"""A signal handler that forks once, for the programs of tests/programs that fork where a thread
waits.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading

from tests.processes import PATIENCE

FORKED = threading.Event()
CHILDREN: list[int] = []  # the child of the fork; 0 in the child itself
COME: list[None] = []  # once the signal has come


def fork_once(*_: object) -> None:
    """Handle SIGUSR1: fork when it comes for the first time."""
    if COME:
        return
    COME.append(None)
    CHILDREN.append(os.fork())
    if not CHILDREN[0]:
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
    FORKED.set()


def signal_main() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)


def signal_until_forked() -> None:
    """Send signals until one is handled: Python sees none that comes just before a thread begins to
    wait.
    """
    signal_main()
    while not FORKED.wait(0.01):
        signal_main()
