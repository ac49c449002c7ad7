"""The modules, classes and functions of a syntax tree, for the tests that read sources.

This module visits statements alone. `ast.walk` visits each expression, too, and takes ten times as
long.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

Definition = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(tree: ast.Module) -> Iterator[Definition]:
    """Each definition, in the order of `ast.walk`."""
    nodes: list[ast.AST] = [tree]
    for node in nodes:
        if isinstance(node, Definition):
            yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            nodes += getattr(node, name, ())


def definitions_in(text: str) -> Iterator[Definition]:
    return definitions(ast.parse(text))
