"""The processes of `headgate run`: how they start, get signals, and end.

A signal for headgate is passed on to each command that runs. A task without a command, which waits
for its turn or for a line of stdin, ends at once. Limiters are in run.py.
"""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from headgate.cli.exits import NOT_EXECUTABLE, SIGNALLED, Failure
from headgate.cli.output import shown

T = TypeVar("T")

PASSED_ON = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT
BY_TERMINAL = signal.SIGINT, signal.SIGQUIT
GRACE = 5.0  # seconds from SIGTERM to SIGKILL, when the lease is lost


class Stopped(Exception):
    """No command begins any more: `Commands.stopped` has the exit code."""


class Commands:
    def __init__(self) -> None:
        self.stopped = 0  # the exit code, once no command begins any more
        self._signal: signal.Signals | None = None
        self._processes: set[Process] = set()
        self._waiting: set[asyncio.Future[Any]] = set()

    @contextmanager
    def passing_signals(self) -> Iterator[None]:
        """Pass signals on to the commands, except those that this process was started to ignore.

        A shell ignores some for its background jobs, and the commands inherit that.
        """
        loop = asyncio.get_running_loop()
        handled = [each for each in PASSED_ON if signal.getsignal(each) != signal.SIG_IGN]
        for each in handled:
            loop.add_signal_handler(each, self._pass_on, each)
        try:
            yield
        finally:
            for each in handled:
                loop.remove_signal_handler(each)

    def _pass_on(self, number: signal.Signals) -> None:
        self.stop(SIGNALLED + number)
        if number in BY_TERMINAL and is_foreground():
            return  # the terminal has sent it to the commands, too
        self._signal = number
        for process in self._processes:
            send(process, number)

    def stop(self, code: int) -> None:
        """End the tasks that wait. Commands that run go on."""
        self.stopped = self.stopped or code
        for task in self._waiting:
            task.cancel()

    async def wait_for(self, work: Awaitable[T]) -> T:
        """The result of `work`. `stop` cancels it, and this raises Stopped."""
        task = asyncio.ensure_future(work)
        if self.stopped:
            task.cancel()
        self._waiting.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if self.stopped and task.cancelled():
                raise Stopped from None
            raise
        finally:
            self._waiting.discard(task)

    async def run(self, command: list[str], stdin: int | None, more: Mapping[str, str]) -> int:
        """Run `command` with `more` variables, and return its exit code.

        Only a lost lease cancels this. Then the command gets SIGTERM, and later SIGKILL.
        """
        process = await start(command, stdin, {**os.environ, **more})
        self._processes.add(process)
        try:
            if self._signal is not None:  # it came while the process started
                send(process, self._signal)
            code = await process.wait()
        except asyncio.CancelledError:
            await end(process)
            raise
        finally:
            self._processes.discard(process)
        return SIGNALLED - code if code < 0 else code


async def start(command: list[str], stdin: int | None, variables: Mapping[str, str]) -> Process:
    try:
        return await asyncio.create_subprocess_exec(*command, stdin=stdin, env=variables)
    except (OSError, ValueError) as error:  # ValueError: an argument with a NUL
        why = f"run: the command {shown(command[0])} does not start: {error}"
        raise Failure(NOT_EXECUTABLE, why) from error


def send(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):  # it has ended
        process.send_signal(number)


async def end(process: Process) -> None:
    send(process, signal.SIGTERM)
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        send(process, signal.SIGKILL)
        await process.wait()


def is_foreground() -> bool:
    """Whether the terminal sends its signals to this process and its commands."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False
