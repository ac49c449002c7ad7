"""The programs of the recipes, as a reader starts them: processes of their own.

This module has a test's view of such a process: its output, and its end.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from headgate import Limiter
from tests.machine import scaled_now
from tests.processes import environment

RECIPES = Path(__file__).parents[2] / "examples/recipes"
PATIENCE = 20.0  # seconds of an idle machine for a line or an end


class Program:
    """`python` with these words, in the folder of the recipes: `with Program("-m", "rq.cli") as
    worker`.

    Its stdout and stderr are one text. At the end of the block a process that still runs is killed,
    and so are its children.
    """

    def __init__(self, *words: str, **variables: str) -> None:
        self._text = ""
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, *words],
            cwd=RECIPES,
            env={**environment(lean=False), "PYTHONUNBUFFERED": "1", **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        # A test run that is killed cleans nothing up. Then the guard's input ends, and the guard
        # ends the processes.
        guard = ["sh", "-c", 'read -r _; kill -9 -- "-$0"', str(self._process.pid)]
        self._guard = subprocess.Popen(
            guard, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self._text += line
                self._changed.notify_all()

    @property
    def text(self) -> str:
        """Its output so far."""
        with self._changed:
            return self._text

    def says(self, pattern: str, times: int = 1) -> re.Match[str]:
        """Wait until it has written a match of `pattern` so many times, and return the last."""
        found: list[re.Match[str]] = []

        def met() -> bool:
            found[:] = re.finditer(pattern, self._text)
            return len(found) >= times or not self._reader.is_alive()

        with self._changed:
            self._changed.wait_for(met, scaled_now(PATIENCE))
            assert len(found) >= times, f"it did not say {pattern!r}:\n{self._text}"
        return found[times - 1]

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ends_without(self, pattern: str) -> bool:
        """Wait until it has ended, or has written a match of `pattern`. Return whether it has not
        written one.
        """
        until = time.monotonic() + scaled_now(PATIENCE)
        with self._changed:
            while not re.search(pattern, self._text):
                if self._process.poll() is not None or time.monotonic() > until:
                    return True
                self._changed.wait(0.1)
        return False

    def ended(self) -> int:
        """Wait until it has ended, and return its code."""
        try:
            return self._process.wait(scaled_now(PATIENCE))
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end:\n{self.text}") from None

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *outcome: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._guard.kill()
        self._guard.communicate()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()


async def used(limiter: Limiter, kind: str) -> int:
    """How much of its limit of that kind is in use."""
    return next(limit.used for limit in (await limiter.astatus()).limits if limit.kind == kind)
