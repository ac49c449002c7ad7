"""The calls of sessions that a state which has gone back does not know.

A quick call shows that: its session has made calls that the state does not know. A late copy of a
call comes from a session that is over. The stories test the session's later words about its
permits, and their effect.
"""

from __future__ import annotations

import pytest

from tests.twins.wire import NOON, Acquire, Call, Caller, Cancel, Quit, Reply, Status, Wire

LIMITS = "slots permits 5 30000000"
KEEP = 30_000_000  # microseconds for which the script knows that a session is over


def quick_verdict(wire: Wire, session: str, number: int) -> str | None:
    """The answer to the quick call of this number; None: the whole call has to be made."""
    reply = wire.call_quickly(Call(LIMITS, session, number, (Acquire(number),), declares=0), NOON)
    return reply and reply.answers[0][0]


def test_a_quick_call_that_is_not_the_next_of_its_session_changes_nothing(wire: Wire) -> None:
    """L5, F56: given a state that knows a session's first call, when its third call comes.

    Then the whole call has to be made. The second call is answered.
    """
    session = f"{wire.token}-1.1"
    wire.call(Call(LIMITS, session, 1, (Acquire(1),)), NOON)
    before = wire.client.hgetall(wire.key)

    assert quick_verdict(wire, session, 3) is None
    assert wire.client.hgetall(wire.key) == before
    assert quick_verdict(wire, session, 2) == "grant"


def test_the_calls_of_a_thread_to_one_name_may_leave_numbers_out(wire: Wire) -> None:
    """Given a thread whose second call went to another name, when its third call comes, then it is
    answered at once.
    """
    thread = f"{wire.token}-1.0"
    wire.call(Call(LIMITS, thread, 1, (Acquire(1),)), NOON)

    assert quick_verdict(wire, thread, 3) == "grant"


def over_with(wire: Wire, known: int, sent: int) -> tuple[list[Call], Reply]:
    """The calls of a session that is over, in a state that knows only the first ones.

    Also the reply to the next session of its process, which has given up the last caller.
    """
    former, following = f"{wire.token}-1.1", f"{wire.token}-1.2"
    calls = [Call(LIMITS, former, number, (Acquire(number),)) for number in range(1, sent + 1)]
    for call in calls[:known]:
        wire.call(call, NOON)
    ends = Cancel(Caller(former, sent, "-"), moment=NOON), Quit(former, "-")
    return calls, wire.call(Call(LIMITS, following, 1, ends), NOON)


@pytest.mark.parametrize(("known", "sent"), [(0, 1), (0, 2), (1, 3), (2, 2)])
@pytest.mark.parametrize("quickly", [False, True], ids=["whole", "quick"])
def test_a_late_call_of_a_session_that_is_over_changes_nothing(
    wire: Wire, known: int, sent: int, quickly: bool
) -> None:
    """S3, F25, F56: given a state that does not know the last calls of a session that is over.

    When the next session has said so, then copies of all these calls come too late.
    """
    calls, received = over_with(wire, known, sent)
    before = wire.client.zrange(wire.keys[1], 0, -1)

    copies = [wire.call_quickly(call, NOON) if quickly else wire.call(call, NOON) for call in calls]

    assert [copy and copy.verdict for copy in copies] == ["late"] * sent
    assert wire.client.zrange(wire.keys[1], 0, -1) == before
    goes_on = Call(LIMITS, received.session, 2, (Acquire(1),), received=received.beginning)
    assert wire.call(goes_on, NOON).answers[0][0] == "grant"


def test_a_session_that_is_over_is_forgotten_half_a_minute_later(wire: Wire) -> None:
    """S9: given a session that the state knows only because it is over."""
    calls, _ = over_with(wire, known=0, sent=1)
    former = calls[0].session
    assert wire.client.hexists(wire.key, f"r{former}")

    wire.call(Call(LIMITS, f"{wire.token}-2.1", 1, (Status(),)), NOON + KEEP)

    assert not wire.client.hexists(wire.key, f"r{former}")
    assert former.encode() not in wire.client.zrange(wire.keys[1], 0, -1)
