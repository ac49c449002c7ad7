"""docs/in-your-process.md: a test stands behind each sentence of its lists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/in-your-process.md"
ITEM = re.compile(r"^- (?:.+\n)+?(?=- |\n|\Z)", re.MULTILINE)
STATED = re.compile(r"- (.+?)(?:\s+<!-- (tests/\S+\.py)::(\w+) -->)?\n", re.DOTALL)


def defined_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def stated() -> list[tuple[str, ...]]:
    """Each item of a list: its sentence, and the file and the function of its test."""
    found = [STATED.fullmatch(item) for item in ITEM.findall(PAGE.read_text())]
    return [match.groups(default="") for match in found if match]


def test_each_statement_names_a_test_that_exists() -> None:
    assert stated()
    wrong = [
        said for said, file, test in stated() if not file or test not in defined_in(ROOT / file)
    ]
    assert wrong == []


def test_each_statement_is_one_short_sentence() -> None:
    long = [said for said, _, _ in stated() if len(said.split()) > 25]
    assert long == []
