"""How long the keys of a name live: new keys end with the others, and held permits do not make them
live for ages.

The stories test that they live for as long as their promises.
"""

from __future__ import annotations

from headgate.gate.compile import program, rules_of
from headgate.limits import Concurrency, Window
from tests.twins.driver import FOR_EVER
from tests.twins.wire import NOON, Acquire, Call, Wire

LIMITS = program(rules_of([Concurrency(10, lease=30), Window(10, per=1)]))


def acquired(wire: Wire, number: int) -> None:
    wire.call(
        Call(LIMITS, f"{wire.token}-1.1", number, (Acquire(number),), declares=int(number == 1)),
        NOON + number,
    )


def test_a_key_that_is_made_anew_has_a_ttl(wire: Wire) -> None:
    """S8, L6: given a key that was lost between two calls, when the next one writes to it, then it
    ends with the other keys.
    """
    for number in (1, 2, 3):
        acquired(wire, number)
    wire.lose("who")

    acquired(wire, 4)

    lives = wire.lives()
    assert f"{wire.key}:who" in lives
    assert FOR_EVER not in lives.values()


def test_the_keys_of_a_held_permit_have_a_short_ttl(wire: Wire) -> None:
    """L6: a permit of half a minute, and the time that keys live beyond that."""
    acquired(wire, 1)

    assert max(wire.lives().values()) <= 120_000
