"""A session: one event loop's conversation with the store about one name, as a state machine.

It has no event loop, no connection and no clock. Requests, replies, notifications and the time go
in. The next call, the outcomes of the callers and the next moment come out. `Traffic.state` says
whether a call is to be sent. The script decides which caller passes. Only a local hand-off is
decided here: a permit passes to the next caller without a call.

The parts of a session share its `Traffic`, and know nothing of one another but what they are given.
Every `now` is a moment of the monotonic clock, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from logging import WARNING
from math import inf
from typing import TYPE_CHECKING, Any, cast

from headgate.errors import StoreError
from headgate.keys import title
from headgate.log_writer import log
from headgate.stores.change_events import note_fleet_limits
from headgate.stores.redis.protocol.operations import (
    KNOWN,
    Amend,
    Leave,
    Operation,
    Rejoin,
    Renew,
)
from headgate.stores.redis.protocol.replies import (
    UNKNOWN,
    Answer,
    Done,
    Lapsed,
    Notification,
    Offered,
    OtherReplyError,
    Overruled,
    Unknown,
    has_begun,
    parse_grant,
    parse_notification,
    parse_reply,
)
from headgate.stores.redis.session.acquires import PendingAcquire, resolve
from headgate.stores.redis.session.deadlines import Deadlines
from headgate.stores.redis.session.grants import Grants
from headgate.stores.redis.session.lease_renewal import LeaseRenewal
from headgate.stores.redis.session.local_handoff import LocalHandoff
from headgate.stores.redis.session.next_call import NextCall
from headgate.stores.redis.session.numbering import Numbering
from headgate.stores.redis.session.polls import Polls
from headgate.stores.redis.session.recovery import Recovery
from headgate.stores.redis.session.traffic import IDLE, IN_FLIGHT, READING, SCHEDULED, Sent, Traffic
from headgate.stores.redis.transport.failures import refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.gate.compile import Declaration
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.protocol.replies import Reply
    from headgate.stores.redis.session.whole_pause import WholePause


class Session:
    """The conversation about one name. `place` is the store, as errors name it."""

    def __init__(
        self,
        key: str,
        limits: LimitSync,
        place: object,
        new_id: Callable[[], str],
        whole: WholePause | None = None,
    ) -> None:
        """`whole`: for a key, the pause of the whole limiter."""
        self.limits = limits
        self._place = place
        self.numbering = numbering = Numbering(new_id)
        self.traffic = traffic = Traffic(whole)
        last = numbering.last_reply
        self.deadlines = deadlines = Deadlines(traffic, limits, place)
        self.polls = Polls(traffic, last)
        self.renewal = renewal = LeaseRenewal(limits, traffic, last)
        self.handoff = handoff = LocalHandoff(traffic, limits, last)
        self.recovery = recovery = Recovery(numbering, traffic, renewal, handoff)
        self._grants = Grants(limits, numbering, traffic, renewal, handoff, deadlines)
        # Notifications that arrived before the reply to an earlier call. They are read after it.
        self._out_of_order: list[Notification] = []
        self.next_call = NextCall(key, limits, numbering, traffic, recovery, handoff)

    # Requests -------------------------------------------------------------------------------------

    def begin(self, pending: PendingAcquire) -> None:
        """Ask for `pending` with the next call."""
        self.numbering.last_acquire = pending.number = self.numbering.last_acquire + 1
        if pending.request.max_sleep is not None:
            self.deadlines.begin(pending, pending.request.max_sleep)
        traffic = self.traffic
        traffic.acquires.append(pending)
        if traffic.state is IDLE:
            traffic.state = SCHEDULED
        elif traffic.state is IN_FLIGHT:  # with a release in flight, it could have shared the call
            self.next_call.release_is_alone = False

    def end(self, pending: PendingAcquire) -> None:
        """The caller has its outcome, or has left."""
        self.renewal.expected.pop(pending, None)
        if pending.deadline is not None:
            self.deadlines.end(pending, pending.deadline)

    @property
    def idle(self) -> bool:
        """Whether the process loses nothing when it drops this session."""
        return self.traffic.idle and not self.renewal.held

    # Replies --------------------------------------------------------------------------------------

    def on_reply(self, reply: Any, now: float) -> None:
        """Act on the reply to the last call.

        Raises an error if it makes no sense. Then some callers may have no answer yet.
        """
        if isinstance(reply, Exception):
            self._on_refusal(f"{reply}", reply, has_begun(reply), now)
            return
        traffic = self.traffic
        sent, traffic.sent = traffic.sent, None
        assert sent is not None, "a reply answers a call"
        traffic.state = READING
        command = sent.command
        call_id = command.session_id, command.number
        try:
            granted = parse_grant(reply) if sent.expects_grant else None
            if granted is not None and granted[:2] == call_id:
                self._grants.accept_at_once(sent, granted, now)
            else:
                self._act_on(sent, parse_reply(reply, *call_id, command.program), now)
        except Exception as senseless:
            traffic.sent = sent  # it has no reply that counts
            if not isinstance(senseless, OtherReplyError):
                # The server would repeat this reply, so the call is not sent again.
                self._on_refusal("what it replied to a script makes no sense", senseless, True, now)
            raise
        finally:
            if traffic.state is READING:
                traffic.state = IDLE
        self._end_reading(now)

    def _end_reading(self, now: float) -> None:
        traffic = self.traffic
        if self.deadlines.answer_by < inf and not (traffic.acquires or traffic.sent):
            self.deadlines.all_answered()
        notifications, self._out_of_order = self._out_of_order, []
        for found in notifications:
            if found.session_id == self.numbering.session_id:
                self._apply_notification(found, now)
        if self.renewal.lost:
            self.renewal.log_lost()
        if traffic.again or traffic.acquires or traffic.operations:
            traffic.schedule()
            traffic.again = False

    def _act_on(self, sent: Sent, reply: Reply, now: float) -> None:
        if isinstance(reply, Done):
            self._accept(sent, reply, now)
        elif isinstance(reply, Unknown):
            self.next_call.one_request = False
            for operation in sent.operations:
                self._on_answer(operation, UNKNOWN, now)
        else:
            self._retry(sent, reply, now)

    def _accept(self, sent: Sent, reply: Done, now: float) -> None:
        command, traffic = sent.command, self.traffic
        if command.declares != KNOWN:
            self.limits.note_carried(command.program, command.declares)
        self._grants.note_reply(sent, reply.now)
        if len(reply.answers) != len(sent.operations) + len(sent.acquires):
            raise StoreError("it did not answer each request once")
        for operation, outcome in zip(sent.operations, reply.answers, strict=False):
            self._on_answer(operation, outcome, now)
        answers = cast("list[Answer]", reply.answers[len(sent.operations) :])
        at_once, ahead = self._grants.apply_answers(sent.acquires, answers, now)
        claims = self._grants.apply_outbox(reply.outbox, reply.now, now)
        # Mostly neither the reply nor a notification has brought grants: this saves time.
        some_named = claims or self.recovery.claimed
        unclaimed = some_named and self.recovery.unclaimed(claims, reply.now)
        if ahead is not None:
            self.handoff.note_queued(sent, ahead)
        self.next_call.note_acquires(sent, at_once, ahead or 0)
        if traffic.abandoned:
            traffic.forget_abandoned()
        self.polls.schedule(reply.head, now)
        if unclaimed:
            acquires = list(traffic.waiting.values())
            self.recovery.begin_again(now)
            traffic.put_back(acquires)
            traffic.schedule()

    def _on_answer(self, operation: Operation, answer: Outcome, now: float) -> None:
        if operation.asker is not None:
            resolve(operation.asker, answer)
        elif isinstance(operation, Renew):
            self.renewal.on_answer(operation, answer, now)
        elif isinstance(operation, Rejoin):
            self._grants.on_rejoined(operation, answer)
        elif isinstance(operation, Amend):
            if isinstance(answer, Answer) and answer.number:
                operation.accept(operation.renewed)
        elif isinstance(operation, Leave) and not isinstance(answer, StoreError):
            # The session has read its last outbox, so the next session can begin.
            self.traffic.leaving = False
            self.recovery.begin_again(now)

    # Notifications --------------------------------------------------------------------------------

    def on_notification(self, notification: str, now: float) -> None:
        """Act on a notification. It may come late, twice or never."""
        found = parse_notification(notification)
        if found.session_id != self.numbering.session_id:
            return
        grants, waiting = found.outbox.grants, self.traffic.waiting
        if waiting and grants and next(iter(waiting)) < grants[0].number:
            # The server has granted earlier acquires, too. This notification waits for the reply
            # that names them (S6, FIFO).
            self._out_of_order.append(found)
            self.traffic.schedule()
        elif self.traffic.is_amending(grant.number for grant in grants):
            self._out_of_order.append(found)  # the reply also shows at which cost they were granted
        else:
            self._apply_notification(found, now)

    def _apply_notification(self, found: Notification, now: float) -> None:
        claims = self._grants.apply_outbox(found.outbox, found.now, now)
        self.recovery.note_claimed(claims, found.now)
        self.polls.schedule(found.head, now)
        if not all(claims.values()) and found.now > self.numbering.last_reply.server_time:
            # No caller claims one of these. The next reply shows whether the state has gone back.
            self.traffic.schedule()

    # Failures -------------------------------------------------------------------------------------

    def failed(self, error: StoreError, now: float) -> None:
        """The server is away: fail the callers, but those with a reserved moment keep it.

        Permits that may have been granted are given back when the server answers again.
        """
        traffic = self.traffic
        sent = traffic.stop()
        self._out_of_order = []  # the next reply repeats what these notifications said
        self.next_call.uncontended = False
        operations, traffic.operations = traffic.operations, []
        # Operations that a finalizer has noted meanwhile come behind.
        traffic.operations[:0] = keep_owed(self.limits.name, operations, error, now)
        for operation in operations + (sent.operations if sent else []):
            self._on_answer(operation, error, now)
        # Acquires in the unanswered call are not cancelled yet: the reply to it shows their
        # outcome.
        on_its_way = {pending.number for pending in sent.acquires} if sent else set()
        waiting = traffic.waiting.items()
        traffic.cancel_all({number: each for number, each in waiting if number not in on_its_way})
        acquires = traffic.not_granted()
        traffic.waiting, traffic.acquires = OrderedDict(), []
        traffic.fail(acquires, error)
        traffic.failure = error
        self.deadlines.all_answered()

    def on_disconnect(self, error: StoreError, spent: float, usual: float) -> None:
        """The call in flight has lost its connection, and may be sent again.

        A caller fails if its `retry_for` (`usual` if unsaid) is over after `spent` seconds, or if
        it may not wait at all.
        """
        over = [
            pending
            for pending in self.traffic.not_granted()
            if pending.request.max_sleep == 0
            or spent >= (usual if pending.request.retry_for is None else pending.request.retry_for)
        ]
        self.traffic.fail(over, error)

    def _on_refusal(self, refusal: str, cause: Exception, begun: bool, now: float) -> None:
        """The server refused the call. If the script had `begun`, cancel the call's acquires."""
        traffic = self.traffic
        sent, traffic.sent = traffic.sent, None
        error = refused(self._place, self.limits.name, refusal, cause)
        operations, acquires = (sent.operations, sent.acquires) if sent else ([], [])
        for operation in operations:
            self._on_answer(operation, error, now)
        traffic.operations += keep_owed(self.limits.name, operations, error, now, refused=True)
        if begun and any(isinstance(each, Amend) for each in operations):
            traffic.leaving = True  # the server may know waiters by new costs: it forgets them all
        traffic.fail(acquires, error)
        for pending in acquires:
            traffic.waiting.pop(pending.number, None)
            if begun and not pending.t:
                traffic.cancel(pending)
        self.failed(error, now)

    def _retry(self, sent: Sent, reply: Overruled | Offered | Lapsed, now: float) -> None:
        """The script has done nothing yet, and the call must be made in another way.

        The server does not know the session, or names other limits.
        """
        self.next_call.uncontended = self.next_call.one_request = False
        traffic, acquires = self.traffic, sent.acquires
        if isinstance(reply, Overruled):
            self._learn(sent, reply.wait, self.limits.read(reply.program), now)
        elif isinstance(reply, Offered):
            self.limits.note_offer(self.limits.read(reply.program))
        else:
            acquires = list(traffic.waiting.values())
            self.recovery.begin_again(now)
        traffic.put_back(acquires, sent.operations)
        traffic.schedule()

    def _learn(self, sent: Sent, wait: int | None, in_force: Declaration, now: float) -> None:
        """Go by other limits, because the server names them.

        If the call declared ours, they may be declared again after `wait` microseconds. -1: an
        update holds.
        """
        # `learned` is False if something else was declared since the call was sent.
        if wait is None:
            learned = self.limits.note_overruled(in_force)
        else:
            learned = self.limits.note_turned_down(sent.command.program, in_force, wait, now)
            if learned:
                self.limits.declare_if_due(now)
        if learned:
            note_fleet_limits(self.limits.name, in_force)
            self.renewal.renew(now)

    def take_over(self, now: float) -> None:
        """Go on after the loop of all callers has ended: give up what they asked for."""
        traffic = self.traffic
        asked = traffic.unfinished()
        asked += self.renewal.expected.keys() - set(asked)
        traffic.stop()
        traffic.acquires, self.polls.moment = [], inf
        traffic.reserved.sleepers.clear()
        self.deadlines.clear()
        for pending in asked:
            traffic.give_up(pending)
        self.renewal.renew(now)
        traffic.send_operations()

    # Time -----------------------------------------------------------------------------------------

    def next_moment(self) -> float:
        """When `on_time` is to be called next. Infinity: never."""
        asleep = self.traffic.reserved.sleepers
        return min(
            asleep[0][0] if asleep else inf,
            self.polls.moment,
            self.handoff.moment,
            self.deadlines.moment,
            self.renewal.moment,
            self.limits.moment,
        )

    def poll(self, now: float) -> None:
        """Send what the server must get, and ask it for news if a caller waits or sleeps.

        The next call also says whether the whole limiter is paused. A call in flight may say what
        held before, so another one follows its reply.
        """
        traffic, reserved = self.traffic, self.traffic.reserved
        if reserved.whole is not None and reserved.is_whole_paused(now):
            self._grants.hold_back(now)
        if traffic.waiting or reserved.sleepers or traffic.owes:
            traffic.schedule()
            traffic.again |= traffic.state is IN_FLIGHT

    def on_time(self, now: float) -> None:
        self.traffic.reserved.wake(now)
        self.deadlines.end_waits(now)
        if self.handoff.moment <= now:
            self.handoff.moment = inf
            self.traffic.send_operations()
        if self.renewal.moment <= now:
            self.renewal.renew(now)
        self.limits.declare_if_due(now)
        if self.polls.moment <= now:
            self.polls.moment = inf
            if self.traffic.waiting:
                self.traffic.schedule()


def keep_owed(
    name: str,
    operations: Iterable[Operation],
    error: StoreError,
    now: float,
    *,
    refused: bool = False,
) -> list[Operation]:
    """The operations that are still owed to the server. The others are logged."""
    owed = []
    for operation in operations:
        if operation.owed_at(now) and (operation.repeatable or not refused):
            owed.append(operation)
        elif operation.asker is None and operation.logged:
            verb = operation.verb
            log(WARNING, "%s: the server did not hear of a %s: %s", title(name), verb, error)
    return owed
