"""How the Lua is laid out: one table for each file, no circles, and a gate that is pure."""

from __future__ import annotations

import re

from headgate.stores.redis.protocol.script import FAST, KINDS, REST, sources

PARTS = (*FAST, *REST)
GATE = ("gate", *KINDS.values())
CALLED = re.compile(r"\b([A-Z][a-z]\w*)[.:]\w+\b")
DEFINED = re.compile(r"^(?:function )?([A-Z][a-z]\w*)(?: = \{\}$|\.\w+ ?[(=])", re.MULTILINE)


def code_of(part: str) -> str:
    """The text without comments."""
    return re.sub(r"--.*", "", sources()[part])


def table_of(part: str) -> str:
    """reply_cache.lua has ReplyCache."""
    return part.title().replace("_", "")


def test_each_table_is_defined_in_the_file_of_its_name() -> None:
    defined = {part: set(DEFINED.findall(code_of(part))) for part in PARTS}
    assert defined == {part: {table_of(part)} for part in PARTS}


def test_a_part_calls_only_parts_before_it() -> None:
    """So there are no circles: the parts of main.lua stand in the order of their layers."""
    known: set[str] = set()
    for part in PARTS:
        known.add(table_of(part))
        assert set(CALLED.findall(code_of(part))) <= known, part


def test_the_gate_is_pure() -> None:
    """It calls no other part, no server and no clock."""
    called = {part: set(CALLED.findall(code_of(part))) for part in GATE}
    rules = {part: table_of(part) + "Rule" for part in KINDS.values()}
    assert called == {"gate": {"Gate"}, **{part: {rule} for part, rule in rules.items()}}
    assert [part for part in GATE if re.search(r"redis\.|clock\(", code_of(part))] == []
