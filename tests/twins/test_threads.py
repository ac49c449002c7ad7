"""The session of a thread, which ends with ".0": its calls and its callers have the same numbers.

So a call that was given up, and may still be on its way, can be forbidden (F25).
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.twins.model import Model
from tests.twins.wire import NOON, Acquire, Call, Caller, Cancel, Release, Reply, Status, Wire

LIMITS = "bucket requests 5 1 1 1000000000 5"


def acquired(wire: Wire, number: int) -> Reply:
    """The reply to the thread's call of this number."""
    return wire.call(Call(LIMITS, f"{wire.token}-1.0", number, (Acquire(number),)), NOON)


def declared(wire: Wire, number: int, limits: str = LIMITS) -> str:
    """The verdict on the thread's call of this number, if it declares these limits."""
    call = Call(limits, f"{wire.token}-1.0", number, (Acquire(number),), declares=1)
    return wire.call(call, NOON).verdict


def forbidden(wire: Wire, number: int) -> int:
    """The thread gives up its call of this number, by a session that can speak for it; how much is
    left.
    """
    gives_up = Cancel(Caller(f"{wire.token}-1.0", number, "-"))
    reply = wire.call(Call(LIMITS, f"{wire.token}-2.1", 1, (gives_up, Status())), NOON)
    assert reply.answers[0] == ("done", 1, 0, 0)
    return int(reply.answers[1][-1])


def left(wire: Wire) -> int:
    """How many tokens there are."""
    return int(wire.call(Call(LIMITS, f"{wire.token}-3.1", 1, (Status(),)), NOON).answers[0][-1])


@pytest.mark.parametrize("before", [0, 1])
def test_an_abandoned_call_is_not_carried_out(wire: Wire, before: int) -> None:
    """F25, S4: it is not carried out any more, and the next one is."""
    for number in range(1, before + 1):
        acquired(wire, number)
    forbidden(wire, before + 1)

    assert acquired(wire, before + 1).verdict == "late"
    assert acquired(wire, before + 2).verdict == "ok"
    assert left(wire) == 5 - before - 1


def test_a_call_before_another_can_no_longer_be_abandoned(wire: Wire) -> None:
    """F25, T10: given two calls that were carried out, when the first is given up after all, then
    nothing changes: its moment is not known any more. The last is answered as before.
    """
    acquired(wire, 1)
    answered = acquired(wire, 2)

    assert forbidden(wire, 1) == 3

    assert acquired(wire, 2) == answered
    assert left(wire) == 3


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize(
    "limits",
    [
        LIMITS,
        "window requests 5 1000000000",
        "quota requests 5 1000000000 0 0",
        f"quota requests 5 1000000000 {NOON + 1} 0",  # the period begins with the first call
        "slots permits 1 30000000;window requests 5 1000000000",
    ],
)
def test_the_last_call_of_a_thread_is_undone_once(wire: Wire, limits: str, fast: bool) -> None:
    """F25, S3, S7: given a thread that does not know the outcome of its last call, when it gives
    that up twice, then the tokens are back once. A late copy of the call is not carried out.
    """
    model, thread, other = Model(), f"{wire.token}-1.0", f"{wire.token}-2.1"
    used, unknown = Caller(other, 1, "-"), Caller(thread, 7, "-")

    def both(call: Call, send: Callable[[Call, int], Reply | None] = wire.call) -> Reply:
        reply = send(call, NOON + call.number)
        assert reply == model.call(call, NOON + call.number)
        return reply

    both(Call(limits, other, 1, (Acquire(1), Release(used))))
    acquire = Call(limits, thread, 7, (Acquire(7),), declares=0)
    assert both(acquire, wire.call_fast if fast else wire.call).answers[0][0] == "grant"
    cancel = (Cancel(unknown), Status())

    replies = [both(Call(limits, other, number, cancel)) for number in (8, 9)]

    assert [reply.answers[0] for reply in replies] == [("done", 1, 1, 0), ("done", 1, 0, 0)]
    assert [reply.answers[1][-1] for reply in replies] == [4, 4]
    assert both(acquire).verdict == "late"


def test_calls_that_were_abandoned_together_are_not_carried_out(wire: Wire) -> None:
    """F25, S4: given two that a thread has abandoned one after the other, written as one, then
    neither is carried out any more.
    """
    give_up = Cancel(Caller(f"{wire.token}-1.0", 1, "-"), count=2)
    wire.call(Call(LIMITS, f"{wire.token}-2.1", 1, (give_up,)), NOON)

    assert [acquired(wire, number).verdict for number in (1, 2)] == ["late", "late"]
    assert left(wire) == 5


def test_a_thread_does_not_hear_how_long_an_update_holds(wire: Wire) -> None:
    """Given limits that an update has replaced, when a thread declares them, then it learns the
    present ones. The model agrees.
    """
    model, first, others = Model(), f"{wire.token}-2.1", "slots permits 1 30000000"
    calls = [
        Call(LIMITS, first, 1, (Status(),), declares=1),
        Call(others, first, 2, (Status(),), declares=2),
        Call(LIMITS, f"{wire.token}-1.0", 1, (Acquire(1),), declares=1),
    ]

    replies = [wire.call(call, NOON) for call in calls]

    assert [reply.verdict for reply in replies] == ["ok", "ok", "stale"]
    assert [model.call(call, NOON).verdict for call in calls] == ["ok", "ok", "stale"]


def test_a_thread_declares_limits_only_where_no_others_hold(wire: Wire) -> None:
    """S1: given a name with other limits, when a thread declares its own, then nothing is done. Its
    call may be a late one, and its process replaces limits as another client.
    """
    others = "slots permits 1 30000000"
    wire.call(Call(others, f"{wire.token}-2.1", 1, (Status(),), declares=1), NOON)

    assert declared(wire, 1) == "stale"
    assert declared(wire, 2, others) == "ok"
    reply = wire.call(Call(others, f"{wire.token}-2.1", 2, (Status(),)), NOON)
    assert reply.verdict == "ok"


@pytest.mark.parametrize("offered", [False, True])
def test_a_thread_declares_the_limits_of_a_name_without_any(wire: Wire, offered: bool) -> None:
    """Given a new name, or one that a process has only paused or drained."""
    if offered:
        others = "slots permits 1 30000000"
        wire.call(Call(others, f"{wire.token}-2.1", 1, (Status(),), declares=4), NOON)

    assert declared(wire, 1) == "ok"
    assert left(wire) == 4
