"""Tests that send signals to their own process: each runs in a process of its own.

Mark such a test `@pytest.mark.signals`. A signal that arrives late would interrupt the next test,
or the process of pytest-xdist that runs it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

INSIDE = "HEADGATE_TEST_IS_ALONE"  # set in the process of such a test
PATIENCE = 900  # seconds: more than a proof inside has (conftest.py)


class Alone(pytest.Item):
    """Stands for a test that runs in another process, under the same id."""

    def __init__(self, *, original: pytest.Item, **words: Any) -> None:
        super().__init__(**words)
        self._original = original
        self.own_markers = original.own_markers
        self.keywords.update(original.keywords)

    def runtest(self) -> None:
        option = self.config.option
        words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0", self.nodeid]
        done = subprocess.run(
            [*words, "--place", option.place, "--loop", option.loop],
            cwd=self.config.rootpath,
            env={**os.environ, INSIDE: "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        if done.returncode or "1 passed" not in done.stdout:
            raise Failed(done.stdout)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, Failed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> Any:
        return self._original.reportinfo()


class Failed(Exception):
    """The test failed in its own process; the text is all that pytest wrote there."""


def set_apart(items: list[pytest.Item]) -> None:
    """Replace each marked test by one that runs it in a process of its own."""
    if INSIDE not in os.environ:
        items[:] = [_alone(item) if item.get_closest_marker("signals") else item for item in items]


def _alone(item: pytest.Item) -> pytest.Item:
    assert item.parent is not None
    found: Alone = Alone.from_parent(item.parent, name=item.name, original=item)
    return found
