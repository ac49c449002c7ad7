"""The modules that `import headgate` loads: its import time is a cost of every program.

`python -m benchmarks.import_time` measures it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from headgate.forks import IMPORTED_IN_FUNCTIONS
from tests.processes import environment

# Of the standard library, beyond those that asyncio loads. Each further one is milliseconds.
STANDARD = {
    *("__future__", "_bisect", "_queue", "bisect"),
    *("concurrent.futures.thread", "copy", "dataclasses", "queue"),
}
# Of headgate: those that a limiter in memory uses. The others load where they are used.
OWN = """
    changes clock closed closing counts declaring entrance errors forks hooks keys limiter limits
    log_writer permit pickles request threads validation values waiting
    gate gate.compile gate.concurrency gate.fixed_window gate.gate gate.sliding_window
    gate.token_bucket
    stores stores.change_events stores.limit_history stores.loops stores.refusals stores.registry
    stores.status
    stores.memory stores.memory.acquires stores.memory.fast_path stores.memory.holders
    stores.memory.key_queue stores.memory.local_waiters stores.memory.lock stores.memory.queue
    stores.memory.queue_state stores.memory.store stores.memory.wait_queue stores.memory.waiters
"""
PROGRAMS = Path(__file__).parent.parent / "programs"
LOADED = (
    "import asyncio, sys; before = set(sys.modules); {use}; "
    "print(*sorted(set(sys.modules) - before))"
)


def run(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return done.stdout


def loaded(use: str) -> set[str]:
    return set(run(LOADED.format(use=use)).split())


def test_the_import_loads_only_these_modules() -> None:
    """Import another one in the function that needs it, if no caller waits for that function, and
    no signal handler, finalizer or child of a fork runs it.
    """
    own = {"headgate", *(f"headgate.{module}" for module in OWN.split())}
    present = loaded("import headgate")
    assert {module for module in present if module.partition(".")[0] == "headgate"} == own
    assert present - own <= STANDARD


def test_a_window_in_memory_loads_no_more_for_its_acquires() -> None:
    """A signal handler or a finalizer may be the first to use a limiter."""
    made = "import headgate; limiter = headgate.Limiter('api', headgate.Window(5, per=1))"
    used = f"{made}; limiter.try_acquire(); limiter['key'].try_acquire(); limiter.status()"
    assert loaded(used) == loaded(made) == loaded("import headgate")


def test_a_limit_in_words_loads_the_parser_alone() -> None:
    """Whole numbers need no fractions."""
    used = "import headgate; headgate.Limiter('api', '10/second burst 20').try_acquire()"
    assert loaded(used) - loaded("import headgate") == {"headgate.limit_parser"}


@pytest.mark.parametrize(
    ("module", "use"),
    [
        ("headgate.classics", "headgate.TokenBucket"),
        ("fractions", "headgate.Limiter('api', headgate.Rate(2.5, per=1))"),
    ],
)
def test_a_child_can_import_a_module_that_another_thread_imported_during_the_fork(
    module: str, use: str
) -> None:
    """Python would keep the lock of that module in the child for ever."""
    assert run((PROGRAMS / "fork_in_import.py").read_text(), module, use).strip() == "0"


def test_a_fork_knows_the_modules_of_the_standard_library_that_functions_import() -> None:
    found = {
        name
        for path in Path(headgate.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for each in ast.walk(function)
        for name in imported_by(each)
        if name.partition(".")[0] in sys.stdlib_module_names
    }
    assert found - {"importlib"} == IMPORTED_IN_FUNCTIONS  # forks.py itself imports importlib


def imported_by(statement: ast.AST) -> list[str]:
    if isinstance(statement, ast.Import):
        return [each.name for each in statement.names]
    return [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
