"""A session as a state machine: requests, replies and moments go in; calls and outcomes come out.

There is no event loop, no server and no clock here. A `Talk` writes the words of the server, in the
format of docs/wire-format.md, and its `now` is an argument.
"""

from __future__ import annotations

from math import inf
from typing import Any, cast

import pytest

from headgate import Concurrency, MaxSleepExceededError, Rate, StoreError
from headgate.gate.compile import Declaration, rules_of
from headgate.gate.gate import Grant
from headgate.permit import Permit
from headgate.request import Request
from headgate.stores.redis.limit_sync import LimitSync
from headgate.stores.redis.protocol.calls import NOTIFIED
from headgate.stores.redis.protocol.operations import (
    DECLARED,
    AskDeclared,
    AskStatus,
    Caller,
    Operation,
    Release,
    Settle,
)
from headgate.stores.redis.protocol.replies import OtherReplyError
from headgate.stores.redis.queue import Callback
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.local_handoff import SOON
from headgate.stores.redis.session.next_call import MOST_AMENDED
from headgate.stores.redis.session.polls import HEARTBEAT, MARGIN
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.session.traffic import IDLE, IN_FLIGHT, MOST, SCHEDULED
from headgate.stores.redis.transport.connection import SILENCE

LEASE = 30
SLOTS = Declaration(rules_of([Concurrency(1, lease=LEASE)]))
OTHER = Declaration(rules_of([Concurrency(2, lease=LEASE)]))
RATE = Declaration(rules_of([Rate(10, per=1)]))
START = 1000.0  # the monotonic clock at the beginning, in seconds
SERVER = 7_000_000_000  # the server's clock then, in microseconds


class Promise:
    """The place for an outcome."""

    outcome: Any = None

    def __init__(self) -> None:
        self.given_up = False

    def done(self) -> bool:
        return self.given_up or self.outcome is not None

    def set_result(self, result: Any, /) -> None:
        self.outcome = result

    set_exception = set_result

    def cancel(self) -> None:
        self.given_up = True


class Held:
    """A permit, as the session sees it."""

    held, lost, _reported = True, False, False

    def __init__(self, pending: PendingAcquire) -> None:
        self.key = pending.caller
        self.t, self.units = pending.t, pending.request.units
        self.fence = cast(Grant, cast(Promise, pending.future).outcome).fence
        assert pending.certain_until is not None
        self.certain_until = pending.certain_until


class Talk:
    """The requests of a program, and the words of a server."""

    def __init__(self, declared: Declaration = SLOTS) -> None:
        self.now = START
        self.ids = iter("abcdefg")
        self.session = Session("k", LimitSync("k", declared), "a server", lambda: next(self.ids))

    @property
    def state(self) -> Any:
        return self.session.traffic.state

    @property
    def server(self) -> int:
        """The server's clock."""
        return SERVER + round((self.now - START) * 1_000_000)

    def acquire(self, *, enters: bool = False, max_sleep: float | None = None) -> PendingAcquire:
        most = None if max_sleep is None else round(max_sleep * 1_000_000)
        pending = PendingAcquire(Request({}, most, None, None), Promise(), enters, self.now)
        self.session.begin(pending)
        return pending

    def leave(self, pending: PendingAcquire) -> None:
        """A task is cancelled."""
        pending.future.cancel()
        self.session.end(pending)
        self.session.traffic.give_up(pending)

    def call(self) -> list[str]:
        """The words of the next call, from the statement about the limits on."""
        assert self.state is SCHEDULED
        return list(self.session.next_call.make(NOTIFIED, self.now).words)

    def reply(self, verdict: str) -> None:
        """The server replies to the call in flight."""
        numbers = self.session.numbering
        self.session.on_reply(f"{numbers.session_id} {numbers.call} {verdict}".encode(), self.now)

    def done(self, answers: str = "", outbox: str = "", head: int | None = None) -> None:
        mine = "0 0" if head is None else f"{head} 1"
        self.reply(" ".join(f"ok {self.server} {mine} {answers} | {outbox}".split()))

    def granted(self, **how: Any) -> PendingAcquire:
        """An acquire that passes at once."""
        pending = self.acquire(**how)
        self.call()
        self.done("grant 1 0 0")
        return pending

    def queued(self, **how: Any) -> PendingAcquire:
        """An acquire that is the first in the queue."""
        pending = self.acquire(**how)
        self.call()
        self.done("wait 1 0 0")
        return pending

    def holds(self, pending: PendingAcquire) -> Permit:
        permit = cast(Permit, Held(pending))
        lease = self.session.renewal.expected.get(pending, 0)
        self.session.end(pending)
        self.session.renewal.hold(permit, lease)
        self.session.renewal.renew_in_time(permit, lease, self.now)
        self.kept = permit  # the session keeps it by a weak reference
        return permit

    def notify(self, outbox: str) -> None:
        numbers = self.session.numbering
        self.session.on_notification(f"{numbers.session_id} {self.server} -1 {outbox}", self.now)

    def releases_at_once(self) -> bool:
        """Whether the release of a permit that has just passed leaves at once."""
        self.session.traffic.run([Release(self.granted().caller)])
        return self.session.next_call.leaves_at_once()

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.session.on_time(self.now)


