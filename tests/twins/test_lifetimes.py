"""How long the keys of a name live: new keys end with the others, and held permits do not make them
live for ages.

The stories test that they live for as long as their promises.
"""

from __future__ import annotations

import time

import pytest
import redis

from headgate.gate.compile import program, rules_of
from headgate.limits import Concurrency, Limit, Rate, Window
from tests.machine import scaled
from tests.twins.driver import FOR_EVER
from tests.twins.model import SESSION_LIFE
from tests.twins.wire import (
    NOON,
    Acquire,
    Call,
    Caller,
    Cancel,
    Release,
    Reply,
    Request,
    Status,
    Wire,
)

LIMITS = program(rules_of([Concurrency(10, lease=30), Window(10, per=1)]))


def acquired(wire: Wire, number: int) -> None:
    wire.call(
        Call(LIMITS, f"{wire.token}-1.1", number, (Acquire(number),), declares=int(number == 1)),
        NOON + number,
    )


def test_a_key_that_is_made_anew_has_a_ttl(wire: Wire) -> None:
    """S8, L6: given a key that was lost between two calls, when the next one writes to it, then it
    ends with the other keys.
    """
    for number in (1, 2, 3):
        acquired(wire, number)
    wire.lose("who")

    acquired(wire, 4)

    lives = wire.lives()
    assert f"{wire.key}:who" in lives
    assert FOR_EVER not in lives.values()


def test_the_keys_of_a_held_permit_have_a_short_ttl(wire: Wire) -> None:
    """L6: a permit of half a minute, and the time that keys live beyond that."""
    acquired(wire, 1)

    assert max(wire.lives().values()) <= 120_000


def test_members_that_have_expired_leave_a_foreign_key_alone(wire: Wire) -> None:
    """F46: given two sessions that are long silent, and a key of another program in place of their
    members, then a call fails, and that key stays.
    """
    limits, who = "bucket requests 1 3600000000 1 1 1", f"{wire.key}:who"
    first, second = (f"{wire.token}-{number}.1" for number in (1, 2))
    for session in (first, second):
        wire.call(Call(limits, session, 1, (Status(),), declares=1), NOON)
    assert wire.client.exists(who)
    wire.client.delete(who)
    wire.client.set(who, "of another program")

    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        wire.call(Call(limits, first, 2, (Status(),), declares=0), NOON + 200_000_000)
    assert wire.client.get(who) == b"of another program"


def test_a_name_with_expired_members_is_one_small_key_again(wire: Wire) -> None:
    """S9: the records of sessions that are long silent are gone, and the key is a list again."""
    limits = "bucket requests 1 3600000000 1 1 1"
    for number in range(600):
        wire.call(Call(limits, f"{wire.token}-{number}.1", 1, (Status(),), declares=1), NOON)
    wire.call(Call(limits, f"{wire.token}-0.1", 2, (Status(),), declares=0), NOON + 200_000_000)
    assert set(wire.lives()) == {wire.key}
    assert sum(field[:1] == b"r" for field in wire.client.hkeys(wire.key)) == 1


# An idle name is small ---------------------------------------------------------------------------

MANY = 1500
HELD = program(rules_of([Concurrency(2, lease=30), Rate(100, per=86400)]))


class Talk:
    """One session's calls, in order."""

    def __init__(self, wire: Wire, client: int, limits: str = HELD) -> None:
        self.wire, self.name, self.limits = wire, f"{wire.token}-{client}.1", limits
        self.last = 0

    def call(self, now: int, *requests: Request, clustered: bool = False) -> Reply:
        self.last += 1
        reply = self.wire.call(
            Call(
                self.limits,
                self.name,
                self.last,
                requests,
                declares=int(self.last == 1),
                clustered=clustered,
            ),
            now,
        )
        assert reply.verdict == "ok"
        return reply

    def holds(self, now: int, number: int, clustered: bool = False) -> None:
        """Acquire a permit, and release it."""
        self.call(now, Acquire(number), clustered=clustered)
        self.call(now + 1, self.release(number), clustered=clustered)

    def release(self, first: int, count: int = 1) -> Release:
        return Release(Caller(self.name, first, "-"), count)


def waited_for(wire: Wire, now: int, limits: str = HELD) -> tuple[Talk, Talk]:
    """Two sessions: the second has waited for both permits of the first, and holds them."""
    holder, waiter = Talk(wire, 1, limits), Talk(wire, 2, limits)
    holder.call(now, Acquire(1, 2))
    waiter.call(now + 1, Acquire(1, 2))
    holder.call(now + 2, holder.release(1))
    holder.call(now + 2, holder.release(2))
    return holder, waiter


def is_list(wire: Wire) -> bool:
    return bool(wire.client.object("encoding", wire.key) == b"listpack")


