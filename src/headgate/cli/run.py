"""`headgate run`: a command holds a permit while it runs.

The arguments become calls of a limiter here. Signals and the processes of commands are in
child_processes.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from argparse import Namespace
from contextlib import suppress
from typing import Any

from headgate.cli.child_processes import Commands, Stopped
from headgate.cli.exits import (
    NO_INPUT_OUTPUT,
    NOT_EXECUTABLE,
    NOT_FOUND,
    OK,
    USAGE,
    Failure,
    code_of,
    is_count,
    usage_errors,
)
from headgate.cli.output import complain, shown, words_of
from headgate.cli.store import make_limiter
from headgate.errors import HeadgateError, LeaseLostError, MaxSleepExceededError
from headgate.limiter import Limiter

STDIN = 0
LONGEST = 131_071  # bytes of an argument, on Linux
CHUNK = 65_536  # bytes of stdin that are read at once


async def run(args: Namespace) -> int:
    check(args)
    cost, units = costs(args.cost)
    limits = tuple(filter(None, (text.strip() for text in args.limits.split(","))))
    limiter = make_limiter(args, limits, on_lost="cancel")
    calls = Calls(limiter, cost, units, args.max_sleep)
    with calls.commands.passing_signals():
        if args.each:
            return await each_line(calls, args.command, args.parallel or 1)
        return await calls.run(args.command, stdin=None)


def check(args: Namespace) -> None:
    if not args.command:
        raise Failure(USAGE, "run: write -- and a command behind the options.")
    if args.parallel is not None and not args.each:
        raise Failure(USAGE, "run: -P counts the calls of --each: give that, too.")
    if args.parallel is not None and args.parallel < 1:
        raise Failure(USAGE, f"run: -P {args.parallel} runs nothing: give a number from 1.")
    if shutil.which(args.command[0]) is None:
        raise Failure(NOT_FOUND, f"run: the command {shown(args.command[0])} was not found.")


def costs(words: list[str]) -> tuple[int, dict[str, int]]:
    """The cost in requests, and that in named units."""
    units: dict[str, int] = {}  # that of requests has no name
    for word in words:
        unit, named, number = word.rpartition("=")
        if not is_count(number) or unit in units or (named and not unit):
            raise Failure(
                USAGE,
                f"run --cost {shown(word)}: write each unit once, such as --cost 2 or "
                "--cost tokens=900.",
            )
        units[unit] = int(number)
    return units.pop("", 1), units


class Calls:
    """Runs commands, each with a permit of its own."""

    def __init__(
        self, limiter: Limiter, cost: int, units: dict[str, Any], max_sleep: float | None
    ) -> None:
        self.commands = Commands()
        self._limiter = limiter
        self._cost, self._units, self._max_sleep = cost, units, max_sleep

    async def run(self, command: list[str], stdin: int | None) -> int:
        """Wait for a permit, run `command`, and return its exit code."""
        with usage_errors():
            acquire = self._limiter.acquire(self._cost, max_sleep=self._max_sleep, **self._units)
            try:
                permit = await self.commands.wait_for(acquire)  # this also checks the units
            except Stopped:
                return self.commands.stopped
        names = {"HEADGATE_NAME": self._limiter.name, "HEADGATE_FENCE": str(permit.fence)}
        async with permit:
            if self.commands.stopped:  # a signal came in the moment of the grant
                return self.commands.stopped
            return await self.commands.run(command, stdin, names)


async def each_line(calls: Calls, command: list[str], parallel: int) -> int:
    """Run `command` with each line of stdin as its last argument. Return the first code but 0."""
    lines, room = Lines(parallel), asyncio.Semaphore(parallel)
    codes: list[int] = []

    async def call(line: bytes) -> None:
        codes.append(await one_line(calls, command, line))
        room.release()

    async with asyncio.TaskGroup() as tasks:
        while (line := await lines.next(calls.commands)) is not None:
            await room.acquire()
            tasks.create_task(call(line))
    failed = [*filter(None, codes), *([NO_INPUT_OUTPUT] if lines.unreadable else [])]
    return calls.commands.stopped or next(iter(failed), OK)


async def one_line(calls: Calls, command: list[str], text: bytes) -> int:
    """Run `command` with this line. Return its exit code, or that of an error.

    After a refusal or a lost lease the next lines run. Any other error would come for each of them,
    so none runs any more.
    """
    line = os.fsdecode(text)
    if len(text) > LONGEST or b"\0" in text:
        complain(f"line {shown(line)}: no argument has a NUL, or more than {LONGEST:,} bytes.")
        return NOT_EXECUTABLE
    try:
        return await calls.run([*command, line], stdin=asyncio.subprocess.DEVNULL)
    except (MaxSleepExceededError, LeaseLostError) as error:
        complain(f"line {shown(line)}: {words_of(error)}")
        return code_of(error)
    except (HeadgateError, Failure) as error:
        complain(f"line {shown(line)}: {error}")
        calls.commands.stop(error.code if isinstance(error, Failure) else code_of(error))
        return calls.commands.stopped


class Lines:
    """The lines of stdin, read in a thread, and not far ahead.

    It reads the file descriptor: at the end of the process, a thread that reads `sys.stdin` would
    keep the lock of that object.
    """

    def __init__(self, ahead: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._room = threading.Semaphore(ahead)
        self.unreadable = False  # an error ended stdin
        threading.Thread(target=self._read, name="headgate-stdin", daemon=True).start()

    def _read(self) -> None:
        rest = b""  # the beginning of a line; a longer one than LONGEST is cut there, and refused
        with suppress(RuntimeError):  # the loop has ended
            while chunk := self._read_chunk():
                first, *others = chunk.split(b"\n")
                rest = (rest + first)[: LONGEST + 1]
                for line in others:
                    self._put(rest)
                    rest = line
            if rest:
                self._put(rest)
            self._put(None)

    def _read_chunk(self) -> bytes:
        try:
            return os.read(STDIN, CHUNK)
        except OSError as error:  # such as of a closed one
            complain(f"run: stdin cannot be read: {error}")
            self.unreadable = True
            return b""

    def _put(self, line: bytes | None) -> None:
        self._room.acquire()
        self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def next(self, commands: Commands) -> bytes | None:
        """The next line. None: there is none, or no command begins any more."""
        try:
            line = await commands.wait_for(self._lines.get())
        except Stopped:
            return None
        self._room.release()
        return line
