"""docs/recipes: each page shows a program of examples/recipes, and each program has its page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.recipes.programs import RECIPES

PAGES = RECIPES.parents[1] / "docs/recipes"
SHOWN = re.compile(
    r"^<!-- program: (\S+) -->$((?:\n+```python\n.*?\n```$)+)", re.MULTILINE | re.DOTALL
)
BLOCK = re.compile(r"^```python\n(.*?\n)```$", re.MULTILINE | re.DOTALL)
PROGRAMS = sorted(path.name for path in RECIPES.iterdir() if path.is_file())


def shown() -> dict[str, list[str]]:
    """By the names of the programs: the blocks that the pages show of them."""
    found = [
        match for page in sorted(PAGES.glob("*.md")) for match in SHOWN.finditer(page.read_text())
    ]
    return {match[1]: BLOCK.findall(match[2]) for match in found}


def code_of(path: Path) -> list[str]:
    """A program's text, or the cells of a notebook."""
    if path.suffix != ".ipynb":
        return [path.read_text()]
    return ["".join(cell["source"]) + "\n" for cell in json.loads(path.read_text())["cells"]]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_page_shows_the_program_as_it_is(program: str) -> None:
    assert shown()[f"examples/recipes/{program}"] == code_of(RECIPES / program)


def test_each_page_shows_a_program_and_is_on_the_list() -> None:
    listed = re.findall(r"\]\((\w[\w-]*\.md)\)", (PAGES / "index.md").read_text())
    assert sorted([*listed, "index.md"]) == sorted(page.name for page in PAGES.glob("*.md"))
    assert len(shown()) == len(PROGRAMS) == len(listed)


def test_the_pages_show_no_python_but_the_programs() -> None:
    """The tests of this folder run the programs, and tests/examples/test_docs.py no block of these
    pages.
    """
    blocks = [block for page in PAGES.glob("*.md") for block in BLOCK.findall(page.read_text())]
    assert len(blocks) == sum(map(len, shown().values()))
