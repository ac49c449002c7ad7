"""Pauses of a key and of its whole limiter in one call, which stories seldom have."""

from __future__ import annotations

from tests.twins.wire import NOON, Acquire, Call, Pause, PauseWhole, Resume, Wire

SECOND = 1_000_000
LIMITS = "bucket requests 1 1000000 1 1 1"


def test_a_resume_of_a_key_does_not_end_the_pause_of_the_whole_limiter(wire: Wire) -> None:
    pauses = PauseWhole(SECOND), Pause(2 * SECOND), Resume()

    reply = wire.call(Call(LIMITS, f"{wire.token}-1.1", 1, (*pauses, Acquire(1))), NOON)

    assert reply.answers[-1] == ("wait", 1, SECOND, 0)


def test_a_resume_keeps_the_moments_that_are_reserved(wire: Wire) -> None:
    """T3: the next caller passes behind them, though it needs nothing of the limit. The session
    hears that the pause is over.
    """
    requests = Acquire(1, 2), Pause(2 * SECOND), Resume(), Acquire(3, asked="requests=0")

    reply = wire.call(Call(LIMITS, f"{wire.token}-1.1", 1, requests, reserve_ahead=SECOND), NOON)

    assert list(reply.each())[-1][:2] == ("grant", NOON + SECOND)
    assert reply.paused == NOON
