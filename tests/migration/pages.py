"""The parts of a page of docs/migration: two programs, the lines that both print, and its lists."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs/migration"
INDEX = FOLDER / "index.md"
PAGES = sorted(set(FOLDER.glob("*.md")) - {INDEX})

PROGRAM = re.compile(r"^## (Before|After)\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"^Both print:\n\n((?:    .*\n)+)", re.MULTILINE)
SURPRISES = re.compile(r"^## Surprises\n\n(.*?)^## ", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^- (.+?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"<!-- (test_\w+) -->\Z")
TABLE = re.compile(r"^\| .+ \| headgate \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)


class Pair(NamedTuple):
    """Two programs, and the lines that each of them prints."""

    before: str
    after: str
    language: str
    printed: str


def pair_of(page: Path) -> Pair:
    text = page.read_text()
    (_, language, before), (_, python, after) = PROGRAM.findall(text)
    assert python == "python"
    (printed,) = OUTPUT.findall(text)
    return Pair(before, after, language, inspect.cleandoc("\n" + printed) + "\n")


def surprises_of(page: Path) -> list[str | None]:
    """For each surprise of a page the test that its comment names, or None."""
    (section,) = SURPRISES.findall(page.read_text())
    named = [TEST.search(item.strip()) for item in ITEM.findall(section)]
    return [found and found[1] for found in named]


def equivalents_of(page: Path) -> list[tuple[str, str]]:
    (rows,) = TABLE.findall(page.read_text())
    cells = [row.strip("|").split(" | ") for row in rows.splitlines()]
    assert all(len(row) == 2 for row in cells), cells
    return [(theirs.strip(), ours.strip()) for theirs, ours in cells]


def file_of_tests(page: Path) -> Path:
    return Path(__file__).with_name(f"test_{page.stem.replace('-', '_')}.py")
