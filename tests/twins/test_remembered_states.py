"""The library keeps its last state, unpacked: a name must never get an answer from the state of
another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from tests.twins.wire import LUA, NOON, Acquire, Call, Status, Wire

FAST, SLOW = (
    "bucket requests 5 1 1 1000000 5",
    "bucket requests 5 1 1 2000000 5",
)  # one token a second, and one in two
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
    """T1: given a fast and a slow limit, empty since the same moment, when 4 s have passed, then
    each has its own refill.
    """
    names = {limits: named(wire, str(index)) for index, limits in enumerate((FAST, SLOW))}
    for limits, name in names.items():
        assert passed(name, limits, 1, NOON, count=5) == 5

    through = dict.fromkeys(names, 0)
    for limits, name in names.items():
        for number in range(2, 14):
            call = Call(limits, f"{wire.token}-1.1", number, (Acquire(number),), declares=0)
            through[limits] += name.call_fast(call, NOON + 4_000_000) is not None

    assert through == {FAST: 4, SLOW: 2}
    for name in names.values():
        name.client.unlink(*name.keys)


def test_names_that_take_turns_keep_their_own_states(wire: Wire) -> None:
    """T1, S4: given more names than are remembered, when they ask by turns, then each passes its 5
    and no more.
    """
    names = [named(wire, str(number)) for number in range(NAMES)]
    for number in range(1, 8):
        for name in names:
            assert passed(name, FAST, number, NOON) == (number <= 5)
    for name in names:
        name.client.unlink(*name.keys)


def test_leases_that_a_call_leaves_to_the_next_one_end_then(wire: Wire) -> None:
    """S9, L1: a call ends a hundred leases at most, and the server remembers no state: the next
    call reads that leases end now.
    """
    wire.functions = False
    limits, holder, other = "slots permits 150 1000000", f"{wire.token}-1.1", f"{wire.token}-2.1"
    wire.call(Call(limits, holder, 1, (Acquire(1, 150),)), NOON)

    calls = [Call(limits, other, number, (Status(),)) for number in (1, 2)]
    left = [wire.call(call, NOON + 1_000_000).answers[0][-1] for call in calls]

    assert left == [100, 150]


def test_a_search_for_silent_sessions_goes_on_in_the_next_call(wire: Wire) -> None:
    """S9, L3: a call walks a hundred waiters, and the server remembers no state: the next call
    reads where the search stands.
    """
    wire.functions = False
    limits, alive, silent = "slots permits 1 30000000", f"{wire.token}-1.1", f"{wire.token}-2.1"
    for session, count in ((alive, 101), (silent, 50)):  # the first one holds
        wire.call(Call(limits, session, 1, (Acquire(1, count),)), NOON)

    waiting = []
    for number, seconds in enumerate((9, 18, 19), 2):
        asks = Call(limits, alive, number, (Status(),), declares=0)
        waiting.append(wire.call(asks, NOON + seconds * 1_000_000).answers[0][1])

    assert waiting == [150, 150, 100]


# How much -----------------------------------------------------------------------------------------

MANY, TOGETHER = 20_000, 1_000  # words, and how many of them are said in one call
MANY_NAMES = 4_000
BOUND = 2_000_000  # bytes: more than the most that may be remembered, and less than all of it
COUNTING = """#!lua name=counting
redis.register_function('counted', function()
  collectgarbage()
  return collectgarbage('count') * 1024
end)
"""
SAID: dict[str, Callable[[int], str]] = {
    "numbers": lambda number: f"cancel nobody.1 {number * 1_000} 1 0 -",
    "costs": lambda number: f"acquire 1 1 -1 -1 requests={number + 10}",
}


def taken(wire: Wire) -> int:
    """Bytes of the server's Lua, once it has collected its garbage."""
    wire.client.function_load(COUNTING, replace=True)
    return int(wire.client.fcall("counted", 0))


@pytest.mark.parametrize("what", SAID)
def test_endless_numbers_and_costs_take_limited_memory(wire: Wire, what: str) -> None:
    """S9: numbers and costs, each another one."""
    passed(wire, FAST, 1, NOON)
    before = taken(wire)

    for call, first in enumerate(range(0, MANY, TOGETHER), 2):
        words = " ".join(map(SAID[what], range(first, first + TOGETHER)))
        wire.send(
            LUA.whole,
            [FAST, f"{wire.token}-1.1", str(call), "0", "0", "0", "0", *words.split()],
            NOON,
        )

    assert taken(wire) - before < BOUND


def test_endless_names_and_limits_take_limited_memory(wire: Wire) -> None:
    """S9: names without end, each with limits of its own, after one that was asked often, before
    another and after it.
    """
    before = taken(wire)
    for number in range(1, 300):
        passed(wire, FAST, number, NOON)
        if number == 150:
            passed(named(wire, "other"), FAST, 1, NOON)

    for number in range(1, MANY_NAMES):
        name = named(wire, str(number))
        passed(name, f"bucket requests 5 1 1 {1_000_000 + number} 5", 1, NOON + number)
        name.client.unlink(*name.keys)

    assert taken(wire) - before < BOUND
