"""Mutants: each guard of a text changed in turn, one at a time.

This module has the changes, in Lua by words and in Python by its tree; judging.py decides whether a
test notices. A mutant is named by its file, its line as it was and as it became, so that a name
outlives lines that move.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import NamedTuple


class Mutant(NamedTuple):
    """A whole file's text with one change in it."""

    name: str
    file: str
    text: str


def named(file: str, changes: Iterator[tuple[str, str, str]]) -> Iterator[Mutant]:
    """Mutants of (line before, line after, whole text); the second of two alike is said to
    be so.
    """
    seen: Counter[str] = Counter()
    for before, after, text in changes:
        name = f"{file}: {before.strip()} => {after.strip()}"
        seen[name] += 1
        yield Mutant(name if seen[name] == 1 else f"{name} #{seen[name]}", file, text)


# Lua ----------------------------------------------------------------------------------------------

SWAPPED = {
    "<=": "<", "<": "<=", ">=": ">", ">": ">=", "==": "~=", "~=": "==",
    "and": "or", "or": "and", "max": "min", "min": "max", "+ 1": "- 1", "- 1": "+ 1", "not ": "",
}  # fmt: skip
WORDS = re.compile(
    r"<=|>=|==|~=|<|>|\band\b|\bor\b|\bmax(?=\()|\bmin(?=\()|[+-] 1\b(?![.\d])|\bnot "
)
CONDITION = re.compile(r"\bif (.*?) then\b")  # of an elseif too
UNREAD = re.compile(r"--.*|'[^'\n]*'|\"[^\"\n]*\"")  # comments and texts


def lua_mutants(file: str, text: str) -> Iterator[Mutant]:
    return named(file, lua_changes(text))


def lua_changes(text: str) -> Iterator[tuple[str, str, str]]:
    lines = text.split("\n")
    for number, line in enumerate(lines):
        read = UNREAD.sub(lambda found: " " * len(found.group()), line)
        for start, end, other in lua_changes_in(read):
            after = line[:start] + other + line[end:]
            yield line, after, "\n".join([*lines[:number], after, *lines[number + 1 :]])


def lua_changes_in(line: str) -> Iterator[tuple[int, int, str]]:
    """A word swapped, or a guard that never holds: its guarded code is gone."""
    for found in WORDS.finditer(line):
        yield *found.span(), SWAPPED[found.group()]
    for found in CONDITION.finditer(line):
        yield *found.span(1), "false"


# Python -------------------------------------------------------------------------------------------

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
CALLED = {"max": "min", "min": "max"}
ADDED: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}
Change = Callable[[ast.AST], None]


def python_mutants(file: str, text: str) -> Iterator[Mutant]:
    return named(file, python_changes(text))


def python_changes(text: str) -> Iterator[tuple[str, str, str]]:
    """Within functions alone: the code outside of them runs once, when a module is imported."""
    tree = ast.parse(text)
    bodies = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    inside = {node for body in bodies for statement in body.body for node in ast.walk(statement)}
    for index, node in enumerate(ast.walk(tree)):
        for change in python_changes_of(node) if node in inside else ():
            other = deepcopy(tree)
            changed = next(found for number, found in enumerate(ast.walk(other)) if number == index)
            before = ast.unparse(shown(tree, node))
            change(changed)
            after = ast.unparse(shown(other, changed))
            yield before.split("\n")[0], after.split("\n")[0], ast.unparse(other)


def shown(tree: ast.Module, node: ast.AST) -> ast.AST:
    """The innermost statement around `node`: a reader knows it by that."""
    around = {inner: outer for outer in ast.walk(tree) for inner in ast.iter_child_nodes(outer)}
    while not isinstance(node, ast.stmt):
        node = around[node]
    return node


def python_changes_of(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=ops):
            yield from (compare(index) for index in range(len(ops)))
        case ast.BoolOp():
            yield swap_words
        case ast.Call(func=ast.Name(id="max" | "min")):
            yield swap_call
        case ast.BinOp(op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
            yield swap_sign
        case ast.UnaryOp(op=ast.Not()):
            yield drop_not
        case ast.If() | ast.IfExp():
            yield never
        case _:
            pass


def compare(index: int) -> Change:
    def change(node: ast.AST) -> None:
        assert isinstance(node, ast.Compare)
        node.ops[index] = COMPARED[type(node.ops[index])]()

    return change


def swap_words(node: ast.AST) -> None:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()


def swap_call(node: ast.AST) -> None:
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    node.func.id = CALLED[node.func.id]


def swap_sign(node: ast.AST) -> None:
    assert isinstance(node, ast.BinOp)
    node.op = ADDED[type(node.op)]()


def drop_not(node: ast.AST) -> None:
    """`not not x` is x, as far as a condition is concerned."""
    assert isinstance(node, ast.UnaryOp)
    node.operand = ast.UnaryOp(op=ast.Not(), operand=node.operand)


def never(node: ast.AST) -> None:
    assert isinstance(node, ast.If | ast.IfExp)
    node.test = ast.Constant(value=False)
