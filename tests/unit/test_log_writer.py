"""Log lines never run a handler in the thread that logs, never block it, and are written before the
process ends.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from headgate import log_writer
from headgate.threads import snapshot
from tests.processes import finished

LINE = "the store answers again"


class Handler(logging.Handler):
    """Calls `act` with each record."""

    def __init__(self, act: Callable[[logging.LogRecord], object]) -> None:
        super().__init__()
        self._act = act

    def emit(self, record: logging.LogRecord) -> None:
        self._act(record)


@contextmanager
def handling(act: Callable[[logging.LogRecord], object]) -> Iterator[None]:
    handler = Handler(act)
    log_writer.LOGGER.addHandler(handler)
    try:
        yield
    finally:
        assert log_writer.flush()
        log_writer.LOGGER.removeHandler(handler)


def test_a_handler_runs_in_the_log_thread() -> None:
    threads: list[str] = []
    with handling(lambda record: threads.append(threading.current_thread().name)):
        log_writer.log(logging.WARNING, LINE)
    assert threads == ["headgate-log"]


def test_the_caller_does_not_wait_for_a_handler() -> None:
    go_on = threading.Event()
    records: list[str] = []

    def wait(record: logging.LogRecord) -> None:
        assert go_on.wait(10)
        records.append(record.getMessage())

    with handling(wait):
        log_writer.log(logging.WARNING, "%s of %d", "first", 2)
        log_writer.log(logging.WARNING, "second")
        assert records == []
        go_on.set()
    assert records == ["first of 2", "second"]


def test_lines_below_the_level_of_the_logger_are_not_queued(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, "headgate")
    log_writer.log(logging.WARNING, LINE)
    assert caplog.messages == []


def test_a_hanging_handler_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_writer, "MAX_LINES", 3)
    begun, go_on = threading.Event(), threading.Event()
    messages: list[str] = []

    def hang(record: logging.LogRecord) -> None:
        begun.set()
        assert go_on.wait(10)
        messages.append(record.getMessage())

    with handling(hang):
        log_writer.log(logging.WARNING, "first")
        assert begun.wait(10)
        for _ in range(10):
            log_writer.log(logging.WARNING, LINE)
        go_on.set()
    dropped = "7 log lines or events of headgate were dropped: a handler or a hook was too slow."
    assert messages == ["first", dropped, LINE, LINE, LINE]


def test_a_handler_that_fails_stops_no_further_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    messages: list[str] = []

    def fail(record: logging.LogRecord) -> None:
        messages.append(record.getMessage())
        raise SystemExit

    with handling(fail):
        log_writer.log(logging.WARNING, "first")
        log_writer.log(logging.WARNING, "second")
    assert messages == ["first", "second"]


def test_a_flush_in_a_handler_does_not_wait_for_itself() -> None:
    flushed: list[bool] = []
    with handling(lambda record: flushed.append(log_writer.flush())):
        log_writer.log(logging.WARNING, LINE)
    assert flushed == [False]


@pytest.mark.signals
def test_a_signal_handler_can_log_while_the_same_thread_logs() -> None:
    records: list[logging.LogRecord] = []
    interrupts = 0

    def interrupt(number: int, frame: object) -> None:
        nonlocal interrupts
        interrupts += 1
        log_writer.log(logging.WARNING, "from the handler")
        if interrupts < 500:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)

    former = signal.signal(signal.SIGALRM, interrupt)
    lines = 0
    with handling(records.append):
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while interrupts < 500:
            log_writer.log(logging.WARNING, LINE)
            lines += 1
            if lines % 100 == 0:
                assert log_writer.flush()
    signal.signal(signal.SIGALRM, former)
    assert len(records) == lines + 500


def test_the_last_lines_of_a_process_are_written() -> None:
    program = """
import atexit, logging, sys
from headgate import log_writer
logging.basicConfig(stream=sys.stdout, format="%(message)s")
atexit.register(log_writer.log, logging.WARNING, "in an atexit callback")
"""
    assert finished(program) == "in an atexit callback\n"
    assert (
        finished(f"{program}\nlog_writer.log(logging.WARNING, 'at the end')")
        == "at the end\nin an atexit callback\n"
    )


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_last_lines_of_a_child_are_written_once(method: str) -> None:
    """And those of its parent are not written again."""
    assert finished("log_child", method) == "in the parent\nin the child\n"


def test_a_child_of_a_fork_has_a_log_thread_of_its_own() -> None:
    log_writer.log(logging.DEBUG, LINE)
    read, write = os.pipe()
    with handling(lambda record: os.write(write, record.getMessage().encode())):
        child = os.fork()
        if child == 0:
            log_writer.log(logging.WARNING, LINE)
            log_writer.flush()
            os._exit(0)
        assert os.waitpid(child, 0) == (child, 0)
    os.close(write)
    assert os.read(read, 1000).decode() == LINE
    os.close(read)


def test_a_snapshot_of_a_set_that_changes_meanwhile_is_taken_again() -> None:
    """L6: the end of a process goes over all limiters, while a daemon thread makes more."""

    class Changing:
        times = 0

        def __iter__(self) -> Iterator[int]:
            self.times += 1
            yield 1
            if self.times == 1:
                raise RuntimeError("Set changed size during iteration")

    assert snapshot(Changing()) == [1]


def test_an_error_of_a_signal_handler_leaves_a_snapshot() -> None:
    """Its exception reaches the code that it interrupts."""

    class Interrupted:
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        snapshot(Interrupted())