def outcome(pending: PendingAcquire) -> Any:
    return cast(Promise, pending.future).outcome


def moments_away(talk: Talk) -> float:
    return talk.session.next_moment() - talk.now


# Calls --------------------------------------------------------------------------------------------


def test_a_session_without_requests_sends_nothing_and_waits_for_no_moment() -> None:
    talk = Talk()
    assert (talk.state, talk.session.next_moment(), talk.session.idle) == (IDLE, inf, True)


def test_an_acquire_is_sent_and_its_grant_is_its_outcome() -> None:
    talk = Talk()
    pending = talk.acquire()
    words = talk.call()
    assert (words[-5:], talk.state) == (["acquire", "1", "1", "-1", "-1", "-"][-5:], IN_FLIGHT)
    assert outcome(pending) is None

    talk.done("grant 1 0 5")

    assert outcome(pending) == Grant(talk.server, talk.server + 5)
    assert talk.state is IDLE


def test_requests_that_come_while_a_call_is_in_flight_share_the_next_one() -> None:
    talk = Talk()
    first = talk.acquire()
    talk.call()
    others = [talk.acquire(), talk.acquire()]
    talk.session.traffic.run([Settle(7, "tokens=1")])
    assert talk.state is IN_FLIGHT

    talk.done("grant 1 0 0")
    assert outcome(first)
    assert talk.call()[-9:] == ["settle", "7", "tokens=1", "acquire", "2", "2", "-1", "-1", "-"]

    talk.done("done 1 1 0 grant 2 0 1")
    assert all(map(outcome, others))


def test_a_release_leaves_at_once_unless_an_acquire_came_with_the_last_one_or_soon_after() -> None:
    talk = Talk()
    assert talk.releases_at_once()
    talk.call()
    after = talk.acquire()  # in the same turn, or at least before the reply
    talk.done("done 1 1 0")
    talk.call()
    talk.done("grant 1 0 0")
    assert outcome(after)

    assert not talk.releases_at_once()
    talk.call()
    talk.done("done 1 1 0")  # neither with this release nor after it has an acquire come

    assert talk.releases_at_once()


def test_an_operation_that_an_answer_brings_about_is_sent_after_the_whole_reply() -> None:
    talk, seen = Talk(), []

    class Answered(Promise):
        def set_result(self, result: Any, /) -> None:
            talk.session.traffic.run([Release(Caller("a", 9, "-"))])
            seen.append(talk.state)

    talk.session.traffic.run([Settle(7, "tokens=1", asker=Answered())])
    talk.call()
    talk.done("done 1 1 0")

    assert (seen[0] in (IDLE, SCHEDULED), talk.state) == (False, SCHEDULED)


def test_a_call_without_a_reply_is_sent_again_with_the_same_bytes() -> None:
    talk = Talk()
    pending = talk.acquire()
    words = talk.call()

    talk.session.failed(StoreError("away"), talk.now)
    assert isinstance(outcome(pending), StoreError)
    talk.session.traffic.send_operations()

    assert talk.call() == words


