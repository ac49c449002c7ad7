"""The log of a Window is a field of the name, bounded, and goes with its limit."""

from __future__ import annotations

from headgate.gate.compile import program, rules_of
from headgate.limits import Rate, Window
from tests.twins.wire import NOON, Acquire, Call, Wire

WINDOW = program(rules_of([Window(10_000, per=1)]))
BUCKET = program(rules_of([Rate(10_000, per=1)]))
ENTRY = 16  # bytes


def asked(wire: Wire, number: int, limits: str = WINDOW, declares: int = 1) -> Call:
    acquire = Acquire(number, max_sleep=0)
    return Call(limits, f"{wire.token}-1.1", number, (acquire,), declares=declares)


def test_a_window_of_any_amount_has_a_log_of_2_kilobytes_and_no_key_of_its_own(wire: Wire) -> None:
    """S9: given 1,000 moments in half a period, the log has 127 of them at most."""
    lengths = []
    for number in range(1, 1_001):
        wire.call(asked(wire, number), NOON + 500 * number)
        lengths.append(wire.client.hstrlen(wire.key, "log1"))

    assert 60 * ENTRY < max(lengths) <= 127 * ENTRY
    assert set(wire.lives()) == {wire.key}


def test_a_log_goes_with_its_window(wire: Wire) -> None:
    """S9: given a window with a log, when an update replaces it by a bucket, then the log is
    gone.
    """
    for number in range(1, 20):
        wire.call(asked(wire, number), NOON + number)
    assert wire.client.hexists(wire.key, "log1")

    wire.call(asked(wire, 20, BUCKET, declares=2), NOON + 20)

    assert not wire.client.hexists(wire.key, "log1")


def test_a_log_goes_with_its_last_entry(wire: Wire) -> None:
    """S9: an idle window has no field for it."""
    for number in range(1, 20):
        wire.call(asked(wire, number), NOON + number)
    assert wire.client.hexists(wire.key, "log1")

    wire.call(asked(wire, 20), NOON + 10_000_000)

    assert not wire.client.hexists(wire.key, "log1")
