"""The limits of a process in step with the store: the statement of each call about them."""

from __future__ import annotations

import pytest

from headgate.stores.redis.limit_sync import choose_statement
from headgate.stores.redis.protocol.operations import (
    ASKED,
    DECLARED,
    KNOWN,
    OFFERED,
    UPDATED,
    AskStatus,
    Caller,
    Operation,
    Pause,
    Release,
    Reset,
)


@pytest.mark.parametrize(
    ("declares", "asks", "operations", "statement"),
    [
        (ASKED, True, [], DECLARED),
        (UPDATED, False, [AskStatus()], UPDATED),
        (KNOWN, True, [], KNOWN),
        (ASKED, False, [], ASKED),
        (KNOWN, False, [], KNOWN),
        (KNOWN, False, [AskStatus(), Reset()], ASKED),
        (KNOWN, False, [AskStatus(), Pause(1)], OFFERED),
        (KNOWN, False, [Pause(1), Release(Caller("s.1", 1, "-"))], KNOWN),
    ],
)
def test_the_statement_of_a_call_about_its_limits_follows_from_its_requests(
    declares: int, asks: bool, operations: list[Operation], statement: int
) -> None:
    assert choose_statement(declares, asks, operations) == statement