def test_a_grant_that_came_after_its_caller_had_failed_is_undone() -> None:
    talk = Talk()
    talk.acquire()
    talk.call()
    talk.session.failed(StoreError("away"), talk.now)
    talk.session.traffic.send_operations()
    talk.call()

    talk.done("grant 1 0 0")

    assert talk.call()[-6:] == ["cancel", "a", "1", "1", str(talk.server), "-"]


def test_a_repeated_call_does_not_undo_a_grant_that_a_notification_brought() -> None:
    """S1: the first server queued the acquire and granted it. Its successor has lost both writes,
    and grants the repeated call at once. The caller holds its permit by then.
    """
    talk = Talk()
    talk.granted()
    pending = talk.acquire()
    talk.call()
    talk.notify("2 1 0 7 30000000")
    first = outcome(pending)

    talk.session.traffic.put_off()
    talk.call()
    talk.done("grant 1 0 9")

    assert (talk.state, talk.session.idle) == (IDLE, True)
    assert (pending.t, outcome(pending)) == (first.t, first)


def test_the_reply_to_another_call_is_an_error_and_the_call_may_go_again() -> None:
    talk = Talk()
    talk.acquire()
    talk.call()
    with pytest.raises(OtherReplyError):
        talk.session.on_reply(b"a 99 ok 1 0 0 |", talk.now)
    assert talk.session.traffic.sent is not None


def test_a_reply_without_sense_fails_its_callers() -> None:
    talk = Talk()
    pending = talk.acquire()
    talk.call()
    with pytest.raises(ValueError, match="nonsense"):
        talk.reply("ok nonsense 0 0 |")
    assert isinstance(outcome(pending), StoreError)


# Waiting ------------------------------------------------------------------------------------------


def test_a_session_with_waiters_is_never_silent_for_longer_than_its_heartbeat() -> None:
    talk = Talk()
    talk.queued()
    assert moments_away(talk) == pytest.approx(HEARTBEAT)

    talk.pass_time(HEARTBEAT - 0.001)
    assert talk.state is IDLE
    talk.pass_time(0.002)
    assert talk.call()[-2] == "3"  # it waits, and is notified


def test_news_that_a_call_in_flight_does_not_state_are_stated_by_another_call() -> None:
    talk = Talk()
    talk.queued()
    talk.session.poll(talk.now)
    talk.call()

    talk.session.poll(talk.now)
    assert talk.state is IN_FLIGHT
    talk.done()
    assert talk.state is SCHEDULED

    talk.call()
    talk.done()
    assert talk.state is IDLE


def test_the_head_of_the_queue_asks_shortly_before_its_moment() -> None:
    talk = Talk(RATE)
    talk.acquire()
    talk.call()
    talk.done("wait 1 500000 0", head=500_000)
    assert moments_away(talk) == pytest.approx(0.5 - MARGIN)


def test_a_notification_grants_a_waiter() -> None:
    talk = Talk()
    pending = talk.queued()
    talk.notify("1 1 0 0 30000000")
    assert outcome(pending) == Grant(talk.server, talk.server)


def test_a_notification_for_the_second_waits_for_the_reply_that_names_the_first() -> None:
    """S6."""
    talk = Talk()
    first, second = talk.queued(), talk.queued()
    talk.notify("2 1 0 1 30000000")
    assert (outcome(first), outcome(second)) == (None, None)

    talk.call()
    talk.done(outbox="1 1 0 0 30000000")

    assert outcome(first)
    assert outcome(second)


def test_a_caller_sleeps_until_the_moment_of_its_grant() -> None:
    talk = Talk(RATE)
    pending = talk.acquire()
    talk.call()
    talk.done("grant 1 40000 0")
    assert (outcome(pending), moments_away(talk)) == (None, pytest.approx(0.04))

    talk.pass_time(0.039)
    assert outcome(pending) is None
    talk.pass_time(0.001)
    assert outcome(pending)


def test_a_pause_lets_sleeping_callers_wait_again() -> None:
    """T3."""
    talk = Talk(RATE)
    pending = talk.acquire()
    talk.call()
    talk.done("grant 1 40000 0")

    talk.notify("!5000000")

    moment = f"{talk.server + 40_000} {talk.server}"
    assert talk.call()[-6:] == f"rejoin a 1 {moment} -".split()
    talk.pass_time(1.0)
    assert outcome(pending) is None


