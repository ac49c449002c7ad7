"""A quick call shows that the state has gone back: its session has made calls that the state does
not know.

The stories test the session's later words about its permits, and their effect.
"""

from __future__ import annotations

from tests.twins.wire import NOON, Acquire, Call, Wire

LIMITS = "slots permits 5 30000000"


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
