"""Which tests hold which invariant: read off the tests' docstrings, written into the table of
docs/promises.md.

Run it when a test begins or ceases to cite an invariant: `python -m tests.examples.promises`
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from tests.definitions import definitions_in

ROOT = Path(__file__).parents[2]
PROMISES = ROOT / "docs/promises.md"
NUMBER = re.compile(r"\b(?:TL1|S[1-9]|L[1-6]|T(?:1[0-2]|[1-9])|H[12]|A[12])\b")  # of an invariant
ROW = re.compile(r"^\| (TL1|[SLTHA]\d+) \| (.*) \| (.*) \|$", re.MULTILINE)


@cache
def citing() -> dict[str, list[Path]]:
    """The files of tests in which a docstring cites an invariant, by its number."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(ROOT.glob("tests/**/test_*.py")):
        for number in {
            number
            for node in definitions_in(path.read_text())
            for number in NUMBER.findall(ast.get_docstring(node) or "")
        }:
            found[number].append(path)
    return found


def links(number: str) -> str:
    """The third cell of a line: tests/gate/test_token_bucket.py is [gate/token_bucket](...)."""
    names = [path.relative_to(ROOT).as_posix() for path in citing()[number]]
    return (
        ", ".join(f"[{name[6:-3].replace('test_', '')}](../{name})" for name in names) or "none yet"
    )


if __name__ == "__main__":
    text = PROMISES.read_text()
    PROMISES.write_text(ROW.sub(lambda row: f"| {row[1]} | {row[2]} | {links(row[1])} |", text))
