"""docs/in-your-process.md: a test stands behind each sentence of its lists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/in-your-process.md"
STATED = re.compile(r"^- (.+?)(?: <!-- (tests/\S+\.py)::(\w+) -->)?$", re.MULTILINE)


def defined_in(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_statement_names_a_test_that_exists() -> None:
    stated = STATED.findall(PAGE.read_text())
    assert stated
    wrong = [said for said, file, test in stated if not file or test not in defined_in(ROOT / file)]
    assert wrong == []


def test_each_statement_is_one_short_sentence() -> None:
    long = [said for said, _, _ in STATED.findall(PAGE.read_text()) if len(said.split()) > 25]
    assert long == []
