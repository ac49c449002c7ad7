"""The table of faults: the text of faults.toml for each, the tests whose docstrings cite it, and
the results of running those.

A test is known by its file and its function. The results of a run stay in the page until the next
one.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from tests.definitions import definitions_in

ROOT = Path(__file__).parents[2]
FAULTS = Path(__file__).with_name("faults.toml")
NUMBER = re.compile(r"\bF[1-9]\d?\b")
HEAD = "| | the fault | promises | what holds | tests | measured |\n|---|---|---|---|---|---|"
ROW = re.compile(r"^\| (F\d+) \| .* \| (.*) \|$", re.MULTILINE)
HELD = "held"


class Fault(NamedTuple):
    """One line of the catalogue; `not_here`: the part that no test of ours has, and why."""

    number: str
    fault: str
    promises: str
    holds: str
    not_here: str = ""


class Test(NamedTuple):
    """`file` from the root of the repository."""

    file: str
    name: str

    @property
    def node(self) -> str:
        return f"{self.file}::{self.name}"


@cache
def faults() -> list[Fault]:
    return [Fault(number, **said) for number, said in tomllib.loads(FAULTS.read_text()).items()]


@cache
def citing() -> dict[str, list[Test]]:
    """The tests whose docstrings cite a fault, by its number."""
    found: dict[str, list[Test]] = defaultdict(list)
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        for function in tests_in(path):
            for number in sorted(set(NUMBER.findall(ast.get_docstring(function) or ""))):
                found[number].append(Test(path.relative_to(ROOT).as_posix(), function.name))
    return found


def tests_in(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in definitions_in(path.read_text()):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_"
        ):
            yield node


def table(measured: dict[str, str]) -> str:
    """All of it; `measured`: the last cells, by number."""
    return "\n".join(
        [HEAD, *(row(fault, measured.get(fault.number, "not run yet")) for fault in faults())]
    )


def row(fault: Fault, measured: str) -> str:
    """`measured` is overruled where there is nothing to measure."""
    tests = citing()[fault.number]
    cell = "; ".join(
        f"[{short(file)}](../{file}): {', '.join(names)}" for file, names in by_file(tests).items()
    )
    if fault.not_here:
        measured = f"not tried: {fault.not_here}"
    known = f"| {fault.number} | {fault.fault} | {fault.promises} | {fault.holds}"
    return f"{known} | {cell or 'none'} | {measured} |"


def by_file(tests: list[Test]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        names[test.file].append(f"`{test.name}`")
    return names


def short(file: str) -> str:
    """tests/gate/test_token_bucket.py is gate/token_bucket."""
    return file[6:-3].replace("test_", "")


def measured_in(page: str) -> dict[str, str]:
    """The statements of the page about the last run, by number."""
    return dict(ROW.findall(page))


def survived(measured: dict[str, str]) -> tuple[int, int]:
    """How many faults were survived, of how many that were tried."""
    tried = [measured.get(fault.number, "") for fault in faults() if not fault.not_here]
    return sum(said.startswith(HELD) for said in tried), len(tried)


# Running them -------------------------------------------------------------------------------------


def run(numbers: list[str]) -> dict[str, str]:
    """Run every test that cites one of these faults, and return the results, by number."""
    wanted = sorted({test.node for number in numbers for test in citing()[number]})
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *wanted,
        ]
        subprocess.run(words, cwd=ROOT, check=False)
        outcomes = read(report)
    return {number: result_of(citing()[number], outcomes) for number in numbers}


def read(report: Path) -> dict[str, Counter[str]]:
    """How often each test has held and failed, over its parameters."""
    outcomes: dict[str, Counter[str]] = defaultdict(Counter)
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/") + ".py"
        failed = any(case.find(word) is not None for word in ("failure", "error", "skipped"))
        outcomes[f"{file}::{case.get('name', '').partition('[')[0]}"][
            "failed" if failed else HELD
        ] += 1
    return outcomes


def result_of(tests: list[Test], outcomes: dict[str, Counter[str]]) -> str:
    sums = sum((outcomes[test.node] for test in tests), Counter[str]())
    if sums["failed"] or not sums[HELD]:
        return f"NOT HELD in {sums['failed']} of {sums.total()} runs"
    return f"{HELD} in {sums.total():,} runs"
