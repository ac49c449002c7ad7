"""The tool itself: it makes mutants, a mutant is noticed, and the entries of survivors are of
mutants that it makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.stores.redis.protocol.script import sources
from tests.mutants import judging
from tests.mutants.__main__ import mutants, reasons_given
from tests.mutants.judging import Jury
from tests.mutants.making import Mutant, lua_mutants, python_mutants


def changes(made: Iterator[Mutant]) -> list[str]:
    return [mutant.name.partition(" => ")[2] for mutant in made]


def test_each_guard_of_lua_is_changed_in_turn() -> None:
    lua = "if not a and b <= 1 then return max(c, d + 1) end -- or not"
    assert changes(lua_mutants("f.lua", lua)) == [
        "if a and b <= 1 then return max(c, d + 1) end -- or not",
        "if not a or b <= 1 then return max(c, d + 1) end -- or not",
        "if not a and b < 1 then return max(c, d + 1) end -- or not",
        "if not a and b <= 1 then return min(c, d + 1) end -- or not",
        "if not a and b <= 1 then return max(c, d - 1) end -- or not",
        "if false then return max(c, d + 1) end -- or not",
    ]


def test_texts_and_comments_of_lua_are_left_alone() -> None:
    assert changes(lua_mutants("f.lua", "x = '<= not and' .. y -- a < b")) == []


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_each_guard_of_python_is_changed_in_turn(kind: str) -> None:
    python = f"{kind} f(a, b):\n    return max(a, b - 1) if not a or a < b else 0"
    assert sorted(changes(python_mutants("f.py", python))) == sorted(
        [
            "return max(a, b - 1) if False else 0",
            "return max(a, b - 1) if not a and a < b else 0",
            "return max(a, b - 1) if not not a or a < b else 0",
            "return max(a, b - 1) if not a or a <= b else 0",
            "return min(a, b - 1) if not a or a < b else 0",
            "return max(a, b + 1) if not a or a < b else 0",
        ]
    )


@pytest.mark.proof("makes mutants")
def test_each_entry_of_a_survivor_is_of_a_mutant_that_is_made() -> None:
    made = {mutant.name for file in mutants().values() for mutant in file}
    assert [name for name in reasons_given() if name not in made] == []


@pytest.mark.signals
@pytest.mark.proof("starts test suites")
@pytest.mark.parametrize(
    ("does", "noticed"), [("pass", False), ("assert False", True), ("while True: pass", True)]
)
def test_a_mutant_is_noticed_by_tests_that_fail_or_do_not_come_to_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, does: str, noticed: bool
) -> None:
    monkeypatch.setattr(judging, "TRIAL", 3 if "while" in does else judging.TRIAL)
    tests = tmp_path / "test_something.py"
    tests.write_text(f"def test_something():\n    {does}")

    assert bool(judging.noticed_by([str(tests)])) == noticed


@pytest.fixture
def jury() -> Iterator[Jury]:
    jury = Jury()
    yield jury
    jury.close()


@pytest.mark.signals
@pytest.mark.proof("makes mutants")  # a server that loops is given its time
def test_a_mutant_of_either_twin_is_noticed(jury: Jury) -> None:
    """S1: one permit too few is noticed in Lua and in Python, and so is a loop without an end;
    nothing stays changed.
    """
    lua, python = mutants()["gate/concurrency.lua"], mutants()["gate/concurrency.py"]
    over_lua = next(mutant for mutant in lua if "< rule.capacity and t or NEVER" in mutant.name)
    over_python = next(
        mutant for mutant in python if "self.used + cost < self.capacity" in mutant.name
    )
    endless = over_lua._replace(
        text=over_lua.text.replace(
            "function ConcurrencyRule.open(rule, t)",
            "function ConcurrencyRule.open(rule, t) while true do end",
        )
    )

    assert jury.notices_lua(over_lua, sources())
    assert jury.notices_python(over_python)
    assert jury.notices_lua(endless, sources())
    assert jury.agrees()
