"""A state that the script cannot read: one of an older format, one of which a part was lost, one of
a newer format.
"""

from __future__ import annotations

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from headgate.gate.compile import program, read_program, rules_of
from tests.gate.crowd import kinds
from tests.twins.wire import LUA, NOON, Acquire, Call, Caller, Release, Status, Wire

LIMITS = "bucket requests 5 1 1 1000000 5"
PERMIT = "slots permits 1 30000000"
FIRST, OLDER = b"\x8e, as the first one began", b"\x01 and numbers"
NEWER = [b"\x08 and more numbers", b"\x7f and whatever"]

DEFINED, _, _ = LUA.whole.text.decode().rpartition("\n")  # all of the script but its call
IS_SOUND = f"{DEFINED}\nreturn Limits.are_sound(ARGV[1]) and 1 or 0"
DAMAGED = [
    "",
    ";",
    "slots permits 5 30000000;",
    "slots permits 5",
    "slots permits 5 30000000 7",
    "slots permits 5 0",
    "slots permits 0 30000000",
    "slots permits -5 30000000",
    "slots permits 5.5 30000000",
    "slots permits 1e3 30000000",
    "slots permits 0x5 30000000",
    "slots permits 9007199254740992 30000000",
    "slots Permits 5 30000000",
    "slots permits! 5 30000000",
    "slats permits 5 30000000",
    "window requests 5 0",
    "bucket requests 5 0 1 1 5",
    "bucket requests 5 1 0 1 5",
    "bucket requests 5 1 1 0 5",
    "bucket requests 5 1 1 1 6",
    "bucket requests 94906266 94906266 1 1 1",
    "bucket requests 2 4503599627370496 1 1 1",
    "bucket requests 5 1 1 1",
    "bucket requests 5 1 1 1 5 7",
    "window requests 0 60",
    "quota requests 0 60 0 0",
    "quota requests 5 60 0",
    "quota requests 5 60 0 0 0",
    "quota requests 5 60 60 0",
    "quota requests 5 60 0 60",
    f"{LIMITS}\n",
    "window requests 1 1   ",
    "window requests 1  1",
    "window requests 1 01",
    "bucket requests 05 2 1 1 1",
    "bucket requests 5 2 1 1 00",
]


def spoiled(wire: Wire, field: str, value: bytes | None) -> Wire:
    """A name that is used, and then a field of it is another one, or lost."""
    wire.call(Call(LIMITS, f"{wire.token}-1.1", 1, (Acquire(1),)), NOON)
    if value is None:
        wire.client.hdel(wire.key, field)
    else:
        wire.client.hset(wire.key, field, value)
    return wire


@pytest.mark.parametrize(("waits", "said"), [("0", ["ok", 5]), (f"1 ok {NOON}", ["lapsed"])])
@pytest.mark.parametrize(
    ("field", "value"), [("state", FIRST), ("state", OLDER), ("state", None), ("limits", None)]
)
def test_an_unreadable_state_begins_anew(
    wire: Wire, field: str, value: bytes | None, waits: str, said: list[object]
) -> None:
    """F47, L5: the holders and waiters are gone there, and each has to say its session, so that it
    queues again.
    """
    name = spoiled(wire, field, value)

    reply = name.call(Call(LIMITS, f"{wire.token}-1.1", 2, (Status(),), waits), NOON)

    assert [reply.verdict, *(left for *_, left in reply.answers)] == said


def test_a_state_that_begins_anew_has_no_grants_of_the_former_one(wire: Wire) -> None:
    """F47, S1: given a grant in the outbox of a session, when its call begins the state anew."""
    holder, waiter = f"{wire.token}-1.1", f"{wire.token}-2.1"
    for session in (holder, waiter):
        wire.call(Call(PERMIT, session, 1, (Acquire(1),)), NOON)
    wire.call(Call(PERMIT, holder, 2, (Release(Caller(holder, 1, "-")),), declares=0), NOON)
    assert wire.client.hexists(wire.key, f"m{waiter}")
    wire.client.hset(wire.key, "state", OLDER)

    reply = wire.call(Call(PERMIT, waiter, 2, (Status(),)), NOON)

    assert (reply.verdict, reply.outbox) == ("ok", ())


@pytest.mark.parametrize("limits", DAMAGED)
@pytest.mark.parametrize(("waits", "said"), [("0", ["ok", 5]), (f"1 ok {NOON}", ["lapsed"])])
def test_a_name_with_damaged_limits_begins_anew(
    wire: Wire, limits: str, waits: str, said: list[object]
) -> None:
    """L5: the first call begins the name anew with its own limits."""
    name = spoiled(wire, "limits", limits.encode())

    reply = name.call(Call(LIMITS, f"{wire.token}-1.1", 2, (Status(),), waits), NOON)

    assert [reply.verdict, *(left for *_, left in reply.answers)] == said
    if said == ["ok", 5]:
        assert wire.client.hget(wire.key, "limits") == LIMITS.encode()


@pytest.mark.parametrize("limits", DAMAGED)
def test_a_client_refuses_the_limits_that_the_script_refuses(limits: str) -> None:
    with pytest.raises(ValueError, match="damaged"):
        read_program(limits)


PIECES = [
    "slots",
    "bucket",
    "window",
    "quota",
    "permits",
    "5",
    "1",
    "0",
    "60",
    "9007199254740991",
    "9007199254740992",
    ";",
]
damaged = st.text("0159 ;abkw-", max_size=12) | st.lists(st.sampled_from(PIECES), max_size=9).map(
    " ".join
)
sound = st.lists(kinds, min_size=1, max_size=4).map(lambda limits: program(rules_of(limits)))


@given(
    damaged
    | sound
    | st.builds(str.replace, sound, st.sampled_from("0165 "), st.sampled_from("0179 x;"))
)
@example("window requests 1 1   ")
@example("bucket requests 5 2   1 1 1;window requests 4 1   ")
@example("window requests 1 1  ;window requests 1 1")
@example("bucket requests 5 1 1 1000000 05")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_both_twins_take_the_same_limits(client: redis.Redis, limits: str) -> None:
    """All texts that a client can read, the script can read, and the other way round."""
    try:
        read_program(limits)
    except ValueError:
        readable = 0
    else:
        readable = 1

    assert client.eval(IS_SOUND, 0, limits) == readable


@given(
    damaged | st.builds(str.replace, sound, st.sampled_from("0165 "), st.sampled_from("0179 x;"))
)
@example("window requests 1 01")
def test_limits_that_can_be_read_are_written_the_same(limits: str) -> None:
    """A process that adopts the server's limits keeps the very text: each other text declares other
    limits.
    """
    try:
        adopted = read_program(limits)
    except ValueError:
        return

    assert program(adopted.rules()) == limits


@given(sound)
def test_limits_that_were_declared_can_be_read(limits: str) -> None:
    assert read_program(limits).program == limits


@pytest.mark.parametrize("state", NEWER)
def test_a_state_of_a_newer_format_is_not_changed(wire: Wire, state: bytes) -> None:
    """F47: the error names the way out, and the state is as it was."""
    name = spoiled(wire, "state", state)

    with pytest.raises(redis.ResponseError, match="update this one, too"):
        name.call(Call(LIMITS, f"{wire.token}-1.1", 2, (Status(),)), NOON)

    assert wire.client.hget(wire.key, "state") == state
