"""Programs that tests run in processes of their own: started, talked to by lines, killed.

This module has the test's view of another process; the program of such a process stands in
`programs/`.
"""

from __future__ import annotations

import asyncio
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import headgate
from tests.machine import scaled

PROGRAMS = Path(__file__).parent / "programs"
LEAN = PROGRAMS / "lean"  # a folder on the path of most programs: it hides OpenTelemetry
PATIENCE = scaled(20.0)  # seconds for a line or an end: never waited for when all is well
SLOW = re.compile(
    r"Executing <.*> took \d+\.\d{3} seconds"
)  # asyncio's debug mode writes this on a busy machine


def environment(*, lean: bool = True) -> dict[str, str]:
    """Ours, with the headgate that we test first on the path, and the variables that the tests
    share. `lean`: the program does not find OpenTelemetry, which FastAPI needs.

    Development mode checks each allocation of C code: a fifth of a start, and headgate has no C.
    """
    path = [
        str(Path(headgate.__file__).parents[1]),
        str(PROGRAMS.parents[1]),
        str(LEAN) if lean else "",
        os.environ.get("PYTHONPATH", ""),
    ]
    joined = os.pathsep.join(filter(None, path))
    return {**os.environ, "PYTHONPATH": joined, "PYTHONMALLOC": "pymalloc"}


def command(program: str, *arguments: object) -> list[str]:
    """`program`: the name of a file in `programs/`, or Python text.

    Development mode, and every warning an error.
    """
    file = PROGRAMS / f"{program}.py" if program.isidentifier() else None
    what = ["-c", program] if file is None else [str(file)]
    return [sys.executable, "-X", "dev", "-W", "error", *what, *map(str, arguments)]


def finished(program: str, *arguments: object, within: float = 60) -> str:
    """The output of `program`, once it has ended well and without a complaint, within so many
    seconds.
    """
    words, env = command(program, *arguments), environment()
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=within, check=False
    )
    assert (done.returncode, complaints_of(done.stderr)) == (0, []), done.stderr
    return done.stdout


def complaints_of(stderr: str) -> list[str]:
    """Its lines, but for those that a slow machine is the reason of."""
    return [line for line in stderr.splitlines() if not SLOW.fullmatch(line)]


class Running:
    """A running process: it prints lines, reads lines and can be killed."""

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            command(program, *arguments),
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._queues: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._queues.put(line.rstrip("\n"))
        self._queues.put("<ended>")

    @property
    def pid(self) -> int:
        return self._process.pid

    def line(self, patience: float = PATIENCE) -> str:
        """The next line that it says."""
        return self._queues.get(timeout=patience)

    async def said(self) -> str:
        """The next line, awaited: the loop goes on, and renews its permits."""
        return await asyncio.to_thread(self.line)

    def lines(self) -> list[str]:
        """All that it says until it ends."""
        return list(iter(self.line, "<ended>"))

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """kill -9: no `finally`, no goodbye to the server."""
        self._process.kill()
        self.end()

    def end(self) -> None:
        """Let it go: it ends by itself when its input does, or is killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(PATIENCE)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()


@contextmanager
def running(program: str, *arguments: object) -> Iterator[Running]:
    """`program`, for as long as the block lasts."""
    process = Running(program, *arguments)
    try:
        yield process
    finally:
        process.end()