def test_a_waiter_whose_max_sleep_is_over_is_refused() -> None:
    talk = Talk()
    pending = talk.acquire(max_sleep=2.0)
    talk.call()
    talk.now += 0.5
    talk.done("wait 1 0 0")
    assert moments_away(talk) == pytest.approx(1.5)

    talk.pass_time(1.5)

    assert isinstance(outcome(pending), MaxSleepExceededError)


def test_a_deadline_is_forgotten_with_its_caller() -> None:
    talk = Talk()
    for _ in range(200):
        talk.leave(talk.queued(max_sleep=3600))
        talk.call()
        talk.done("done 1 1 0")
    assert len(talk.session.deadlines._deadlines) < 140


def test_a_caller_without_an_answer_fails_when_its_max_sleep_is_over() -> None:
    talk = Talk()
    patient, hurried = talk.acquire(), talk.acquire(max_sleep=1.0)
    talk.call()
    talk.pass_time(1.0)
    assert isinstance(outcome(hurried), StoreError)
    assert outcome(patient) is None


def test_a_caller_whose_call_was_sent_only_now_waits_a_little_longer() -> None:
    talk = Talk()
    talk.acquire()
    talk.call()
    hurried = talk.acquire(max_sleep=1.0)
    talk.now += 0.9
    talk.done("grant 1 0 0")
    talk.call()
    talk.pass_time(0.1)
    assert (outcome(hurried), moments_away(talk)) == (None, pytest.approx(SILENCE - 0.1))


# Other sessions, other limits ---------------------------------------------------------------------


def test_a_session_that_the_server_has_forgotten_begins_again_with_its_waiters() -> None:
    talk = Talk()
    talk.queued()
    talk.pass_time(HEARTBEAT)
    talk.call()

    talk.reply("gone")

    assert talk.session.numbering.session_id == "b"
    assert talk.call()[-9:] == ["quit", "a", "-", "acquire", "1", "1", "-1", "-1", "-"]


def test_other_limits_hold_and_the_caller_asks_again_under_them() -> None:
    talk = Talk()
    pending = talk.acquire()
    talk.call()
    talk.reply(f"held 60000000 {OTHER.program}")
    assert talk.session.limits.declared.program == OTHER.program

    assert OTHER.program in talk.call()
    talk.done("grant 1 0 0")
    assert outcome(pending)
    assert moments_away(talk) == pytest.approx(60)  # then its own limits are declared again


@pytest.mark.parametrize("verdict", ["stale", "offer", "held 60000000"])
def test_a_caller_that_sleeps_until_its_moment_is_not_asked_for_again(verdict: str) -> None:
    """S3: the first server granted the acquire for a moment ahead, and its reply was lost. The call
    goes again to a successor that has other limits.
    """
    talk = Talk()
    talk.granted()
    pending = talk.acquire()
    talk.call()
    talk.notify("2 1 40000 7 30000000")
    talk.session.traffic.put_off()
    talk.call()

    talk.reply(f"{verdict} {OTHER.program}")

    assert "acquire" not in talk.call()
    talk.done()
    talk.pass_time(0.04)
    assert outcome(pending) == Grant(pending.t, pending.t - 40_000 + 7)
    assert talk.session.idle


def test_a_look_goes_by_an_offer_and_an_acquire_declares_its_own_limits() -> None:
    """T8: the limiter has not acquired yet, so it may not replace the offer of another process."""
    talk = Talk()
    talk.session.traffic.run([AskStatus()])
    assert SLOTS.program in talk.call()

    talk.reply(f"offer {OTHER.program}")

    assert OTHER.program in talk.call()
    talk.done("status 0 0 0 2")
    talk.acquire()
    assert SLOTS.program in talk.call()


def test_limits_that_the_store_has_lost_are_declared_again_in_place_of_an_offer() -> None:
    talk = Talk()
    talk.granted()
    talk.session.traffic.run([AskStatus()])
    talk.call()

    talk.reply(f"offer {OTHER.program}")

    assert SLOTS.program in talk.call()
    assert talk.session.limits.declares == DECLARED


