"""python -m tests.interpreters [--quick] [VERSION ...]: the core of the suite on every Python of
this machine and every event loop.

Each gets a virtual environment in .venvs, with the packages that its tests need of the registry.
Prints a line for each interpreter and loop: how many tests have held, or why it is not here. Fails
when a test has not held. `--quick` is the run of CI, on all that the suite itself does not run on.
It takes the tests without real time on each interpreter. On the newest it takes those tests on
other loops that wait for conditions. Nothing here is known of one machine: interpreters are found
on the PATH and among those of pyenv.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
VENVS = ROOT / ".venvs"
WANTED = ("3.11", "3.12", "3.13", "3.14", "3.13t", "3.14t")  # t: free-threaded
Stories = tuple[str, ...]  # the arguments of pytest
NEEDS = ["-e", ".[suite]"]
OWN = "asyncio"
LOOPS = (OWN, "eager", "uvloop")
UVLOOP = "uvloop>=0.21"
CORE = (
    "tests/unit",
    "tests/gate",
    "tests/bad_input",
    "tests/conformance",
    "tests/classics",
    "tests/faults",
    "-m",
    "not proof",
)
TIMELESS = ("tests/conformance", "tests/classics", "-k", "not redis")
CALM = tuple(
    f"tests/conformance/test_{what}.py"
    for what in ("other_loops", "local_waiters_between_loops", "threads_and_loops", "permits")
)
PATIENCE = 1800  # seconds for one line of the table
HEAD = "| Python | loop | tests that held | failed | seconds |\n|---|---|---|---|---|"
IDENTITY = """
import sys, sysconfig
free = "t" * bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print("{}.{}".format(*sys.version_info) + free, "{}.{}.{}".format(*sys.version_info))
"""


class Python(NamedTuple):
    """`version`: 3.13, or 3.13t; `release`: 3.13.0."""

    version: str
    release: str
    program: str

    @property
    def venv(self) -> Path:
        return VENVS / f"{self.release}{'t' * self.version.endswith('t')}"


class Row(NamedTuple):
    """Of the table; `why`: the reason why it could not run here."""

    python: str
    loop: str
    held: int = 0
    failed: tuple[str, ...] = ()
    seconds: float = 0.0
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"| {self.python} | {self.loop} | not here: {self.why} | | |"
        tests = f"{self.held:,} | {len(self.failed)}"
        return f"| {self.python} | {self.loop} | {tests} | {self.seconds:.0f} |"


def main() -> int:
    words = argparse.ArgumentParser(
        prog="python -m tests.interpreters", description=__doc__.splitlines()[0]
    )
    words.add_argument("versions", nargs="*", metavar="VERSION", help=f"of {', '.join(WANTED)}")
    words.add_argument("--quick", action="store_true", help="what CI does")
    asked = words.parse_args()
    print(HEAD, flush=True)
    failed: list[str] = []
    for line in lines(asked.versions or list(WANTED), asked.quick):
        print(line, flush=True)
        failed += [f"{line.python}, {line.loop}: {test}" for test in line.failed]
    print("".join(f"FAILED {test}\n" for test in failed), end="")
    return bool(failed)


def lines(versions: list[str], quick: bool) -> Iterator[Row]:
    """One for each interpreter and loop, and for each interpreter that is not here."""
    found = {python.version: python for python in interpreters() if python.version in versions}
    newest = max(
        (version for version in found if not version.endswith("t")), key=number, default=""
    )
    for version in versions:
        if version in found:
            yield from run_each_loop(
                found[version], quickly(version, newest) if quick else dict.fromkeys(LOOPS, CORE)
            )
        else:
            yield Row(version, "any", why="no such interpreter on this machine")


def quickly(version: str, newest: str) -> dict[str, Stories]:
    """The tests that CI runs there, by loop: the suite itself has run all on this one's."""
    mine = {} if version == own() else {OWN: TIMELESS}
    return mine | (dict.fromkeys(LOOPS[1:], CALM) if version == newest else {})


def run_each_loop(python: Python, stories: dict[str, Stories]) -> Iterator[Row]:
    trouble = installed(python) if stories else ""
    for loop, words in stories.items():
        why = trouble or lacking(python, loop)
        yield Row(python.release, loop, why=why) if why else run_on(python, loop, words)


# Finding them -------------------------------------------------------------------------------------


def interpreters() -> Iterator[Python]:
    """The first of each version: this one, those on the PATH, those of pyenv."""
    seen: set[str] = set()
    for program in programs():
        done = subprocess.run(
            [program, "-c", IDENTITY], capture_output=True, text=True, check=False
        )
        version, _, release = done.stdout.strip().partition(" ")
        if version in WANTED and version not in seen:
            seen.add(version)
            yield Python(version, release, program)


def programs() -> Iterator[str]:
    yield sys.executable
    yield from filter(None, (shutil.which(f"python{version}") for version in WANTED))
    folder = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    yield from (str(program) for program in sorted(folder.glob("3.*/bin/python"), reverse=True))


def number(version: str) -> int:
    return int(version.rstrip("t").partition(".")[2])


def own() -> str:
    return "{}.{}".format(*sys.version_info)


# Setting them up ----------------------------------------------------------------------------------


def installed(python: Python) -> str:
    """Make or bring up to date its virtual environment; return the obstacle, if any."""
    if not (python.venv / "bin/python").exists() and (
        why := failure([python.program, "-m", "venv", str(python.venv)])
    ):
        return why
    trouble = failure([*pip(python), *NEEDS])
    failure([*pip(python), UVLOOP])  # of which there need not be a wheel: it is missed later
    return trouble


def lacking(python: Python, loop: str) -> str:
    """Why this loop cannot be had there."""
    check = f"from tests import loops; loops.LOOPS[{loop!r}]()"
    said = failure([str(python.venv / "bin/python"), "-c", check])
    return said.rpartition(": ")[2] if "LoopMissing" in said else said


def pip(python: Python) -> list[str]:
    return [
        str(python.venv / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]


def failure(command: list[str]) -> str:
    """The last line of a command that fails, and nothing of one that does not."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return (done.stdout.strip() or f"{done.returncode}").splitlines()[-1] if done.returncode else ""


# Running them -------------------------------------------------------------------------------------


def run_on(python: Python, loop: str, stories: Stories) -> Row:
    """The results of the tests, there and on that loop."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = ["-q", "-p", "no:cacheprovider", "--loop", loop, f"--junitxml={report}", *stories]
        start = monotonic()
        done = subprocess.run(
            [str(python.venv / "bin/python"), "-m", "pytest", *words],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        held, failed = read(report) if report.exists() else (0, ("the whole run",))
    if failed:
        print(done.stdout, file=sys.stderr)
    return Row(python.release, loop, held, failed, monotonic() - start)


def read(report: Path) -> tuple[int, tuple[str, ...]]:
    """How many have held, and which have not."""
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if any(case.find(word) is not None for word in ("failure", "error", "skipped"))
    ]
    return len(cases) - len(failed), tuple(failed)


if __name__ == "__main__":
    sys.exit(main())
