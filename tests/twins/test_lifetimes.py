"""How long the keys of a name live: new keys end with the others, and held permits do not make them
live for ages.

The stories test that they live for as long as their promises.
"""

from __future__ import annotations

import pytest
import redis

from headgate.gate.compile import program, rules_of
from headgate.limits import Concurrency, Window
from tests.twins.driver import FOR_EVER
from tests.twins.wire import NOON, Acquire, Call, Status, Wire

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


def test_members_that_have_expired_leave_a_foreign_key_alone(wire: Wire) -> None:
    """F46: given two sessions that are long silent, and a key of another program in place of their
    members, then a call fails, and that key stays.
    """
    limits, who = "bucket requests 1 3600000000 1 1 1", f"{wire.key}:who"
    first, second = (f"{wire.token}-{number}.1" for number in (1, 2))
    for session in (first, second):
        wire.call(Call(limits, session, 1, (Status(),), declares=1), NOON)
    assert wire.client.exists(who)
    wire.client.delete(who)
    wire.client.set(who, "of another program")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        wire.call(Call(limits, first, 2, (Status(),), declares=0), NOON + 200_000_000)
    assert wire.client.get(who) == b"of another program"


def test_a_name_with_expired_members_is_one_small_key_again(wire: Wire) -> None:
    """S9: the records of sessions that are long silent are gone, and the key is a list again."""
    limits = "bucket requests 1 3600000000 1 1 1"
    for number in range(600):
        wire.call(Call(limits, f"{wire.token}-{number}.1", 1, (Status(),), declares=1), NOON)
    wire.call(Call(limits, f"{wire.token}-0.1", 2, (Status(),), declares=0), NOON + 200_000_000)
    assert set(wire.lives()) == {wire.key}
    assert sum(field[:1] == b"r" for field in wire.client.hkeys(wire.key)) == 1
