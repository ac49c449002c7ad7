"""The command `headgate` as a process of its own: started, signalled, and its output read.

A start takes a third of a second of a core. So each verb is started once or twice, and the other
stories run it in the test's process.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.request import urlopen

from jsonschema import Draft202012Validator
from prometheus_client.parser import text_string_to_metric_families

import headgate
from headgate.cli import main
from headgate.cli.parser import parse
from tests.machine import scaled
from tests.processes import environment
from tests.servers import free_port

PATIENCE = scaled(30.0)  # seconds for an end: never waited for when all is well
SCHEMAS = json.loads((Path(headgate.__file__).parent / "cli/schemas.json").read_text())
VALIDATOR = Draft202012Validator(SCHEMAS)
Series = dict[tuple[str, ...], float]
COMMAND = [sys.executable, "-W", "error", "-m", "headgate"]


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def objects(self) -> list[dict[str, Any]]:
        """The objects of --json, each as its schema describes it."""
        found = [json.loads(line) for line in self.out.splitlines()]
        for each in found:
            VALIDATOR.validate(each)
        return found

    @property
    def object(self) -> dict[str, Any]:
        (found,) = self.objects
        return found


def variables(store: str) -> dict[str, str]:
    return {**environment(), "HEADGATE_STORE": store}


def headgate_done(store: str, *words: object, stdin: str = "") -> Done:
    """`headgate WORDS` after its end."""
    return Started(store, *words, stdin=stdin).done()


class Started:
    """`headgate WORDS`, running. It is the leader of a process group without a terminal.

    `around`: a command that runs it.
    """

    def __init__(
        self, store: str, *words: object, stdin: str | None = None, around: Sequence[str] = ()
    ) -> None:
        self._stdin = stdin
        self._process = subprocess.Popen(
            [*around, *COMMAND, *map(str, words)],
            env=variables(store),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )

    def line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def write(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text)
        self._process.stdin.flush()

    def signal(self, number: signal.Signals) -> None:
        """To headgate alone, not to the processes that it has started."""
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """Kill it, unless it has ended."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()

    def done(self) -> Done:
        out, err = self._process.communicate(self._stdin, timeout=PATIENCE)
        return Done(self._process.returncode, out, err)


@contextmanager
def terminal(store: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """`headgate WORDS` on a terminal, and the descriptor of what it shows."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (30, 120))
    try:
        with subprocess.Popen(
            [*COMMAND, *words],
            env={**variables(store), "TERM": "xterm", "COLUMNS": "120"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            try:
                yield process, ours
                process.wait(PATIENCE)
            finally:
                process.kill()
    finally:
        os.close(ours)
        os.close(theirs)


def read_until(screen: int, text: str) -> str:
    """All that the terminal has shown when `text` appears, or PATIENCE is over."""
    shown, end = "", monotonic() + PATIENCE
    while text not in shown and monotonic() < end:
        shown += os.read(screen, 10_000).decode()
    return shown


@contextmanager
def exporting(store: str) -> Iterator[tuple[Started, str]]:
    """`headgate exporter`, and the address that it serves."""
    started = Started(store, "exporter", "--port", free_port())
    try:
        address = started.line()
        assert address.startswith("http://127.0.0.1:"), started.done().err
        yield started, address
    finally:
        started.end()


def scrape(address: str) -> Series:
    """Each series: its name and the values of its labels, in the order of their names."""
    with urlopen(address, timeout=scaled(10)) as reply:
        text = reply.read().decode()
    return {
        (
            each.name.removeprefix("headgate_"),
            *(value for _, value in sorted(each.labels.items())),
        ): each.value
        for family in text_string_to_metric_families(text)
        for each in family.samples
    }


async def scraped(address: str) -> Series:
    """The loop of the test goes on meanwhile."""
    return await asyncio.to_thread(scrape, address)


async def headgate_here(store: str, *words: str) -> Done:
    """`headgate WORDS` in this process, which takes a hundredth of the time.

    The store is that of another process: it has not seen the limits of the test's limiters.
    """
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            url = f"{store}{'&' if '?' in store else '?'}socket_connect_timeout=6"
            code = await main.finish(parse(["--store", url, *words]))
        except SystemExit as end:  # argparse
            code = int(end.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def is_harmless(text: str) -> bool:
    """Whether a terminal only shows it."""
    return re.fullmatch(r"[ -~\n]*", text) is not None
