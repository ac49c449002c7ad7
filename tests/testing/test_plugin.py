"""The fixtures, as a user's pytest finds them: silent, isolated, and free if unused."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import headgate_pytest
from tests.processes import finished

ROOT = Path(__file__).parents[2]
FIXTURES = ["headgate_at_rest", "headgate_clock", "headgate_skipping_clock"]
USERS = """
import asyncio
from headgate import Concurrency, Limiter

held = []
api = Limiter("api", "1/minute", Concurrency(5))
rate = Limiter("rate", "1/minute")

def test_by_hand(headgate_clock):
    assert rate.try_acquire()
    assert not rate.try_acquire()
    headgate_clock.advance(60)
    assert rate.try_acquire()

def test_skipping(headgate_skipping_clock, headgate_at_rest):
    for minute in range(3):
        with api:
            assert headgate_skipping_clock.elapsed() == 60 * minute

def test_in_a_loop(headgate_clock):
    async def call():
        async with api:
            await asyncio.sleep(1)
    headgate_clock.run(call())
    headgate_clock.run(call())
    assert headgate_clock.elapsed() == 61

def test_that_leaves_a_permit(headgate_at_rest, headgate_clock):
    held.append(api.acquire_sync())

def test_that_comes_after_it(headgate_at_rest):
    with api:
        pass
"""


def run_users_tests(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a user's pytest in which each warning is an error and headgate's fixtures are found."""
    (folder / "test_theirs.py").write_text(tests)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "headgate_pytest",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        *options,
        ".",
    ]
    environment = {
        "PYTHONPATH": f"{ROOT / 'src'}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )


def test_a_user_gets_the_fixtures(tmp_path: Path) -> None:
    """With limiters at module level: each test begins as new, none waits, and a permit that is left
    fails its test.
    """
    done = run_users_tests(tmp_path, USERS, "-v")
    assert "test_that_leaves_a_permit ERROR" in done.stdout, done.stdout + done.stderr
    assert "AssertionError: Not at rest: 'api': " in done.stdout
    assert "5 passed, 1 error" in done.stdout


def test_a_run_without_the_fixtures_does_not_import_headgate(tmp_path: Path) -> None:
    """The user's coverage may be there to see that import."""
    done = run_users_tests(
        tmp_path, "import sys\ndef test_it(): assert 'headgate' not in sys.modules\n"
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert finished("import headgate_pytest, sys; print('headgate' in sys.modules)") == "False\n"


def test_the_fixtures_have_headgate_in_their_names(tmp_path: Path) -> None:
    done = run_users_tests(tmp_path, "", "--fixtures")
    assert [name for name in FIXTURES if f"{name} --" not in done.stdout] == [], done.stdout
    defined = {
        node.name
        for node in ast.parse(Path(headgate_pytest.__file__).read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert sorted(defined) == FIXTURES


def test_pytest_finds_the_module_by_its_own_name() -> None:
    """So a conftest.py that names it, and -p headgate_pytest, mean the plugin that is there
    already.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"headgate_pytest": "headgate_pytest"}
