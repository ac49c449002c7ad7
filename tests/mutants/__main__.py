"""python -m tests.mutants [WORD ...]: change every guard of the gate, of the Lua and of SHELLS in
turn, and see which tests notice.

Prints killed/made by file, and the survivors, with their entries in survivors.toml. An entry says
why the mutant makes no difference, or that it is open, since no test shows the difference yet. It
fails when a survivor has no entry there, or when an entry is stale: its mutant is killed, or is not
made any more. Each WORD picks the files whose names contain it; `--list` only prints the mutants.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from time import monotonic

import headgate
from headgate.stores.redis.protocol.script import folder_of, sources
from tests.mutants.judging import Jury
from tests.mutants.making import Mutant, lua_mutants, python_mutants

SURVIVORS = Path(__file__).parent / "survivors.toml"
GATE = (
    "gate/token_bucket.py",
    "gate/gate.py",
    "gate/fixed_window.py",
    "gate/concurrency.py",
    "gate/sliding_window.py",
    "gate/compile.py",
)
# The files that hand permits on, ask again or pause by themselves, and the tests that have to
# notice: the twins do not reach them.
SHELLS = {
    "stores/redis/session/local_handoff.py": [
        "tests/unit/test_session.py",
        "tests/faults/test_hand_over.py",
    ],
    "stores/redis/transport/backoff.py": [
        "tests/unit/test_chores.py",
        "tests/faults/test_pauses.py",
    ],
    "stores/redis/transport/tasks.py": ["tests/unit/test_chores.py", "tests/faults/test_pauses.py"],
    "http/feedback.py": ["tests/http/test_bounds.py", "tests/http/test_feedback.py"],
}
CONSTANT = (
    "clock",
    "library",
)  # no guard stands there: the test's own clock stands for one, and the other names the calls


def mutants() -> dict[str, list[Mutant]]:
    """By file."""
    texts = {
        f"{folder_of(part)}/{part}.lua": text
        for part, text in sources().items()
        if part not in CONSTANT
    }
    folder = Path(headgate.__file__).parent
    made = {file: list(lua_mutants(file, text)) for file, text in texts.items()}
    return made | {
        file: list(python_mutants(file, (folder / file).read_text())) for file in (*GATE, *SHELLS)
    }


def reasons_given() -> dict[str, str]:
    """The entries of survivors.toml, by the names of mutants."""
    said: dict[str, dict[str, str]] = tomllib.loads(SURVIVORS.read_text())
    return {name: f"{how}: {why}" for how, names in said.items() for name, why in names.items()}


def main(words: list[str]) -> int:
    everything = mutants()
    picked = {
        file: made
        for file, made in everything.items()
        if not words or any(word in file for word in words)
    }
    reasons = reasons_given()
    jury = Jury()
    try:
        assert jury.agrees(), "the twins differ before anything is changed"
        survivors = [name for file, made in picked.items() for name in judged(jury, file, made)]
    finally:
        jury.close()
    known = {mutant.name for made in picked.values() for mutant in made}
    everywhere = {mutant.name for made in everything.values() for mutant in made}
    stale = [
        name
        for name in reasons
        if name not in everywhere or (name in known and name not in survivors)
    ]
    made = sum(map(len, picked.values()))
    print(f"{made - len(survivors)} of {made} killed")
    return report(survivors, stale, reasons)


def judged(jury: Jury, file: str, made: list[Mutant]) -> list[str]:
    """A line of the table, and the names of the survivors."""
    start, texts = monotonic(), sources()
    if file in SHELLS:
        notices = lambda mutant: jury.notices_shell(mutant, SHELLS[file])  # noqa: E731
    else:
        notices = (
            (lambda mutant: jury.notices_lua(mutant, texts))
            if file.endswith(".lua")
            else jury.notices_python
        )
    survivors = [mutant.name for mutant in made if notices(mutant) is None]
    print(
        f"{file:32} {len(made) - len(survivors):4} of {len(made):4} killed  "
        f"{monotonic() - start:6.1f} s",
        flush=True,
    )
    print("".join(f"    survives: {name}\n" for name in survivors), end="", flush=True)
    return survivors


def report(survivors: list[str], stale: list[str], reasons: dict[str, str]) -> int:
    unknown = [name for name in survivors if name not in reasons]
    for name in survivors:
        print(f"survives: {name}\n    {reasons.get(name, 'nothing is said of it')}")
    for name in stale:
        print(f"stale: {name}")
    print(
        f"{len(survivors)} survive, {len(unknown)} of which nothing is said; {len(stale)} reasons "
        "are stale"
    )
    return bool(unknown or stale)


if __name__ == "__main__":
    if "--list" in sys.argv:
        print("\n".join(mutant.name for made in mutants().values() for mutant in made))
    else:
        sys.exit(main(sys.argv[1:]))
