"""docs/migration: both programs of a page print the same, and tests stand behind its surprises."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import headgate
from headgate.testing import ManualClock
from tests.examples.test_docs import LINK
from tests.migration.pages import (
    INDEX,
    PAGES,
    equivalents_of,
    file_of_tests,
    pair_of,
    surprises_of,
)
from tests.peers import missing, run_in_node

SERVER = "redis://localhost:6379"
ON_A_SERVER = [page for page in PAGES if SERVER in pair_of(page).after]
IN_MEMORY = [page for page in PAGES if page not in ON_A_SERVER]
LIMITER = re.compile(r"`(Limiter\([^`]*\))`")


def title(page: Path) -> str:
    return page.stem


def run(program: str) -> None:
    """As Python runs a file."""
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})


def printed(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    run(program)
    out, err = capsys.readouterr()
    assert err == ""
    return out


def befores(pages: list[Path], language: str) -> list[Path]:
    """The pages whose first program can run here; the head of the run says which cannot."""
    return [
        page for page in pages if pair_of(page).language == language and page.stem not in missing()
    ]


# The programs


@pytest.mark.parametrize("page", befores(IN_MEMORY, "python"), ids=title)
def test_the_program_before_prints_the_lines_of_the_page(
    page: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pair_of(page)
    assert printed(pair.before, capsys) == pair.printed


@pytest.mark.parametrize("page", IN_MEMORY, ids=title)
def test_the_program_after_prints_the_same_lines(
    page: Path, clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pair_of(page)
    assert printed(pair.after, capsys) == pair.printed


@pytest.mark.parametrize("page", befores(ON_A_SERVER, "python"), ids=title)
def test_the_program_before_prints_the_lines_of_the_page_on_a_server(
    page: Path, admin_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pair_of(page)
    assert printed(pair.before.replace(SERVER, admin_url), capsys) == pair.printed


@pytest.mark.parametrize("page", ON_A_SERVER, ids=title)
def test_the_program_after_prints_the_same_lines_on_a_server(
    page: Path, redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = pair_of(page)
    assert printed(pair.after.replace(SERVER, redis_url), capsys) == pair.printed


@pytest.mark.proof("needs node")
@pytest.mark.parametrize("page", befores(PAGES, "js"), ids=title)
def test_the_program_before_prints_the_lines_of_the_page_in_node(page: Path) -> None:
    pair = pair_of(page)
    assert run_in_node(pair.before) == pair.printed


# The pages


def test_the_index_links_every_page() -> None:
    linked = LINK.findall(INDEX.read_text())
    assert {page.name for page in PAGES} <= set(linked)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_a_test_stands_behind_each_surprise(page: Path) -> None:
    nodes = ast.parse(file_of_tests(page).read_text()).body
    tests = [node.name for node in nodes if getattr(node, "name", "").startswith("test_")]
    assert sorted(map(str, surprises_of(page))) == sorted(tests)


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_every_limiter_and_name_in_the_table_exists(page: Path) -> None:
    names: dict[str, Any] = vars(headgate).copy()
    ours = [cell for _, cell in equivalents_of(page)]
    limiters = [code for cell in ours for code in LIMITER.findall(cell)]
    assert limiters
    for code in limiters:
        eval(code, names)
    methods = re.findall(r"\bapi(?:\[[^\]]*\])?\.(\w+)", " ".join(ours))
    assert [name for name in methods if not hasattr(headgate.Limiter, name)] == []
