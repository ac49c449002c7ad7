"""The library keeps what it wrote last, unpacked: a name must never be answered from what another one left there."""

from __future__ import annotations

import copy

from tests.twins.wire import NOON, Acquire, Call, Wire

FAST, SLOW = "bucket requests 5 1 1 1000000 5", "bucket requests 5 1 1 2000000 5"  # one token a second, and one in two
NAMES = 230  # more than the library remembers


def named(wire: Wire, name: str) -> Wire:
    """The same wire to another name."""
    other = copy.copy(wire)
    other.keys = [key.replace("}", f"-{name}}}") for key in wire.keys]
    return other


def passed(wire: Wire, limits: str, number: int, now: int, count: int = 1) -> int:
    """How many of so many passed at once."""
    call = Call(limits, f"{wire.token}-1.1", number, (Acquire(number, count, max_sleep=0),))
    return sum(kind == "grant" for kind, *_ in wire.call(call, now).each())


def test_two_names_whose_numbers_are_equal_keep_their_own_limits(wire: Wire) -> None:
    """T1: given a fast and a slow limit, empty since the same moment, when 4 s have passed, then each has its own refill."""
    names = {limits: named(wire, str(index)) for index, limits in enumerate((FAST, SLOW))}
    for limits, name in names.items():
        assert passed(name, limits, 1, NOON, count=5) == 5

    through = dict.fromkeys(names, 0)
    for limits, name in names.items():
        for number in range(2, 14):
            call = Call(limits, f"{wire.token}-1.1", number, (Acquire(number),), declares=0)
            through[limits] += name.call_quickly(call, NOON + 4_000_000) is not None

    assert through == {FAST: 4, SLOW: 2}
    for name in names.values():
        name.client.unlink(*name.keys)


def test_names_by_turns_are_each_answered_from_their_own_state(wire: Wire) -> None:
    """T1, S4: given more names than are remembered, when they ask by turns, then each passes its 5 and no more."""
    names = [named(wire, str(number)) for number in range(NAMES)]
    for number in range(1, 8):
        for name in names:
            assert passed(name, FAST, number, NOON) == (number <= 5)
    for name in names:
        name.client.unlink(*name.keys)
