"""Calls that travel as text are read back unchanged: every verb that the script knows."""

from __future__ import annotations

import re

import pytest

from headgate.stores.redis.protocol import script
from tests.history.events import Commit
from tests.history.words import VERBS, call_of
from tests.twins.wire import (
    Acquire,
    Amend,
    Call,
    Caller,
    Cancel,
    Declared,
    Drain,
    Pause,
    PauseWhole,
    Quit,
    Rejoin,
    Release,
    Renew,
    Request,
    Reset,
    Resume,
    Settle,
    Status,
    Update,
)

CALLER = Caller("session.1", 7, "requests=2,tokens=900")
SENT: list[Request] = [
    Acquire(7, 3, "tokens=900", None, 4),
    Acquire(8, 1, "-", 0),
    Amend(7, "tokens=900", "-"),
    Cancel(CALLER, 1_750_000_000_000_000),
    Cancel(CALLER, 0, 3),
    Release(CALLER, 4),
    Renew(CALLER, 30_000_000, 17),
    Quit("session.1"),
    Settle(1_750_000_000_000_000, "tokens=-5"),
    Drain("tokens", 0, 17, 1_750_000_000_000_000),
    Pause(1_000_000),
    PauseWhole(1_000_000),
    Resume(),
    Reset(),
    Declared(),
    Rejoin(CALLER, 1_750_000_000_000_000, 1_750_000_000_000_001),
    Status("tokens=1"),
    Update("bucket requests 100 600000 1 1 100;slots permits 5 30000000"),
]


def heard(call: Call) -> Call:
    return call_of(Commit(1, 0, "key", tuple(call.words()), ""))


def test_every_verb_of_the_script_can_be_read() -> None:
    words = re.search(r"local WORDS = \{([^}]*)\}", script.sources()["operations"])
    assert words is not None, "operations.lua says it in other words now"
    assert (
        set(re.findall(r"(\w+) =", words[1]))
        == set(VERBS)
        == {request.words.split()[0] for request in SENT}
    )


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("request_sent", SENT, ids=lambda request: request.words.split()[0])
def test_a_call_is_read_back_unchanged(request_sent: Request, clustered: bool) -> None:
    call = Call(
        "slots permits 5 30000000",
        "session.1",
        3,
        (request_sent, Status()),
        received="2 ok 1234",
        waits=True,
        declares=0,
        reserve_ahead=50_000,
        clustered=clustered,
    )
    assert heard(call) == call
