"""Since when a waiter waits and a holder holds: the scores say it, and Python reads them."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headgate.stores.redis.protocol.members import (
    HOLDERS,
    HOLDING,
    MOST,
    WAITING,
    held_since,
    lease_end,
    pairs,
    waits_since,
)
from tests.twins.wire import NOON, Acquire, Call, Caller, Pause, Rejoin, Release, Renew, Wire

SECOND = 1_000_000
LEASE = 30 * SECOND
LIMITS = f"slots permits 1 {LEASE}"
YEAR = 365 * 86_400 * SECOND


def scores(wire: Wire, kind: tuple[str, str]) -> dict[str, float]:
    """The members of a kind, by their numbers, with a "+" before those that hold."""
    reply = wire.client.zrangebyscore(f"{wire.key}:who", *kind, withscores=True)
    found = pairs([each for member in reply for each in (member[0], repr(member[1]).encode())])
    return {member.split(":")[1]: score for member, score in found}


def since(wire: Wire, now: int, lease: int = LEASE) -> dict[str, int | None]:
    found = scores(wire, HOLDING)
    return {number: held_since(score, lease, now) for number, score in found.items()}


def test_a_waiter_says_since_when_it_waits(wire: Wire) -> None:
    """Within 16 us for each acquire of one call: they have places one after the other."""
    holder, waiter = f"{wire.token}-1.1", f"{wire.token}-2.1"
    wire.call(Call(LIMITS, holder, 1, (Acquire(1),)), NOON)
    wire.call(Call(LIMITS, waiter, 1, (Acquire(1, 3),)), NOON + SECOND)
    wire.call(Call(LIMITS, waiter, 2, (Acquire(4),), declares=0), NOON + 3 * SECOND)
    found = {number: waits_since(score) for number, score in scores(wire, WAITING).items()}
    joined = [1, 1, 1, 3]
    assert list(found) == ["1", "2", "3", "4"]
    for seconds, t in zip(joined, found.values(), strict=True):
        assert t is not None
        assert abs(t - (NOON + seconds * SECOND)) < 4 * 16


def test_a_waiter_that_waits_again_after_a_pause_says_when_it_was_granted(wire: Wire) -> None:
    rate, waiter = "bucket requests 1 1 1 1000000 1", f"{wire.token}-2.1"
    reply = wire.call(Call(rate, waiter, 1, (Acquire(1), Pause(SECOND))), NOON)
    [(_, _, _, fence), _] = reply.answers
    again = Rejoin(Caller(waiter, 1, "-"), NOON, fence)
    wire.call(Call(rate, waiter, 2, (again,), declares=0, waits=True), NOON + 2)
    assert waits_since(scores(wire, WAITING)["1"]) == fence


def test_a_waiter_of_an_older_version_says_nothing_and_keeps_its_place(wire: Wire) -> None:
    """They counted places from 1, so new waiters stand behind old ones."""
    holder, waiter = f"{wire.token}-1.1", f"{wire.token}-2.1"
    wire.call(Call(LIMITS, holder, 1, (Acquire(1),)), NOON)
    wire.call(Call(LIMITS, waiter, 1, (Acquire(1),)), NOON)
    wire.client.zadd(f"{wire.key}:who", {f"{holder}:7:-": -MOST + 12})
    found = scores(wire, WAITING)
    assert list(found) == ["7", "1"]
    assert waits_since(found["7"]) is None


def test_a_holder_says_since_when_it_holds(wire: Wire) -> None:
    """Before its first renewal to the microsecond, and later within 20 ms of 82 s."""
    holder = f"{wire.token}-1.1"
    wire.call(Call(LIMITS, holder, 1, (Acquire(1),)), NOON)
    assert since(wire, NOON + 7 * SECOND) == {"1": NOON}
    for count in range(1, 5):
        renew = Renew(Caller(holder, 1, "-"), LEASE, NOON)
        now = NOON + count * LEASE // 3
        wire.call(Call(LIMITS, holder, count + 1, (renew,), declares=0), now)
        [t] = since(wire, now).values()
        assert t is not None
        assert 0 <= NOON - t < 20_000


def test_a_holder_that_came_from_the_queue_says_since_when_it_holds(wire: Wire) -> None:
    """Its lease is shorter at first: it ends with its session."""
    holder, waiter = f"{wire.token}-1.1", f"{wire.token}-2.1"
    wire.call(Call(LIMITS, holder, 1, (Acquire(1),)), NOON)
    wire.call(Call(LIMITS, waiter, 1, (Acquire(1),)), NOON)
    granted = NOON + SECOND
    release = Release(Caller(holder, 1, "-"))
    wire.call(Call(LIMITS, holder, 2, (release,), declares=0), granted)
    [score] = scores(wire, HOLDING).values()
    assert lease_end(score) < granted + 10 * SECOND
    [t] = since(wire, granted + SECOND).values()
    assert t is not None
    assert 0 <= granted - t < 20_000


def test_an_unknown_renewal_is_no_beginning(wire: Wire) -> None:
    """Given a permit that an older version has renewed, or one of limits that have no lease now."""
    end = NOON + LEASE
    assert held_since(HOLDERS + end, LEASE, NOON + LEASE // 2) is None
    assert held_since(HOLDERS + end, 0, end) is None


@given(age=st.integers(0, 5 * YEAR), lease=st.integers(1000, 3600 * SECOND), t=st.integers(0, YEAR))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_renewed_holder_says_since_when_it_holds_at_any_age(
    wire: Wire, age: int, lease: int, t: int
) -> None:
    """Within 20 ms, or half a percent. The lease ends at most 33 ms later than it would. That costs
    no byte, and the score is as exact in Redis as here.
    """
    wire.forget()
    now, holder = NOON + t, f"{wire.token}-1.1"
    limits = f"slots permits 1 {lease}"
    wire.call(Call(limits, holder, 1, (Acquire(1),)), now)
    renewals = [Renew(Caller(holder, 1, "-"), lease, now - age)]
    wire.call(Call(limits, holder, 2, (*renewals,), declares=0), now + 1)
    [score] = scores(wire, HOLDING).values()
    assert now + 1 + lease <= lease_end(score) < now + 1 + lease + 2**15
    found = held_since(score, lease, now + 1)
    assert found is not None
    assert 0 <= (now - age) - found <= max(20_000, (age + lease) // 200)


def test_a_repeated_renewal_changes_nothing(wire: Wire) -> None:
    """S3: a copy of the call, and a late one."""
    holder = f"{wire.token}-1.1"
    wire.call(Call(LIMITS, holder, 1, (Acquire(1),)), NOON)
    caller = Caller(holder, 1, "-")
    first, second = (
        Call(LIMITS, holder, number, (Renew(caller, LEASE, NOON - number),), declares=0)
        for number in (2, 3)
    )
    wire.call(first, NOON + SECOND)
    wire.call(second, NOON + 2 * SECOND)
    before = scores(wire, HOLDING)
    for copy in (second, first):
        wire.call(copy, NOON + 9 * SECOND)
        assert scores(wire, HOLDING) == before
