"""Calls that no client of headgate sends: the script reads all of a call before it writes, and
refuses every malformed request.
"""

from __future__ import annotations

import pytest
import redis

from tests.twins.wire import LUA, NOON, Acquire, Call, Caller, Cancel, Status, Wire

LIMITS = "bucket requests 5 1 1 1000000 5"


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ("acquire 2 1.5 -1 -1 -", "not a whole number: 1.5"),
        ("acquire 2 one -1 -1 -", "not a whole number: one"),
        ("settle 9007199254740992 requests=1", "not a whole number: 9007199254740992"),
        ("please", "unknown request"),
        ("status", "unknown request"),
    ],
)
def test_a_call_with_a_malformed_request_changes_nothing(
    wire: Wire, words: str, refusal: str
) -> None:
    """S4, S7: nor is the sound request before it carried out."""
    asked = Call(LIMITS, f"{wire.token}-1.1", 1, (Acquire(1),))
    wire.call(asked, NOON)
    before = wire.client.dump(wire.key)

    with pytest.raises(redis.ResponseError, match=f"headgate: {refusal}"):
        wire.send(
            LUA.whole,
            [
                LIMITS,
                asked.session,
                "2",
                "0",
                "0",
                "0",
                "0",
                *Acquire(1).words.split(),
                *words.split(),
            ],
            NOON,
        )

    assert wire.client.dump(wire.key) == before


def test_a_cancelled_waiter_gives_nothing_back(wire: Wire) -> None:
    """T1: given a waiter, when it is cancelled by the moment of a grant that it never had, then it
    leaves, and that is all.
    """
    all_there_is, waiter = Acquire(1, asked="requests=5"), Acquire(2)
    gives_up = Cancel(Caller(f"{wire.token}-1.1", 2, "-"), moment=NOON)

    *_, left, (_, waiting, _, _, tokens) = wire.call(
        Call(LIMITS, f"{wire.token}-1.1", 1, (all_there_is, waiter, gives_up, Status())), NOON
    ).each()

    assert left == ("done", 1, 0)
    assert (waiting, tokens) == (0, 0)