def test_a_key_that_was_held_is_one_small_key(wire: Wire) -> None:
    """S9: it is a list also while the permit is held."""
    talk = Talk(wire, 1)
    talk.call(NOON, Acquire(1))
    assert set(wire.lives()) == set(wire.keys)
    assert is_list(wire)

    talk.call(NOON + 1, talk.release(1))

    assert set(wire.lives()) == {wire.key}
    assert wire.client.memory_usage(wire.key, samples=0) <= 400


def test_a_state_has_only_the_numbers_that_it_needs(wire: Wire) -> None:
    """S9: fewest while the name is idle, and most while a request waits."""
    talk, lengths = Talk(wire, 1), []
    ends = Cancel(Caller(talk.name, 3, "-")), talk.release(1, 2)
    for requests in ((Acquire(1, 2),), (Acquire(3),), ends):
        talk.call(NOON, *requests)
        lengths.append(wire.client.hstrlen(wire.key, "state"))

    held, waited_for, idle = lengths
    assert idle < held < waited_for


def test_a_key_that_a_session_has_waited_for_is_a_list_again(wire: Wire) -> None:
    """S8, S9: the outbox made a table of it. The key is made anew, and has a TTL."""
    _, waiter = waited_for(wire, NOON)
    assert not is_list(wire)
    wire.client.hset(wire.key, "told", "a former head")

    waiter.call(NOON + 3, waiter.release(1, 2))
    assert is_list(wire)
    assert not wire.client.hexists(wire.key, "told")
    assert 0 < wire.lives()[wire.key] <= 86_500_000


def test_a_key_that_is_made_anew_keeps_its_records_and_outboxes(wire: Wire) -> None:
    """S3, L5: a copy of a call gets the same reply, and an unread grant stays."""
    holder, waiter = waited_for(wire, NOON)
    before = wire.client.hgetall(wire.key)
    _, other = waiter.call(NOON + 3, waiter.release(1, 2)), Talk(wire, 3)
    after = wire.client.hgetall(wire.key)

    changed = {b"told", b"state", f"r{waiter.name}".encode(), f"m{waiter.name}".encode()}
    assert {k: v for k, v in before.items() if k not in changed} == {
        k: v for k, v in after.items() if k not in changed
    }
    holder.last -= 1
    assert holder.call(NOON + 4, holder.release(2)).t == NOON + 2
    other.call(NOON + 5, Acquire(1))


def test_a_grant_that_the_call_does_not_release_stays_unread(wire: Wire) -> None:
    """L5: of a run of grants, the session may know some. Another session has released one."""
    holder, waiter = Talk(wire, 1), Talk(wire, 2)
    holder.call(NOON, Acquire(1, 2))
    waiter.call(NOON + 1, Acquire(1, 5))
    holder.call(NOON + 2, holder.release(1, 2))  # 1 and 2 are granted
    holder.call(NOON + 3, waiter.release(2), waiter.release(1))  # and 3 and 4
    holder.call(NOON + 4, waiter.release(4))  # and 5

    reply = waiter.call(NOON + 5, waiter.release(3), waiter.release(5))

    assert [number for number, *_ in reply.outbox] == [1, 2, 4]
    assert set(wire.lives()) == set(wire.keys)


def test_many_unread_grants_are_forgotten_in_one_walk(wire: Wire) -> None:
    """S9: the work of a call is bounded, also if it releases all that it has not read."""
    limits = program(rules_of([Concurrency(MANY, lease=30)]))
    holder, waiter = Talk(wire, 1, limits), Talk(wire, 2, limits)
    for talk in (holder, waiter):
        for first in range(1, MANY, 500):
            talk.call(NOON, Acquire(first, 500))
    for number in range(1, MANY + 1):
        holder.call(NOON + number, holder.release(number))

    began = time.perf_counter()
    reply = waiter.call(NOON + MANY, *(waiter.release(n, 500) for n in range(1, MANY, 500)))

    assert not reply.outbox
    assert time.perf_counter() - began < scaled(0.5)


def is_made_anew(wire: Wire, waiter: Talk, *more: Request) -> bool:
    """Whether the call that leaves the name idle deletes the key and writes it again: only then
    does it set a TTL.
    """
    wire.client.expire(wire.key, 77)
    waiter.call(NOON + 3, waiter.release(1, 2), *more)
    return wire.lives()[wire.key] > 77_000


@pytest.mark.parametrize(("length", "anew"), [(64, True), (65, False)])
@pytest.mark.parametrize("field", ["limits", "former"])
def test_a_key_with_a_long_value_is_not_made_anew(
    wire: Wire, field: str, length: int, anew: bool
) -> None:
    """S3: it would be a table again. In any case, nothing is lost."""
    limits, former = HELD, "0\nx"
    if field == "limits":
        limits = HELD.replace("30000000", "30000000".ljust(8 + length - len(HELD), "0"))
    else:
        former = former.ljust(length, "x")
    _, waiter = waited_for(wire, NOON, limits)
    wire.client.hset(wire.key, "former", former)

    assert is_made_anew(wire, waiter) == anew

    assert is_list(wire) == anew
    assert wire.client.hmget(wire.key, "limits", "former") == [limits.encode(), former.encode()]


