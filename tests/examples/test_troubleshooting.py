"""docs/troubleshooting.md: each symptom in its tables is a real text of the package."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
ROW = re.compile(r"^\| `(.+?)` \| .+ \| .+ \|$", re.MULTILINE)
HOLE = "\0"  # a part that a text fills in when it is made
PLACEHOLDER = re.compile(r"%[.\d]*[a-z]")  # a hole of a log line


@cache
def texts() -> str:
    """The texts in the code of the package, without its docstrings, each on a line of its own."""
    sources = sorted((ROOT / "src/headgate").rglob("*.py"))
    return "\n".join(text for path in sources for text in texts_in(ast.parse(path.read_text())))


def texts_in(tree: ast.AST) -> Iterator[str]:
    documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else HOLE for part in node.values]
            yield "".join(map(str, parts)).replace("\n", " ")
        elif isinstance(node, ast.Constant) and id(node) not in documents:
            yield PLACEHOLDER.sub(HOLE, str(node.value)).replace("\n", " ")


def is_a_text(symptom: str) -> bool:
    """Whether a text of the package holds the symptom, with a hole at each of its dots."""
    parts = [re.escape(part) for part in symptom.split("…")]
    return re.search(HOLE.join(parts), texts()) is not None


def test_only_a_text_of_the_package_is_found() -> None:
    assert is_a_text("its turn is … s away")
    assert not is_a_text("its turn is … s off")
    assert not is_a_text("The log lines of the package")  # of a docstring


@pytest.mark.parametrize("symptom", ROW.findall(PAGE.read_text()))
def test_a_symptom_is_a_text_of_the_package(symptom: str) -> None:
    assert is_a_text(symptom)


def test_every_row_of_the_tables_begins_with_a_symptom() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    tables = sum(line.startswith("| you see |") for line in rows)
    assert len(rows) == 2 * tables + len(ROW.findall(PAGE.read_text()))