# Leases -------------------------------------------------------------------------------------------


def test_a_lease_is_renewed_at_a_third_and_counts_from_the_sending_of_the_call() -> None:
    talk = Talk()
    permit = talk.holds(talk.granted())
    assert permit.certain_until == START + LEASE
    assert moments_away(talk) == pytest.approx(LEASE / 3)

    talk.pass_time(LEASE / 3)

    assert talk.call()[-4:] == ["renew", "a:1:-", str(LEASE * 1_000_000), str(permit.t)]


def test_a_caller_that_leaves_gives_its_permit_to_the_next_one_here() -> None:
    talk = Talk()
    permit, waiter = talk.holds(talk.granted(enters=True)), talk.queued(enters=True)

    assert talk.session.handoff.hand_over(permit, talk.now)

    assert outcome(waiter) == Grant(permit.t, permit.fence)
    assert waiter.permit is permit
    assert (talk.state, moments_away(talk)) == (IDLE, pytest.approx(SOON))
    talk.pass_time(SOON)
    assert talk.call()[-6:] == ["cancel", "a", "2", "1", "0", "-"]


def test_a_lost_connection_is_a_reason_to_ask_only_while_the_server_may_hold_something() -> None:
    talk = Talk()
    talk.session.recovery.doubt(talk.now)
    assert talk.state is IDLE

    talk.holds(talk.granted())
    talk.session.recovery.doubt(talk.now)

    assert talk.state is SCHEDULED


def test_a_caller_that_leaves_the_queue_is_cancelled_with_the_next_call() -> None:
    talk = Talk()
    talk.leave(talk.queued())
    assert talk.call()[-6:] == ["cancel", "a", "1", "1", "0", "-"]
    talk.done("done 1 1 0")
    assert talk.session.idle


def test_only_operations_that_must_be_delivered_outlive_a_failure() -> None:
    talk = Talk()
    release: list[Operation] = [Release(Caller("a", 1, "-"))]
    talk.session.traffic.run(release)
    talk.session.renewal.renew(talk.now)
    talk.session.failed(StoreError("away"), talk.now)
    assert talk.session.traffic.operations == release


def test_a_question_that_has_failed_gets_no_answer_from_the_repeated_call() -> None:
    """A log line has said that the change behind the question has not happened."""
    talk, outcomes = Talk(), list[Any]()
    talk.session.traffic.run([AskDeclared(asker=Callback(outcomes.append))])
    talk.call()
    away = StoreError("away")

    talk.session.failed(away, talk.now)
    talk.session.poll(talk.now)
    talk.call()
    talk.done("done 1 1 0")

    assert outcomes == [away]


def test_a_session_whose_callers_ended_with_their_loop_is_idle_when_the_server_knows_it() -> None:
    """A caller that was granted makes no permit any more, and never ends."""
    talk = Talk()
    talk.granted()

    talk.session.take_over(talk.now)
    talk.call()
    talk.done("done 1 1 0")

    assert talk.session.idle


# More waiters than one call can name --------------------------------------------------------------


@pytest.mark.parametrize("verdict", ["stale", "lapsed"])
def test_a_call_that_changed_nothing_keeps_its_settlement_while_the_session_leaves(
    verdict: str,
) -> None:
    """L1: a server goes away with a settlement in flight, and more callers wait than one call can
    cancel. When it is back, it does not carry out the call with the settlement.
    """
    talk = Talk()
    for first in range(0, MOST + 1, MOST):
        count = min(MOST, MOST + 1 - first)
        for _ in range(count):
            talk.acquire()
        talk.call()
        talk.done(f"wait {count} 0 {first}")
    talk.session.traffic.run([Settle(SERVER, "requests=1")])
    talk.call()
    talk.session.failed(StoreError("it is away"), talk.now)
    talk.session.traffic.schedule()
    talk.call()

    talk.reply(f"stale {OTHER.program}" if verdict == "stale" else verdict)

    assert "settle" in [operation.verb for operation in talk.session.traffic.operations]


# Estimates ----------------------------------------------------------------------------------------

TOKENS = Declaration(rules_of([Rate(1000, per=1, unit="tokens")]))


