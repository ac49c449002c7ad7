"""The typed protocol of the Redis store: the words of docs/wire-format.md, one encoder, one
parser.
"""

from __future__ import annotations

from asyncio import new_event_loop
from collections.abc import Iterable
from typing import Any, cast

import pytest

from headgate.errors import StoreError
from headgate.gate.compile import Declaration, rules_of
from headgate.gate.gate import Grant
from headgate.limits import Concurrency
from headgate.permit import Permit
from headgate.request import Request
from headgate.stores.redis.protocol.calls import (
    CLUSTERED,
    Command,
    keys_of,
    words_at_once,
    write_acquires,
    write_call,
    write_operations,
)
from headgate.stores.redis.protocol.operations import (
    ASKED,
    DECLARED,
    KNOWN,
    OFFERED,
    AskDeclared,
    AskStatus,
    Caller,
    Cancel,
    Drain,
    Leave,
    Operation,
    Pause,
    Promise,
    Quit,
    Rejoin,
    Release,
    Renew,
    Reset,
    Resume,
    Settle,
    Update,
)
from headgate.stores.redis.protocol.replies import (
    Answer,
    Done,
    GrantedAtOnce,
    Lapsed,
    Notification,
    Offered,
    Outbox,
    OutboxGrant,
    Overruled,
    StatusAnswer,
    Unknown,
    has_begun,
    parse_grant,
    parse_notification,
    parse_reply,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.acquires import PendingAcquire

SLOTS = Declaration(rules_of([Concurrency(1)]))
NEVER, NOW, LONG_AGO = float("inf"), 100.0, 0.0


class Held:
    """A permit, as a renewal sees it."""

    key = Caller("s.1", 7, "-")
    t = 99


WORDS: list[tuple[Operation, str]] = [
    (Release(Caller("s.1", 7, "requests=3")), "release s.1 7 1 requests=3"),
    (Cancel(Caller("s.1", 7, "-")), "cancel s.1 7 1 0 -"),
    (Cancel(Caller("s.1", 7, "-"), 99), "cancel s.1 7 1 99 -"),
    (Renew(cast(Permit, Held()), 300), "renew s.1:7:- 300 99"),
    (Settle(99, "tokens=-5"), "settle 99 tokens=-5"),
    (Drain("tokens", 0, 8, 12, until=NEVER), "drain tokens 0 8 12"),
    (Pause(1000, until=NEVER), "pause 1000"),
    (Resume(until=NEVER), "resume"),
    (Reset(until=NEVER), "reset"),
    (AskStatus(), "status -"),
    (AskDeclared(), "declared"),
    (Update("slots permits 5 1"), "update slots,permits,5,1"),
    (Update(""), "update -"),
    (Rejoin(Caller("s.1", 7, "-"), 99, 101), "rejoin s.1 7 99 101 -"),
    (Quit("s.1", "3,7"), "quit s.1 3,7"),
    (Leave("s.1"), "quit s.1 *"),
]
# For each type: must it be delivered to a server that was unavailable; is it sent again after a
# refusal. Then: is it logged when it is given up; which state of the name does it need.
FACTS: dict[type[Operation], tuple[bool, bool, bool, int]] = {
    Release: (True, True, True, KNOWN),
    Cancel: (True, True, False, KNOWN),
    Renew: (False, True, False, KNOWN),
    Settle: (True, False, True, KNOWN),
    Drain: (True, True, True, OFFERED),
    Pause: (True, True, True, OFFERED),
    Resume: (True, True, True, ASKED),
    Reset: (True, True, True, ASKED),
    AskStatus: (False, True, False, ASKED),
    AskDeclared: (False, True, False, ASKED),
    Update: (True, True, True, KNOWN),
    Rejoin: (True, False, False, KNOWN),
    Quit: (True, True, False, KNOWN),
    Leave: (False, True, False, KNOWN),
}


def text(words: Iterable[str]) -> str:
    """All words are texts, because hiredis crashes when a signal handler raises while it writes a
    number.
    """
    return " ".join(words)


def release(number: int, session_id: str = "s.1", asked: str = "-") -> Release:
    return Release(Caller(session_id, number, asked))


def awaited(operation: Operation) -> Operation:
    loop = new_event_loop()
    operation.asker = loop.create_future()
    loop.close()
    return operation


def acquire(number: int, *, max_sleep: int | None = None, on_wait: Any = None) -> PendingAcquire:
    request = Request({}, max_sleep, None, on_wait)
    pending = PendingAcquire(request, cast(Promise, None), enters=False, now=NOW)
    pending.number = number
    return pending


@pytest.mark.parametrize(("operation", "words"), WORDS, ids=[words for _, words in WORDS])
def test_each_operation_is_written_as_the_wire_format_says(
    operation: Operation, words: str
) -> None:
    assert text(write_operations([operation])) == words


@pytest.mark.parametrize(("operation", "words"), WORDS, ids=[words for _, words in WORDS])
def test_the_type_says_how_an_operation_is_delivered(operation: Operation, words: str) -> None:
    facts = operation.owed_at(NOW), operation.repeatable, operation.logged, operation.needs
    assert facts == FACTS[type(operation)]


def test_only_a_settlement_waits_for_the_release_behind_it() -> None:
    assert [type(each) for each, _ in WORDS if each.leads_release] == [Settle]


@pytest.mark.parametrize("kind", [Resume, Reset])
def test_a_statement_must_be_delivered_until_it_expires(kind: type[Resume | Reset]) -> None:
    assert kind(until=NEVER).owed_at(NOW)
    assert not kind(until=LONG_AGO).owed_at(NOW)


@pytest.mark.parametrize("awaits", [Update(""), Pause(1), Resume(), Reset(), AskStatus()])
def test_an_operation_whose_caller_gets_the_error_need_not_be_delivered(awaits: Operation) -> None:
    assert not awaited(awaits).owed_at(NOW)


def test_a_release_must_be_delivered_even_if_its_caller_gets_the_error() -> None:
    assert awaited(release(1)).owed_at(NOW)


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([release(1), release(2), release(3)], "release s.1 1 3 -"),
        ([release(1), release(3)], "release s.1 1 1 - release s.1 3 1 -"),
        ([release(1), release(2, "s.2")], "release s.1 1 1 - release s.2 2 1 -"),
        ([release(1), release(2, asked="a=1")], "release s.1 1 1 - release s.1 2 1 a=1"),
        ([release(1), awaited(release(2))], "release s.1 1 1 - release s.1 2 1 -"),
        ([awaited(release(1)), release(2)], "release s.1 1 1 - release s.1 2 1 -"),
        ([release(1), Cancel(Caller("s.1", 2, "-"))], "release s.1 1 1 - cancel s.1 2 1 0 -"),
        ([Cancel(Caller("s.1", each, "-")) for each in (4, 5)], "cancel s.1 4 2 0 -"),
        (
            [Cancel(Caller("s.1", each, "-"), 9) for each in (4, 5)],
            "cancel s.1 4 1 9 - cancel s.1 5 1 9 -",
        ),
        ([release(1), Resume(), release(2)], "release s.1 1 1 - resume release s.1 2 1 -"),
    ],
)
def test_only_equal_neighbouring_operations_are_written_as_one(
    operations: list[Operation], words: str
) -> None:
    assert text(write_operations(operations)) == words


