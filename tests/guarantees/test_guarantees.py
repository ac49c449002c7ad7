"""docs/guarantees.md is true: every fault is in it, every test that it names is there, and nothing
in it has failed.
"""

from __future__ import annotations

import re

from tests.guarantees import table
from tests.guarantees.__main__ import PAGE

NAMED = re.compile(r"\[[^]]*]\(\.\./(tests/[^)]+\.py)\): ((?:`test_\w+`(?:, )?)+)")


def test_the_table_has_every_fault_and_the_tests_that_cite_it() -> None:
    """But for the measured parts, it is as faults.toml and the docstrings have it: `python -m
    tests.guarantees names`.
    """
    page = PAGE.read_text()
    assert table.table(table.measured_in(page)) in page
    assert [fault.number for fault in table.faults()] == [f"F{number}" for number in range(1, 61)]


def test_every_test_that_is_named_is_there() -> None:
    named = [
        (file, name)
        for file, names in NAMED.findall(PAGE.read_text())
        for name in names.replace("`", "").replace(",", "").split()
    ]
    there = {
        (file, test.name)
        for file in {file for file, _ in named}
        for test in table.tests_in(table.ROOT / file)
    }
    assert len(named) > 100
    assert set(named) <= there


def test_every_fault_has_a_test_that_has_held_or_a_reason_why_not() -> None:
    measured = table.measured_in(PAGE.read_text())
    for fault in table.faults():
        assert fault.not_here or table.citing()[fault.number], (
            f"{fault.number} has neither a test nor a reason"
        )
        assert fault.not_here or measured[fault.number].startswith(table.HELD), (
            f"{fault.number}: {measured[fault.number]}"
        )
