"""The structure of the package: the command that measures it, and the sizes of its classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import structure

PACKAGE = Path("src/headgate")
# The attributes and methods of each class that is larger than a reader holds in mind.
LARGE = {
    "Client": (16, 13),
    "Limiter": (7, 36),
    "PendingAcquire": (16, 5),
    "Permit": (15, 14),
    "TokenBucketRule": (13, 17),
}


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
def test_an_acquire_takes_one_or_two_calls_to_the_server_and_no_more_moves_than_it_did() -> None:
    """The connection for notifications takes a few moves more or less, as its replies arrive."""
    passes, queues = structure.paths(structure.HERE.parent / "src").values()
    assert (passes["calls to the server"], queues["calls to the server"]) == (1, 2)
    assert passes["moves"] <= 42
    assert queues["moves"] <= 103


def package_texts() -> structure.Texts:
    package = structure.HERE.parent / "src" / "headgate"
    return {path: path.read_text(encoding="utf-8") for path in package.rglob("*.py")}


def test_no_function_has_more_branches_than_a_reader_holds_in_mind() -> None:
    found = [block for text in package_texts().values() for block in structure.blocks(text)]
    assert [each.name for each in found if each.complexity > structure.MOST_COMPLEXITY] == []


def test_no_other_class_is_large_and_those_that_are_do_not_grow() -> None:
    """A class that has shrunk has its new size in the table, or leaves it."""
    large = {
        name: (attributes, methods)
        for attributes, methods, name in structure.classes(package_texts())
        if attributes > structure.MOST_ATTRIBUTES or methods > structure.MOST_METHODS
    }
    assert large == LARGE