def test_acquires_that_ask_for_the_same_are_written_as_one() -> None:
    alike = [acquire(5), acquire(6), acquire(8), acquire(9, max_sleep=0)]
    with_callback = acquire(10, max_sleep=0, on_wait=print)
    assert text(write_acquires([*alike, with_callback])) == (
        "acquire 5 2 -1 -1 - acquire 8 1 -1 -1 - acquire 9 1 0 -1 - acquire 10 1 0 -1 -"
    )


def whole(flags: int) -> Command:
    at = "headgate:{n}", SLOTS, DECLARED, "s.1", 4, "3 ok 77"
    return write_call(*at, flags, [release(1)], [acquire(2)])


@pytest.mark.parametrize(
    ("flags", "elsewhere"), [(0, 0), (1, 1), (2, 0), (3, 1), (4, 4), (5, 5), (6, 4), (7, 5)]
)
def test_a_whole_call_is_written_as_the_wire_format_says(flags: int, elsewhere: int) -> None:
    """Another server does not notify the session, so a call that moves to it makes no such
    claim.
    """
    call = whole(flags)
    beginning = "2 headgate:{n} headgate:{n}:who slots permits 1 30000000 s.1 4 1 3 ok 77"
    requests = "release s.1 1 1 - acquire 2 1 -1 -1 -"
    assert call.script == library().whole
    assert text(call.words) == f"{beginning} {flags} 50000 {requests}"
    assert text(call.unnotified().words) == f"{beginning} {elsewhere} 50000 {requests}"


def test_a_call_without_acquires_runs_even_if_the_server_is_out_of_memory() -> None:
    at = "headgate:{n}", SLOTS, KNOWN, "s.1", 4, "0", 0
    assert write_call(*at, [release(1)], []).script == library().without_acquires