@pytest.mark.parametrize(
    ("limit", "requests"),
    [(Window(100, per=86400), ()), (Rate(100, per=86400), (Status(), Status(), Status()))],
    ids=["state", "record"],
)
def test_a_key_is_not_made_anew_if_the_call_writes_a_long_value(
    wire: Wire, limit: Limit, requests: tuple[Request, ...]
) -> None:
    """The state is long with the moments of a window, and the record with many answers."""
    limits = program(rules_of([Concurrency(2, lease=30), limit]))
    _, waiter = waited_for(wire, NOON, limits)

    assert not is_made_anew(wire, waiter, *requests)


@pytest.mark.parametrize(("fields", "anew"), [(64, True), (65, False)])
def test_a_key_with_many_fields_is_not_made_anew(wire: Wire, fields: int, anew: bool) -> None:
    """S9: the work of a call is bounded."""
    _, waiter = waited_for(wire, NOON)
    stay = wire.client.hlen(wire.key) - 1  # the call removes the outbox
    wire.client.hset(wire.key, mapping={f"r{number}": "x" for number in range(fields - stay)})

    assert is_made_anew(wire, waiter) == anew

    assert wire.client.hlen(wire.key) == fields


def test_a_key_whose_record_was_long_is_a_list_again(wire: Wire) -> None:
    """S9: the former record of the session that calls is not written again."""
    talk = Talk(wire, 1)
    talk.call(NOON, Acquire(1), Status(), Status(), Status())
    assert not is_list(wire)

    talk.call(NOON + 1, talk.release(1))

    assert is_list(wire)


def test_a_damaged_name_begins_anew_in_a_call_that_leaves_it_idle(wire: Wire) -> None:
    """F47: the head that was notified is gone with the state, so there is nothing to make anew."""
    older = {"state": b"\x01 and numbers", "limits": HELD, "told": "a former head"}
    wire.client.hset(wire.key, mapping=older)
    talk = Talk(wire, 1)

    talk.call(NOON, Acquire(1), talk.release(1))

    assert set(wire.lives()) == {wire.key}
    assert is_list(wire)


@pytest.mark.parametrize("remembers", [True, False])
def test_a_key_is_made_small_once_in_a_while(wire: Wire, remembers: bool) -> None:
    """A busy name must not pay for that at each release, also if the server reads each state."""
    wire.functions = remembers
    talk = Talk(wire, 1)
    talk.holds(NOON, 1)
    assert set(wire.lives()) == {wire.key}

    talk.holds(NOON + 2, 2)
    assert set(wire.lives()) == set(wire.keys)
    talk.holds(NOON + SESSION_LIFE - 1, 3)
    assert set(wire.lives()) == set(wire.keys)

    talk.holds(NOON + SESSION_LIFE, 4)
    assert set(wire.lives()) == {wire.key}


@pytest.mark.parametrize("remembers", [True, False])
def test_a_look_after_the_members_have_expired_leaves_a_table(wire: Wire, remembers: bool) -> None:
    """S9: the next release makes it one small key, as it was busy at the last one."""
    wire.functions = remembers
    limits = program(rules_of([Concurrency(2, lease=30)]))
    holder, waiter = Talk(wire, 1, limits), Talk(wire, 2, limits)
    for now in (NOON, NOON + 10):  # the second time, it is too early to make it small again
        first = holder.last + 1
        holder.call(now, Acquire(first, 2))
        waiter.call(now + 1, Acquire(first, 2))
        holder.call(now + 2, holder.release(first, 2))
        waiter.call(now + 3, waiter.release(first, 2))

    talk = Talk(wire, 3, limits)
    talk.call(NOON + 200_000_000, Status())
    assert not is_list(wire)
    talk.holds(NOON + 200_000_001, 1)

    assert set(wire.lives()) == {wire.key}
    assert is_list(wire)


def test_a_name_in_a_cluster_keeps_both_keys(wire: Wire) -> None:
    """A call with one of two keys missing would wait until the slot has moved."""
    Talk(wire, 1).holds(NOON, 1, clustered=True)
    assert set(wire.lives()) == set(wire.keys)


def test_an_idle_name_with_two_sessions_keeps_its_members(wire: Wire) -> None:
    """Both are alive, so a pause has to be published to both."""
    first, second = Talk(wire, 1), Talk(wire, 2)
    first.call(NOON, Status())
    second.holds(NOON, 1)
    assert set(wire.lives()) == set(wire.keys)
