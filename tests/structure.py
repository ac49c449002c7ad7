"""The structure of the package in figures: `python -m tests.structure [SOURCE]`.

SOURCE is the folder `src` of another version, for a comparison. The command starts a redis-server
for the paths of an acquire.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from radon.complexity import cc_visit
from radon.metrics import mi_visit

from tests.definitions import definitions_in
from tests.servers import Server

HERE = Path(__file__).parent
SHOWN = 8  # the rows of each list
MOST_ATTRIBUTES, MOST_METHODS, MOST_COMPLEXITY = 12, 25, 10

Texts = dict[Path, str]


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m tests.structure", description=__doc__)
    options.add_argument("source", nargs="?", type=Path, default=HERE.parent / "src")
    source = options.parse_args().source.resolve()
    package = source / "headgate"
    texts = {
        path: path.read_text(encoding="utf-8")
        for kind in ("*.py", "*.lua")
        for path in sorted(package.rglob(kind))
    }
    python = {path: text for path, text in texts.items() if path.suffix == ".py"}
    lines = sum(len(text.splitlines()) for text in texts.values())
    characters = sum(len("".join(text.split())) for text in texts.values())
    print(f"{len(texts)} files, {lines:,} lines, {characters:,} characters without white space")
    show_circles(circles(package, python), package)
    show_classes(python)
    show_complexity(python, package)
    for path, figures in paths(source).items():
        print(f"\nAn acquire on Redis that {path}:")
        print(", ".join(f"{number} {what}" for what, number in figures.items()))


# Imports ------------------------------------------------------------------------------------------


def circles(package: Path, python: Texts) -> list[set[str]]:
    """The sets of modules that import one another. Imports for types count, too."""
    modules = {name_of(path, package): text for path, text in python.items()}
    knows = {name: imported(text) & modules.keys() - {name} for name, text in modules.items()}
    reached = {name: reach(name, knows) for name in knows}
    found: list[set[str]] = []
    for name in knows:
        circle = {other for other in reached[name] if name in reached[other]}
        if circle and circle not in found:
            found.append(circle)
    return found


def name_of(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names.update(f"{node.module}.{each.name}" for each in node.names)
    return names


def reach(name: str, knows: dict[str, set[str]]) -> set[str]:
    """All modules to which imports lead from this one."""
    found: set[str] = set()
    ahead = knows[name]
    while ahead:
        found |= ahead
        ahead = {each for other in ahead for each in knows[other]} - found
    return found


def show_circles(found: list[set[str]], package: Path) -> None:
    print(f"\n{len(found)} import circles, with {sum(map(len, found))} modules")
    for circle in found:
        print("  " + ", ".join(sorted(each.removeprefix(f"{package.name}.") for each in circle)))


# Classes and functions ----------------------------------------------------------------------------


def classes(python: Texts) -> Iterator[tuple[int, int, str]]:
    """For each class: its attributes, its methods, its name."""
    for text in python.values():
        for node in definitions_in(text):
            if isinstance(node, ast.ClassDef):
                methods = [
                    each
                    for each in node.body
                    if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))
                ]
                yield len({*attributes(methods)}), len(methods), node.name


def attributes(methods: Iterable[ast.AST]) -> Iterator[str]:
    """The attributes that methods assign to `self`."""
    for method in methods:
        for node in ast.walk(method):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                yield node.attr


def show_classes(python: Texts) -> None:
    found = sorted(classes(python), reverse=True)
    large = [each for each in found if each[0] > MOST_ATTRIBUTES or each[1] > MOST_METHODS]
    print(
        f"\n{len(large)} classes with over {MOST_ATTRIBUTES} attributes or {MOST_METHODS} methods"
    )
    for count, methods, name in large:
        print(f"  {count:3} {methods:3} {name}")


def show_complexity(python: Texts, package: Path) -> None:
    functions = sorted(
        ((block.complexity, block.name) for text in python.values() for block in blocks(text)),
        reverse=True,
    )
    above = [each for each in functions if each[0] > MOST_COMPLEXITY]
    print(f"\n{len(above)} functions of a complexity above {MOST_COMPLEXITY}")
    for complexity, name in above[:SHOWN]:
        print(f"  {complexity:3} {name}")
    index = sorted((mi_visit(text, multi=True), path) for path, text in python.items())
    print("\nthe lowest maintainability indexes")
    for value, path in index[:SHOWN]:
        print(f"  {value:5.1f} {path.relative_to(package)}")


def blocks(text: str) -> Iterator[Any]:
    """All functions and methods."""
    return (block for block in cc_visit(text) if not hasattr(block, "methods"))


# Paths --------------------------------------------------------------------------------------------


def paths(source: Path) -> dict[str, dict[str, int]]:
    """The calls of an acquire on Redis: see programs/acquire_paths.py."""
    server = Server()
    server.start()
    try:
        program = HERE / "programs" / "acquire_paths.py"
        found = subprocess.run(
            [sys.executable, str(program), server.url],
            env={**os.environ, "PYTHONPATH": str(source)},
            stdout=subprocess.PIPE,
            check=True,
        )
    finally:
        server.stop()
    return dict(json.loads(found.stdout))


if __name__ == "__main__":
    main()
