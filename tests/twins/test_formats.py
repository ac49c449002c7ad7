"""A state that the script cannot read: one of an older format, one of which a part was lost, one of a newer format."""

from __future__ import annotations

import pytest
import redis

from tests.twins.wire import NOON, Acquire, Call, Status, Wire

LIMITS = "bucket requests 5 1 1 1000000 5"
FIRST, OLDER = b"\x8e, as the first one began", b"\x01 and numbers"
NEWER = [b"\x05 and more numbers", b"\x7f and whatever"]


def spoiled(wire: Wire, field: str, value: bytes | None) -> Wire:
    """A name that is used, and then a field of it is another one, or lost."""
    wire.call(Call(LIMITS, f"{wire.token}-1.1", 1, (Acquire(1),)), NOON)
    if value is None:
        wire.client.hdel(wire.key, field)
    else:
        wire.client.hset(wire.key, field, value)
    return wire


@pytest.mark.parametrize(("waits", "said"), [("0", ["ok", 5]), (f"1 ok {NOON}", ["lapsed"])])
@pytest.mark.parametrize(("field", "value"), [("state", FIRST), ("state", OLDER), ("state", None), ("limits", None)])
def test_what_cannot_be_read_is_begun_afresh(wire: Wire, field: str, value: bytes | None, waits: str, said: list[object]) -> None:
    """F47, L5: nobody holds or waits there any more, and who did is asked who it is, so that it queues again."""
    name = spoiled(wire, field, value)

    reply = name.call(Call(LIMITS, f"{wire.token}-1.1", 2, (Status(),), waits), NOON)

    assert [reply.verdict, *(left for *_, left in reply.answers)] == said


@pytest.mark.parametrize("state", NEWER)
def test_a_newer_state_is_left_alone(wire: Wire, state: bytes) -> None:
    """F47: the error says what to do, and the state is as it was."""
    name = spoiled(wire, "state", state)

    with pytest.raises(redis.ResponseError, match="update this one, too"):
        name.call(Call(LIMITS, f"{wire.token}-1.1", 2, (Status(),)), NOON)

    assert wire.client.hget(wire.key, "state") == state
