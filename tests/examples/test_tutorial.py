"""docs/tutorial.md: its programs print the output of the page.

A block that begins with the name of a file, `# loop.py`, is a program. An indented line such as
`$ python loop.py` runs it, and the lines below are its output. The shorter blocks are run by
test_docs.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.examples.test_docs import BESIDE, BLOCK, DOCUMENTS, PROGRAM, ROOT, SERVER
from tests.machine import scaled_now
from tests.servers import Server, free_port

METRICS = [ROOT / name for name in ("README.md", "docs/telemetry.md", "docs/in-production.md")]
TUTORIAL = ROOT / "docs/tutorial.md"
PORT = "8429"  # of the tutorial's service
RUN = re.compile(r"^    \$ python (.+)\n((?:    .+\n)*)", re.MULTILINE)
PATIENCE = 60.0  # seconds for one program, on an idle machine


def programs(page: Path) -> dict[str, str]:
    """The programs of a page by their names."""
    blocks = [block[2] for block in BLOCK.finditer(page.read_text())]
    return {found[1]: source for source in blocks if (found := PROGRAM.match(source))}


def runs(page: Path) -> list[tuple[list[str], str]]:
    """The command lines of a page after `python`, each with the output that the page shows."""
    found = RUN.findall(page.read_text())
    return [(shlex.split(command), shown.replace("    ", "")) for command, shown in found]


def pattern(shown: str) -> str:
    """The pattern of an output: a zero is a zero, and any other number may differ."""
    return re.sub(r"\b[1-9]\d*\b", r"[1-9]\\d*", re.escape(shown))


def test_a_zero_is_exact_and_other_numbers_are_not() -> None:
    shown = pattern("20 answered, 0 refused\n")
    assert re.fullmatch(shown, "23 answered, 0 refused\n")
    assert not re.fullmatch(shown, "20 answered, 7 refused\n")
    assert not re.fullmatch(shown, "0 answered, 0 refused\n")


def test_each_program_of_the_tutorial_is_run_and_no_other_page_has_one() -> None:
    """But for the pages about metrics: tests/telemetry/test_prometheus.py runs their programs."""
    pages = [path for path in DOCUMENTS if path.parent not in BESIDE and path not in METRICS]
    assert [path for path in pages if programs(path)] == [TUTORIAL]
    run = dict.fromkeys(command[0] for command, _ in runs(TUTORIAL))
    assert list(programs(TUTORIAL)) == list(run)


@pytest.mark.proof
def test_the_programs_print_the_output_on_the_page(own_server: Server, tmp_path: Path) -> None:
    """Given the service and a Redis server, each program prints the lines below its command."""
    changes = {PORT: str(free_port()), SERVER: own_server.url}
    for name, source in programs(TUTORIAL).items():
        (tmp_path / name).write_text(changed(source, changes))
    (service, ready), *others = runs(TUTORIAL)
    for command, shown in others:
        words = [changed(word, changes) for word in command]
        with started(tmp_path, service, ready):  # anew, because it remembers the calls of a second
            python = [sys.executable, *words]
            patience = scaled_now(PATIENCE)
            done = subprocess.run(python, **there(tmp_path), timeout=patience, check=False)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert re.fullmatch(pattern(shown), done.stdout), (command, done.stdout)


def changed(text: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


def there(folder: Path) -> dict[str, Any]:
    """The options that start a program in a folder: it finds the modules that this Python finds."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    outputs = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return {"cwd": folder, "env": environment, **outputs}


@contextmanager
def started(folder: Path, command: list[str], ready: str) -> Iterator[None]:
    """A program that runs until the end of the block, from the moment at which it says that it is
    ready.
    """
    with subprocess.Popen([sys.executable, *command], **there(folder)) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == ready
            yield
        finally:
            process.kill()
