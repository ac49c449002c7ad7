"""python -m tests.guarantees [PART ...]: write docs/guarantees.md anew, all parts of it or those
that are named.

    names     the table of faults as it stands in tests/guarantees/faults.toml and in the
              docstrings of tests; nothing is run
    faults    run every test that cites a fault (five minutes), or one of those after `--only`,
              and write down what came of it
    seeds     simulate fleets, seed by seed, for as long as `--seeds FIRST END` says
    loops     python -m tests.interpreters --quick: other Pythons and event loops (minutes)
    peers     python -m benchmarks.faults (minutes)

Measured parts stay in the page until they are measured again.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from textwrap import fill

from tests.guarantees import table

PAGE = table.ROOT / "docs/guarantees.md"
WIDTH = 100  # columns, which tests/test_language.py checks


def main() -> int:
    words = argparse.ArgumentParser(
        prog="python -m tests.guarantees", description=__doc__.splitlines()[0]
    )
    words.add_argument(
        "parts", nargs="*", choices=[[], *PARTS], metavar="PART", help=" ".join(PARTS)
    )
    words.add_argument("--seeds", nargs=2, type=int, default=(0, 2000), metavar=("FIRST", "END"))
    words.add_argument("--only", nargs="*", metavar="F")
    asked = words.parse_args()
    for part in asked.parts or PARTS:
        PARTS[part](asked)
    return 0


# Parts --------------------------------------------------------------------------------------------


def names(_asked: argparse.Namespace) -> None:
    write("faults", table.table(table.measured_in(PAGE.read_text())))
    count()


def faults(asked: argparse.Namespace) -> None:
    numbers = asked.only or [fault.number for fault in table.faults() if not fault.not_here]
    write("faults", table.table(table.measured_in(PAGE.read_text()) | table.run(numbers)))
    count()


def count() -> None:
    survived, tried = table.survived(table.measured_in(PAGE.read_text()))
    write(
        "survived",
        f"- **Faults**: {survived} survived of {tried} tried, of {len(table.faults())} in the "
        "catalogue.",
    )


def seeds(asked: argparse.Namespace) -> None:
    first, end = asked.seeds
    printed = output("tests.simulation", "--seeds", str(first), str(end), "--jobs", "2")
    result = printed.splitlines()[-1].replace("; ", ". ")
    write("seeds", wrapped(f"- **Simulation**: seeds {first} to {end - 1}, {today()}: {result}."))


def loops(_asked: argparse.Namespace) -> None:
    write(
        "loops",
        f"{output('tests.interpreters', '--quick').strip()}\n\nMeasured {today()} by `./run "
        "interpreters --quick`.",
    )


def peers(_asked: argparse.Namespace) -> None:
    write(
        "peers",
        f"{output('benchmarks.faults').strip()}\n\nMeasured {today()} by `python -m "
        "benchmarks.faults`.",
    )


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "names": names,
    "faults": faults,
    "seeds": seeds,
    "loops": loops,
    "peers": peers,
}


# The page -----------------------------------------------------------------------------------------


def write(section: str, text: str) -> None:
    """Between the two comments that name the section."""
    page = PAGE.read_text()
    begin, end = f"<!-- {section} -->", f"<!-- end of {section} -->"
    assert begin in page, f"the page has no section {section}"
    assert end in page, f"the section {section} has no end"
    PAGE.write_text(
        re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{text}\n{end}", page, flags=re.DOTALL)
    )


def wrapped(item: str) -> str:
    return fill(item, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def output(module: str, *arguments: str) -> str:
    """The output of another command of the repository, with any exit status."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=table.ROOT,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.stdout


def today() -> str:
    return datetime.now(UTC).date().isoformat()


if __name__ == "__main__":
    sys.exit(main())
