"""The distributions as users get them: the wheel in a fresh environment, the sdist unpacked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headgate
from tests.machine import scaled
from tests.publishing.distributions import Distributions

pytestmark = pytest.mark.proof("checks and installs the distributions")

Command = list[str | Path]
PATIENCE = 120.0  # seconds for one command
PYTEST_NEEDS = ("pytest", "_pytest", "py.py", "pluggy", "iniconfig", "packaging", "pygments")
PROGRAM = """
import asyncio
from importlib.metadata import version
import headgate
from headgate import Concurrency, Limiter

api = Limiter("api", "2/minute", Concurrency(1))

async def main() -> None:
    async with api:
        print("in:", api.status().limits[0].left)
    second, third = await api.atry_acquire(), await api.atry_acquire()
    print(bool(second), bool(third))

asyncio.run(main())
print(headgate.__version__, version("headgate"))
print(headgate.__file__)
"""
THEIR_TESTS = """
from pathlib import Path
import sys
import headgate
from headgate import Limiter

api = Limiter("api", "1/minute")

def test_it(headgate_clock, headgate_at_rest):
    assert Path(headgate.__file__).is_relative_to(sys.prefix)
    assert api.try_acquire() and not api.try_acquire()
    headgate_clock.advance(60)
    assert api.try_acquire()
"""
TYPED = """
from headgate import Limiter, Permit, Refusal

api = Limiter("api", "1/minute")

async def call() -> Permit | Refusal:
    return await api.atry_acquire()

wrong: int = api.try_acquire()
reveal_type(api.status().waiting)
"""


def run(command: Command, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command that sees nothing of this process's Python path."""
    inherited = dict(os.environ)
    for name in os.environ:
        if name.startswith(("PYTHON", "PYTEST")):
            del inherited[name]
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(PATIENCE),
    )


def finished(command: Command, cwd: Path, **variables: str) -> str:
    done = run(command, cwd, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def python(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of a fresh environment that has the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("fresh")
    finished([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], folder)
    python = folder / "venv" / "bin" / "python"
    pip: Command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    finished([*pip, "install", "--quiet", "--no-index", distributions.wheel], folder)
    return python


def test_a_first_program_runs_on_the_wheel_alone(python: Path, tmp_path: Path) -> None:
    said = finished([python, "-W", "error", "-c", PROGRAM], tmp_path).splitlines()
    assert said[:3] == ["in: 1", "True False", f"{headgate.__version__} {headgate.__version__}"]
    assert Path(said[3]).is_relative_to(python.parents[1])


def test_the_command_is_there_and_names_the_extra_that_it_needs(
    python: Path, tmp_path: Path
) -> None:
    command = python.with_name("headgate")
    assert "headgate run api" in finished([command, "--help"], tmp_path)
    done = run([command, "show", "api", "--store", "redis://localhost"], tmp_path)
    assert (done.returncode, done.stdout) == (69, "")
    assert "pip install 'headgate[redis]'" in done.stderr


def test_pytest_finds_the_fixtures_by_the_entry_point(python: Path, tmp_path: Path) -> None:
    """pytest itself comes from this environment, without the other plugins that are here."""
    beside, theirs = tmp_path / "beside", tmp_path / "theirs"
    beside.mkdir()
    theirs.mkdir()
    for name in PYTEST_NEEDS:
        (beside / name).symlink_to(Path(pytest.__file__).parents[1] / name)
    (theirs / "test_theirs.py").write_text(THEIR_TESTS)
    command: Command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "."]
    assert "1 passed" in finished(command, theirs, PYTHONPATH=str(beside))


def test_mypy_sees_the_types_of_the_wheel(python: Path, tmp_path: Path) -> None:
    """mypy ignores a package without py.typed: then the wrong line would pass."""
    (tmp_path / "typed.py").write_text(TYPED)
    mypy: Command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python]
    said = run([*mypy, "typed.py"], tmp_path).stdout
    assert "typed.py:9: error: Incompatible types in assignment" in said, said
    assert 'typed.py:10: note: Revealed type is "int"' in said.replace("builtins.int", "int"), said
    assert "Found 1 error in 1 file" in said, said


def test_the_sdist_can_be_tested_where_it_was_unpacked(distributions: Distributions) -> None:
    """All of its tests are collected, so that no module is missing. Those of two modules run."""
    there, paths = distributions.unpacked, {"PYTHONPATH": "src", "PYTHONDONTWRITEBYTECODE": "1"}
    their_pytest: Command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    collected = finished([*their_pytest, "--collect-only", "tests"], there, **paths)
    assert "tests/conformance/" in collected
    assert "tests/faults/" in collected
    modules = ["tests/gate/test_compile.py", "tests/conformance/test_permits.py"]  # one is pure
    assert " passed" in finished([*their_pytest, *modules], there, **paths)
