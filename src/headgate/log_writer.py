"""The log lines of the package, written by a thread of their own.

A logging handler is the user's code: it may take its time, and it may call a limiter. No thread of
headgate and no caller may wait for it. So `log` puts the line into a queue, and the thread
"headgate-log" runs the handlers.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from headgate.closing import end_task_waits
from headgate.forks import end_waits
from headgate.threads import NoThreadError, begin

LOGGER = logging.getLogger("headgate")
MAX_LINES = 4096  # lines that wait for a slow handler; later ones are dropped and counted
INTERVAL = 60.0  # seconds between two lines of one kind and name
EXIT_TIMEOUT = 2.0  # seconds that the end of the process waits for handlers, in all
LAST_TIMEOUT = 0.2  # seconds that it still gives them when EXIT_TIMEOUT is over
REFUSAL_PAUSE = 0.02  # seconds between two attempts to end the waits of handlers
# multiprocessing runs the finalizers of lower priority later. Others may log, so ours comes late.
EXIT_PRIORITY = -1000


Line = Callable[[], object]  # writes a log line, or calls a hook of the user


class Writer:
    """The queue of one process and the thread that empties it."""

    def __init__(self) -> None:
        # `flush` puts a queue of its own among the lines. When the thread gets there, it puts None
        # into that queue.
        self._lines: SimpleQueue[Line | SimpleQueue[None]] = SimpleQueue()
        self._thread_lock = threading.Lock()  # locked while the thread runs
        self._thread = 0
        self._dropped = 0
        self._exit_by: float | None = None  # the end of EXIT_TIMEOUT, once the process ends

    def put(self, line: Line) -> None:
        """Queue `line`.

        Waits for no lock, so a signal handler and a finalizer may call it at any moment.
        """
        if self._lines.qsize() >= MAX_LINES:
            self._dropped += 1
        else:
            self._lines.put(line)
        self._start()

    def flush(self, timeout: float) -> bool:
        if self._thread == threading.get_ident():
            return False  # a handler called this, and this thread cannot wait for itself
        if self._lines.empty() and not self._thread_lock.locked():
            return True
        written: SimpleQueue[None] = SimpleQueue()
        self._lines.put(written)
        if not self._start():
            return False
        with suppress(Empty):
            written.get(timeout=timeout)
            return True
        return False

    def flush_at_exit(self) -> bool:
        """Flush before the process ends. A handler that still waits for a limiter gets an error."""
        if self._exit_by is None:
            self._exit_by = monotonic() + EXIT_TIMEOUT
        if self.flush(max(LAST_TIMEOUT, self._exit_by - monotonic())):
            return True
        end_waits(self._thread)
        until = monotonic() + LAST_TIMEOUT
        while monotonic() < until:
            end_task_waits(self._thread)  # the next line may make the handler wait again
            if self.flush(REFUSAL_PAUSE):
                return True
        return False

    def end(self) -> None:
        """Write the last lines. If no thread can start any more, write them in this one."""
        if self.flush_at_exit() or self._thread_lock.locked():
            return
        with suppress(Empty):
            while True:
                self._write(self._lines.get_nowait())

    def _start(self) -> bool:
        """Start the thread, unless it runs. If two start at once, one of them ends."""
        if not self._thread_lock.locked():
            _register_end_of_child()
            try:
                begin(self._run, "headgate-log")
            except NoThreadError:  # the line stays queued
                return False
        return True

    def _run(self) -> None:
        if self._thread_lock.acquire(blocking=False):
            self._thread = threading.get_ident()
            while True:
                self._write(self._lines.get())

    def _write(self, line: Line | SimpleQueue[None]) -> None:
        if isinstance(line, SimpleQueue):
            line.put(None)
            return
        self._hand_over(line)
        dropped, self._dropped = self._dropped, 0
        if dropped:
            message = (
                "%d log lines or events of headgate were dropped: a handler or a hook was too slow."
            )
            self._hand_over(partial(LOGGER.warning, message, dropped))

    def _hand_over(self, line: Line) -> None:
        with shown_errors():  # the next line must be written all the same
            line()


@contextmanager
def shown_errors() -> Iterator[None]:
    """Around a call of the user's code: write the traceback of any exception to stderr."""
    try:
        yield
    except BaseException:
        if logging.raiseExceptions and sys.stderr is not None:
            traceback.print_exc()


_writer = Writer()
_logged: dict[tuple[str, str], float] = {}  # when each kind and name was logged last


def log(
    level: int,
    message: str,
    *arguments: object,
    error: BaseException | None = None,
    kind: str = "",
    name: str = "",
    every_time: bool = False,
) -> None:
    """Log `message % arguments` with the logger "headgate", and `error` with its traceback.

    The record of a line with a `kind` has it as `headgate_event`, and `name` as `headgate_name`. It
    is logged at most once in INTERVAL for each kind and name, unless `every_time`. Never blocks,
    runs no handler, and may be called anywhere: in a signal handler, a finalizer, any thread and
    any event loop.
    """
    # isEnabledFor would take logging's lock, which a thread that configures handlers may hold.
    if level < LOGGER.getEffectiveLevel() or LOGGER.disabled:
        return
    extra = None
    if kind:
        now, what = monotonic(), (kind, name)
        if now - _logged.get(what, -inf) < INTERVAL and not every_time:
            return
        if len(_logged) >= MAX_LINES:
            _logged.clear()
        _logged[what] = now
        extra = {"headgate_event": kind, "headgate_name": name}
    _writer.put(partial(LOGGER.log, level, message, *arguments, exc_info=error, extra=extra))


def run_soon(function: Callable[[Any], object], argument: Any) -> None:
    """Call `function(argument)` in the thread that writes log lines, behind the earlier lines.

    As `log`, it never blocks, and may be called anywhere. An exception of the function goes to
    stderr.
    """
    _writer.put(partial(function, argument))


def flush(timeout: float = EXIT_TIMEOUT) -> bool:
    """Wait until all earlier lines are written, for at most `timeout` seconds.

    Returns False when they are not.
    """
    return _writer.flush(timeout)


def flush_at_exit() -> bool:
    return _writer.flush_at_exit()


def _end() -> None:
    _writer.end()


def _register_end_of_child() -> None:
    """A child of multiprocessing runs no atexit callbacks, but these finalizers."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, _end, exitpriority=EXIT_PRIORITY)


def _forked() -> None:
    """The parent writes the lines that were queued before the fork; its thread does not run in the
    child.
    """
    global _writer
    _writer = Writer()


os.register_at_fork(after_in_child=_forked)
atexit.register(_end)
