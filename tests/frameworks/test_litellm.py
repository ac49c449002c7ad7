"""Runs litellm_stories.py and the example in LiteLLM's own environment: see aside.py."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest

from tests.frameworks.aside import HERE, ROOT, Missing, environment

PATIENCE = 150  # seconds
EXAMPLE = ROOT / "examples" / "with_litellm.py"
STORIES = HERE / "litellm_stories.py"


@pytest.fixture(scope="session")
def aside() -> dict[str, str]:
    """Return the environment of LiteLLM."""
    try:
        return environment()
    except Missing as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.mark.proof("starts test suites")
def test_the_tests_of_litellm_pass(aside: dict[str, str]) -> None:
    """As here: warnings are errors, and no test waits."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(STORIES)]
    done = subprocess.run(
        command, cwd=ROOT, env=aside, capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    stories = [
        node
        for node in ast.parse(STORIES.read_text()).body
        if getattr(node, "name", "").startswith("test_")
    ]
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(stories)} passed" in done.stdout


@pytest.mark.proof("starts test suites")
def test_the_example_runs(aside: dict[str, str]) -> None:
    """As a reader would run it.

    LiteLLM leaves its connections open, and a Python that shows all warnings would say so.
    """
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=aside,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert (done.stderr, done.returncode) == ("", 0)
    answered, counted = done.stdout.splitlines()
    assert re.fullmatch(r"20 calls, at most [123] at once, 0 refused; 790 words", answered)
    assert re.fullmatch(r"(\d+) tokens counted here, \1 there", counted)
