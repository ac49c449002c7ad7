"""The log of a Window is a key of its own, and can be lost like any other: to an operator, or to eviction."""

from __future__ import annotations

import pytest

from headgate.gate.rules import program, rules_of
from headgate.limits import Window
from tests.twins.driver import FOR_EVER
from tests.twins.wire import NOON, Acquire, Call, Wire

PER, AMOUNT = 1_000_000, 10


@pytest.mark.parametrize("lost_after", [1, 4, 10])
def test_a_window_without_its_log_is_a_new_one_and_no_other(wire: Wire, lost_after: int) -> None:
    """T1, T2: given a crowd that never rests, when the log is lost, then each period is worth `AMOUNT` again, no more, no less."""
    limits = program(rules_of([Window(AMOUNT, PER / 1_000_000)]))
    step, granted = PER // 40, []
    for number in range(1, 400):
        if number == lost_after * 4:
            wire.lose("log")
        asked = Call(limits, f"{wire.token}-1.1", number, (Acquire(number, max_sleep=0),))
        granted += [kind == "grant" for kind, *_ in wire.call(asked, NOON + number * step).each()]

    periods = [sum(granted[start : start + 40]) for start in range(60, 360)]

    assert min(periods) == max(periods) == AMOUNT


def test_a_log_that_is_made_anew_is_not_kept_for_ever(wire: Wire) -> None:
    """S8: given a log that was lost between two calls, when the next one writes to it, then it ends with the other keys."""
    limits = program(rules_of([Window(AMOUNT, PER / 1_000_000)]))
    calls = [Call(limits, f"{wire.token}-1.1", number, (Acquire(number),), declares=int(number == 1)) for number in range(1, 5)]
    for number, call in enumerate(calls[:3]):
        wire.call(call, NOON + number)
    wire.lose("log")

    wire.call(calls[3], NOON + 3)

    lives = wire.lives()
    assert wire.log in lives
    assert FOR_EVER not in lives.values()
