"""The measure of stalls, which tests in virtual time share with all others."""

from __future__ import annotations

import threading
import time

import pytest

from tests.machine import TICK, Stalls


def test_stalls_are_measured_by_the_real_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a test that replaces the functions of `time`, the thread that measures calls none of
    them: it would move a virtual clock.
    """
    calls: list[float] = []
    monkeypatch.setattr(time, "sleep", calls.append)
    Stalls()
    threading.Event().wait(5 * TICK)
    assert calls == []