@pytest.mark.parametrize("how", [KNOWN, DECLARED])
@pytest.mark.parametrize("flags", [0, CLUSTERED])
def test_the_fast_path_writes_the_words_of_a_call(how: int, flags: int) -> None:
    declared, lone = Declaration(rules_of([Concurrency(1)])), acquire(4, max_sleep=0)
    call = write_call("headgate:{n}", declared, how, "s.0", 4, "0", flags, [], [lone])

    keys = keys_of("headgate:{n}")
    words = words_at_once(keys, declared.program, "s.0", "4", how, flags, lone.request.text)

    assert words == call.words


REPLIES: list[tuple[str, Any]] = [
    ("s.1 4 late", Lapsed()),
    ("s.1 4 lapsed", Lapsed()),
    ("s.1 4 unknown", Unknown()),
    ("s.1 4 stale slots permits 1 5", Overruled("slots permits 1 5", None)),
    ("s.1 4 offer slots permits 1 5", Offered("slots permits 1 5")),
    ("s.1 4 held -1 slots permits 1 5", Overruled("slots permits 1 5", -1)),
    ("s.1 4 ok 50 -1 0 |", Done(50, None, [], Outbox([], None))),
    ("s.1 4 ok 50 12 0 |", Done(50, None, [], Outbox([], None))),
    ("s.1 4 ok 50 12 1 | !7", Done(50, 12, [], Outbox([], 7))),
    (
        "s.1 4 ok 50 -1 0 done 2 1 -1 grant 2 3 4 wait 2 9 5 full 2 0 6 | 8 2 1 2 30",
        Done(
            50,
            None,
            [
                *(Answer("done", 1, -1), Answer("done", 1, 0)),
                *(Answer("grant", 53, 54), Answer("grant", 53, 55)),
                *(Answer("wait", 9, 5), Answer("wait", 9, 6)),
                *(Answer("full", 0, 6), Answer("full", 0, 6)),
            ],
            Outbox([OutboxGrant(8, 51, 52, 30), OutboxGrant(9, 51, 53, 30)], None),
        ),
    ),
    (
        "s.1 4 ok 50 -1 0 status 1 2 3 4 done 1 1 -1 | @40 8 1 -1 2 0 !0",
        Done(
            50,
            None,
            [StatusAnswer("slots permits 1 5", 1, 2, 3, [4]), Answer("done", 1, -1)],
            Outbox([OutboxGrant(8, -1, 42, 0)], 0),
        ),
    ),
]


@pytest.mark.parametrize(("reply", "found"), REPLIES, ids=[reply for reply, _ in REPLIES])
def test_each_reply_is_read_as_its_type(reply: str, found: Any) -> None:
    assert parse_reply(reply.encode(), "s.1", 4, "slots permits 1 5") == found


@pytest.mark.parametrize("reply", ["s.2 4 unknown", "s.1 5 ok 50 -1 0 |"])
def test_the_reply_to_another_call_is_an_error(reply: str) -> None:
    with pytest.raises(StoreError, match="another call"):
        parse_reply(reply.encode(), "s.1", 4, "")


def test_the_fast_parser_reads_the_grant_of_a_lone_acquire_as_the_typed_one_does() -> None:
    reply = b"s.1 4 ok 50 -1 0 grant 1 3 4 |"
    typed = parse_reply(reply, "s.1", 4, "slots permits 1 5")
    assert isinstance(typed, Done)
    [answer] = cast("list[Answer]", typed.answers)
    grant = Grant(answer.number, answer.fence)
    assert parse_grant(reply) == GrantedAtOnce("s.1", 4, typed.now, grant)


@pytest.mark.parametrize(
    "reply", ["unknown", "ok 50 -1 0 wait 1 3 4 |", "ok 50 -1 0 grant 1 3 4 | !7"]
)
def test_the_fast_parser_leaves_other_replies_to_the_typed_one(reply: str) -> None:
    assert parse_grant(f"s.1 4 {reply}".encode()) is None


def test_a_notification_is_read_as_its_type() -> None:
    grant = OutboxGrant(8, 51, 52, 30)
    assert parse_notification("s.1 50 -1 8 1 1 2 30 !9") == Notification(
        "s.1", 50, None, Outbox([grant], 9)
    )
    assert parse_notification("s.1 50 12") == Notification("s.1", 50, 12, Outbox([], None))


@pytest.mark.parametrize(
    ("refusal", "begun"),
    [
        ("ERR user_script:3: Script attempted to access keys, script: 5f", True),
        ("OOM command not allowed when used memory > 'maxmemory'.", False),
        ("MISCONF Redis is configured to save RDB snapshots", False),
    ],
)
def test_an_error_says_whether_the_script_had_begun(refusal: str, begun: bool) -> None:
    assert has_begun(refusal) is begun
