"""What no client of headgate sends: the script reads all of a call before it writes, and refuses what is no request."""

from __future__ import annotations

import pytest
import redis

from tests.twins.wire import LUA, NOON, Acquire, Call, Wire

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
def test_what_is_no_request_is_refused_and_nothing_is_done(wire: Wire, words: str, refusal: str) -> None:
    """S4, S7: nor is the sound request before it carried out."""
    asked = Call(LIMITS, f"{wire.token}-1.1", 1, (Acquire(1),))
    wire.call(asked, NOON)
    before = wire.client.dump(wire.key)

    with pytest.raises(redis.ResponseError, match=f"headgate: {refusal}"):
        wire.send(LUA.whole, [LIMITS, asked.session, "2", "0", "0", "0", *Acquire(1).words.split(), *words.split()], NOON)

    assert wire.client.dump(wire.key) == before
