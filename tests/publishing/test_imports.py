"""The modules that `import headgate` loads: its import time is a cost of every program.

`python -m benchmarks.import_time` measures it.
"""

from __future__ import annotations

import subprocess
import sys

from tests.processes import environment

# Of the standard library, beyond those that asyncio loads. Each further one is milliseconds.
STANDARD = {
    *("__future__", "_bisect", "_datetime", "_queue", "bisect"),
    *("concurrent.futures.thread", "copy", "dataclasses", "datetime", "queue"),
}
# Packages of headgate that a limiter in memory does not need.
ELSEWHERE = ("cli", "frameworks", "http", "stores.redis", "telemetry", "testing", "web")
LOADED = (
    "import asyncio, sys; before = set(sys.modules); {use}; "
    "print(*sorted(set(sys.modules) - before))"
)


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    return done.stdout


def loaded(use: str) -> set[str]:
    return set(run(LOADED.format(use=use)).split())


def of_others(modules: set[str]) -> set[str]:
    return {module for module in modules if module.partition(".")[0] != "headgate"}


def test_the_import_loads_few_modules_of_the_standard_library() -> None:
    """Import another one in the function that needs it, if no caller waits for that function."""
    assert of_others(loaded("import headgate")) <= STANDARD


def test_the_import_loads_no_part_of_headgate_for_other_stores_and_clients() -> None:
    parts = tuple(f"headgate.{each}" for each in ELSEWHERE)
    assert [each for each in loaded("import headgate") if each.startswith(parts)] == []


def test_a_window_in_memory_loads_no_more_for_its_acquires() -> None:
    """A signal handler or a finalizer may be the first to use a limiter."""
    made = "import headgate; limiter = headgate.Limiter('api', headgate.Window(5, per=1))"
    used = f"{made}; limiter.try_acquire(); limiter['key'].try_acquire(); limiter.status()"
    assert loaded(used) == loaded(made)
