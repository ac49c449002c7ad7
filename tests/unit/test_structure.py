"""The command that measures the structure of the package counts correctly."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import structure

PACKAGE = Path("src/headgate")


def texts(**files: str) -> structure.Texts:
    return {PACKAGE / f"{name}.py": text for name, text in files.items()}


def test_modules_that_import_one_another_are_a_circle_even_if_only_for_types() -> None:
    python = texts(
        a="from headgate import b",
        b="if TYPE_CHECKING:\n    from headgate.c import C",
        c="import headgate.a",
        d="from headgate import a",
    )
    assert structure.circles(PACKAGE, python) == [{"headgate.a", "headgate.b", "headgate.c"}]


def test_an_attribute_that_several_methods_assign_counts_once() -> None:
    python = texts(
        a="class A:\n"
        "    def b(self):\n        self.c = self.d = 1\n"
        "    async def e(self):\n        self.c = other.f = 2\n"
    )
    assert list(structure.classes(python)) == [(2, 2, "A")]


def test_methods_and_functions_count_once_each() -> None:
    found = structure.blocks("class A:\n    def b(self):\n        pass\ndef c(): pass\n")
    assert sorted(block.name for block in found) == ["b", "c"]


@pytest.mark.proof
def test_an_acquire_that_passes_at_once_is_one_call_to_the_server() -> None:
    passes, queues = structure.paths(structure.HERE.parent / "src").values()
    assert passes["calls to the server"] == 1
    assert passes["calls"] < queues["calls"]
