"""The log of a Window is a key of its own, and can be lost like any other: to an operator, or to
eviction.
"""

from __future__ import annotations

import pytest

from headgate.gate.compile import program, rules_of
from headgate.limits import Window
from tests.twins.wire import NOON, Acquire, Call, Wire

PER, AMOUNT = 1_000_000, 10


@pytest.mark.parametrize("lost_after", [1, 4, 10])
def test_a_window_that_lost_its_log_counts_as_a_new_one(wire: Wire, lost_after: int) -> None:
    """T1, T2: given a crowd that never rests, when the log is lost, then each period is worth
    `AMOUNT` again, no more, no less.
    """
    limits = program(rules_of([Window(AMOUNT, PER / 1_000_000)]))
    step, granted = PER // 40, []
    for number in range(1, 400):
        if number == lost_after * 4:
            wire.lose("log")
        asked = Call(limits, f"{wire.token}-1.1", number, (Acquire(number, max_sleep=0),))
        granted += [kind == "grant" for kind, *_ in wire.call(asked, NOON + number * step).each()]

    periods = [sum(granted[start : start + 40]) for start in range(40, 360)]

    assert min(periods) == max(periods) == AMOUNT


def test_a_log_holds_only_the_entries_that_count(wire: Wire) -> None:
    """S9: given a crowd that never rests, then entries that have left the window have left its log,
    too.
    """
    limits = program(rules_of([Window(AMOUNT, PER / 1_000_000)]))
    for number in range(1, 100):
        wire.call(
            Call(limits, f"{wire.token}-1.1", number, (Acquire(number, max_sleep=0),)),
            NOON + number * PER // AMOUNT,
        )

    assert wire.client.zcard(wire.log) <= AMOUNT + 1  # and its end
