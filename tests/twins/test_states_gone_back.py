"""The calls of sessions that a state which has gone back does not know.

A session says which reply it has received, and the state may not know that one. A late copy of a
call comes from a session that is over. The stories test the session's later words about its
permits, and their effect.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.twins.wire import NOON, Acquire, Call, Caller, Cancel, Quit, Reply, Status, Wire

LIMITS = "slots permits 5 30000000"
KEEP = 30_000_000  # microseconds for which the script knows that a session is over


def test_an_acquire_of_a_session_whose_last_reply_the_state_does_not_know_ends_it(
    wire: Wire,
) -> None:
    """L5, F56: given a state that knows a session's first call, when its third call comes, then the
    session is over.
    """
    session = f"{wire.token}-1.1"
    wire.call(Call(LIMITS, session, 1, (Acquire(1),)), NOON)
    acquire = Call(LIMITS, session, 3, (Acquire(3),), received=f"2 ok {NOON}", declares=0)

    assert wire.call_fast(acquire, NOON) is None
    assert wire.call(acquire, NOON).verdict == "lapsed"


def test_the_calls_of_a_thread_to_one_name_may_leave_numbers_out(wire: Wire) -> None:
    """Given a thread whose second call went to another name, when its third call comes, then it is
    answered at once.
    """
    thread = f"{wire.token}-1.0"
    wire.call(Call(LIMITS, thread, 1, (Acquire(1),)), NOON)

    reply = wire.call_fast(Call(LIMITS, thread, 3, (Acquire(3),), declares=0), NOON)

    assert reply is not None
    assert reply.answers[0][0] == "grant"


def over_with(wire: Wire, known: int, sent: int) -> tuple[list[Call], Reply]:
    """The calls of a session that is over, in a state that knows only the first ones.

    Also the reply to the next session of its process, which has given up the last caller.
    """
    former, following = f"{wire.token}-1.1", f"{wire.token}-1.2"
    calls = [
        Call(LIMITS, former, number, (Acquire(number),), declares=int(number == 1))
        for number in range(1, sent + 1)
    ]
    for call in calls[:known]:
        wire.call(call, NOON)
    ends = Cancel(Caller(former, sent, "-"), moment=NOON), Quit(former, "-")
    return calls, wire.call(Call(LIMITS, following, 1, ends), NOON)


@pytest.mark.parametrize(("known", "sent"), [(0, 1), (0, 2), (1, 3), (2, 2)])
@pytest.mark.parametrize("fast", [False, True], ids=["whole", "fast"])
def test_a_late_call_of_a_session_that_is_over_changes_nothing(
    wire: Wire, known: int, sent: int, fast: bool
) -> None:
    """S3, F25, F56: given a state that does not know the last calls of a session that is over.

    When the next session has said so, then copies of all these calls come too late.
    """
    calls, received = over_with(wire, known, sent)
    before = wire.client.zrange(wire.keys[1], 0, -1)

    calls = [replace(call, declares=0) for call in calls]
    copies = [wire.call_fast(call, NOON) if fast else wire.call(call, NOON) for call in calls]

    assert [copy and copy.verdict for copy in copies] == ["late"] * sent
    assert wire.client.zrange(wire.keys[1], 0, -1) == before
    goes_on = Call(LIMITS, received.session, 2, (Acquire(1),), received=received.beginning)
    assert wire.call(goes_on, NOON).answers[0][0] == "grant"


def test_a_late_call_of_a_session_that_is_over_is_rejected_though_the_members_were_lost(
    wire: Wire,
) -> None:
    """S3, F25: given a session that is over, when the key of the members is deleted and another
    session makes it anew, then a copy of a call of the former one comes too late.
    """
    calls, _ = over_with(wire, known=2, sent=2)
    wire.lose("who")
    wire.call(Call(LIMITS, f"{wire.token}-2.1", 1, (Acquire(1),)), NOON)

    assert wire.call(replace(calls[-1], declares=0), NOON).verdict == "late"


def test_a_session_that_is_over_is_forgotten_half_a_minute_later(wire: Wire) -> None:
    """S9: given a session that the state knows only because it is over."""
    calls, _ = over_with(wire, known=0, sent=1)
    former = calls[0].session
    assert wire.client.hexists(wire.key, f"r{former}")

    wire.call(Call(LIMITS, f"{wire.token}-2.1", 1, (Status(),)), NOON + KEEP)

    assert not wire.client.hexists(wire.key, f"r{former}")
    assert former.encode() not in wire.client.zrange(wire.keys[1], 0, -1)