def estimated(talk: Talk, *estimates: int) -> PendingAcquire:
    """A waiter with these estimates, one after another."""
    pending = begin_estimated(talk, *estimates)
    talk.call()
    talk.done("wait 1 100 0")
    return pending


def begin_estimated(talk: Talk, *estimates: int) -> PendingAcquire:
    left = list(estimates[1:])

    def estimate() -> dict[str, int]:
        return {"tokens": left.pop(0) if len(left) > 1 else left[0]}

    request = Request({"tokens": estimates[0]}, estimate=estimate)
    pending = PendingAcquire(request, Promise(), False, talk.now)
    talk.session.begin(pending)
    return pending


def settle_something(talk: Talk) -> None:
    talk.session.traffic.run([Settle(7, "tokens=-1")])


def test_a_call_asks_again_for_waiters_whose_estimates_have_changed() -> None:
    """It goes with a call that is made anyway. The next call asks for nothing again."""
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60)
    assert talk.state is IDLE
    settle_something(talk)

    assert talk.call()[-4:] == ["amend", "1", "tokens=500", "tokens=60"]
    talk.done("done 2 1 0")

    assert pending.request.units == {"tokens": 60}
    settle_something(talk)
    assert "amend" not in talk.call()


def test_a_waiter_that_was_granted_meanwhile_keeps_its_cost() -> None:
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60)
    settle_something(talk)
    talk.call()

    talk.done("done 1 1 0 done 1 0 0", f"@{talk.server} 1 1 0 9 0")

    assert (pending.request.units, outcome(pending).fence) == ({"tokens": 500}, talk.server + 9)


@pytest.mark.parametrize(("amended", "tokens"), [(1, 60), (0, 500)])
def test_a_grant_waits_for_the_reply_that_shows_its_cost(amended: int, tokens: int) -> None:
    """The notification may be of a grant before or after the change."""
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60)
    settle_something(talk)
    talk.call()

    talk.notify("1 1 0 9 0")
    assert outcome(pending) is None
    talk.done(f"done 1 1 0 done 1 {amended} 0")

    assert outcome(pending).fence == talk.server + 9
    assert pending.request.units == {"tokens": tokens}


@pytest.mark.parametrize(("amended", "tokens"), [(1, 60), (0, 500)])
def test_a_caller_that_leaves_meanwhile_cancels_at_the_cost_it_has(
    amended: int, tokens: int
) -> None:
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60)
    settle_something(talk)
    talk.call()

    talk.leave(pending)
    talk.done(f"done 1 1 0 done 1 {amended} 0")

    assert talk.call()[-6:] == ["cancel", "a", "1", "1", "0", f"tokens={tokens}"]


def test_a_call_that_is_repeated_changes_the_cost_once() -> None:
    """S3: byte for byte, whatever the estimate is by then."""
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60, 200)
    settle_something(talk)
    words = talk.call()

    talk.session.traffic.put_off()
    assert talk.call() == words
    talk.done("done 2 1 0")

    assert pending.request.units == {"tokens": 60}


def test_a_session_that_begins_again_asks_at_the_cost_it_had() -> None:
    talk = Talk(TOKENS)
    pending = estimated(talk, 500, 60)
    settle_something(talk)
    talk.call()

    talk.reply("lapsed")

    assert pending.request.units == {"tokens": 500}
    words = talk.call()
    assert words[-6:] == ["acquire", "1", "1", "-1", "-1", "tokens=500"]
    assert "amend" not in words


def test_a_session_ends_when_the_server_fails_in_the_middle_of_a_change() -> None:
    """The ids of its waiters are unknown then."""
    talk = Talk(TOKENS)
    estimated(talk, 500, 60)
    settle_something(talk)
    talk.call()

    with pytest.raises(StoreError, match="did not answer"):
        talk.done("done 9 1 0")

    assert talk.session.traffic.leaving


def test_few_waiters_are_asked_again_in_one_call() -> None:
    talk = Talk(TOKENS)
    for _ in range(MOST_AMENDED + 5):
        begin_estimated(talk, 500, 60)
    talk.call()
    talk.done(f"wait {MOST_AMENDED + 5} 100 0")
    settle_something(talk)

    assert talk.call().count("amend") == MOST_AMENDED
