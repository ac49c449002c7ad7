"""A session: one event loop's conversation with the store about one name, as a state machine.

It has no event loop, no connection and no clock. Requests, replies, notifications and the time go
in. The next call, the outcomes of the callers and the next moment come out. `Traffic.state` says
what becomes of the next call. The script decides which caller passes. Only a local hand-off is
decided here: a permit passes to the next caller without a call.

The parts of a session share its `Traffic`, and know nothing of one another but what they are given.
Every `now` is a moment of the monotonic clock, in seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Any, cast

from headgate.errors import StoreError
from headgate.stores.redis.protocol.calls import (
    RESERVE_AHEAD,
    Command,
    keys_of,
    write_requests,
)
from headgate.stores.redis.protocol.operations import Leave, Operation, Rejoin, Renew
from headgate.stores.redis.protocol.replies import (
    UNKNOWN,
    Answer,
    Done,
    GrantedAtOnce,
    Lapsed,
    Notification,
    OtherReplyError,
    Overruled,
    Unknown,
    has_begun,
    parse_grant,
    parse_notification,
    parse_reply,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.acquires import PendingAcquire, settle
from headgate.stores.redis.session.batching import Batching
from headgate.stores.redis.session.deadlines import Deadlines
from headgate.stores.redis.session.grants import Grants
from headgate.stores.redis.session.last_reply import LastReply
from headgate.stores.redis.session.lease_renewal import LeaseRenewal
from headgate.stores.redis.session.local_handoff import LocalHandoff
from headgate.stores.redis.session.numbering import Numbering
from headgate.stores.redis.session.recovery import Recovery
from headgate.stores.redis.session.traffic import IDLE, IN_FLIGHT, READING, Sent, Traffic
from headgate.stores.redis.session.undelivered import keep_owed
from headgate.stores.redis.transport.failures import cannot, refused
from headgate.stores.refusals import too_long

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headgate.gate.compile import Declaration
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.protocol.replies import Reply

# The seconds before its moment at which the head of the queue asks.
MARGIN = 0.5 * RESERVE_AHEAD / 1_000_000
# Seconds without a call after which a session with waiters sends one, to show that it is alive.
# This is 0.3 of the script's WAITER (SOON in main.lua).
HEARTBEAT = 3.0
GRACE = 0.1  # seconds after its estimate at which a waiter asks for its state


class Session:
    """The conversation about one name. `place` is the store, as errors name it."""

    def __init__(
        self, key: str, limits: LimitSync, place: object, new_id: Callable[[], str]
    ) -> None:
        self.key = key
        self.limits = limits
        self._place = place
        self.numbering = numbering = Numbering(new_id)
        self.traffic = traffic = Traffic()
        self.last_reply = last = LastReply()
        self.batching = Batching()
        self.deadlines = deadlines = Deadlines(traffic)
        self.renewal = renewal = LeaseRenewal(limits, last)
        self.handoff = handoff = LocalHandoff(traffic, limits, last)
        self.recovery = Recovery(last, renewal)
        self._grants = Grants(limits, numbering, traffic, last, renewal, handoff, deadlines)
        # Notifications that arrived before the reply to an earlier call. They are read after it.
        self._out_of_order: list[Notification] = []
        self.poll_at = inf  # the moment of the next question about the waiters

    # Requests -------------------------------------------------------------------------------------

    def begin(self, pending: PendingAcquire, now: float) -> None:
        """Ask for `pending` with the next call."""
        pending.number = self.numbering.next_caller()
        if pending.request.max_sleep is not None:
            self.deadlines.begin(pending, pending.request.max_sleep / 1_000_000, now)
        self.traffic.acquires.append(pending)
        self.traffic.schedule()

    def end(self, pending: PendingAcquire) -> None:
        """The caller has its outcome, or has left."""
        self.renewal.expected.discard(pending)
        if pending.deadline is not None:
            self.deadlines.end(pending, pending.deadline)

    def run(self, operations: Iterable[Operation]) -> None:
        """Send these with the next call."""
        self.traffic.operations += operations
        self.traffic.schedule()

    def send_operations(self) -> None:
        if self.traffic.owes:
            self.traffic.schedule()

    def poll(self) -> None:
        """Ask the server for news if a caller waits."""
        if self.traffic.waiting:
            self.traffic.schedule()

    def doubt(self, now: float) -> None:
        """The connection is lost."""
        if self.recovery.doubt(now):
            self.traffic.schedule()

    def renew(self, now: float) -> None:
        if renewals := self.renewal.begin_round(now):
            self.run(renewals)

    @property
    def idle(self) -> bool:
        """Whether the process loses nothing when it drops this session."""
        return self.traffic.idle and not self.renewal.holds

    # Calls ----------------------------------------------------------------------------------------

    def next_call(self, notified: bool, now: float) -> Command:
        """The next call, or the same call again if it was not answered.

        `notified`: this session receives notifications. The garbage collector may drop permits in
        the middle of this. Nothing else must be sent until the call is complete.
        """
        traffic = self.traffic
        traffic.sent, traffic.owed = traffic.owed or self._make_call(notified, now), None
        traffic.state = IN_FLIGHT
        return traffic.sent.command

    def _make_call(self, notified: bool, now: float) -> Sent:
        self.numbering.call += 1
        acquires, operations = self._load()
        try:
            return self._compose(acquires, operations, notified, now)
        except BaseException:
            self.traffic.put_back(acquires, operations)
            raise

    def _compose(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        notified: bool,
        now: float,
    ) -> Sent:
        asks = bool(acquires or self.traffic.waiting)
        declared, how = self.limits.limits_for_call(asks, operations)
        alone = (
            self.batching.uncontended
            and len(acquires) == 1
            and not (operations or self.traffic.waiting or how or self.recovery.doubts)
        )
        command = self._write(acquires, operations, declared, how, notified, now)
        ahead, outbox_grants = self.handoff.count_ahead(), self.handoff.outbox_grants
        for pending in acquires:
            pending.session_id, pending.last = self.numbering.session_id, acquires[-1].number
            self.traffic.waiting[pending.number] = pending
        return Sent(
            *(command, declared.lease, now, acquires, operations, ahead, outbox_grants, alone)
        )

    def _load(self) -> tuple[list[PendingAcquire], list[Operation]]:
        if self.traffic.leaving:
            return [], [Leave(self.numbering.session_id)]
        return self.traffic.load()

    def _write(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        declared: Declaration,
        how: int,
        notified: bool,
        now: float,
    ) -> Command:
        waits = bool(self.traffic.waiting)
        return Command(
            library().whole if acquires else library().back,
            keys_of(self.key, declared, how),
            declared.program,
            self.numbering.session_id,
            self.numbering.call,
            how,
            self.recovery.last_reply(waits, now),
            waits,
            notified,
            write_requests(operations, acquires),
            bool(operations) and not self.batching.uncontended,
        )

    # Replies --------------------------------------------------------------------------------------

    def on_reply(self, reply: Any, now: float) -> None:
        """Act on the reply to the last call.

        Raises what makes no sense in it. Some callers may not have their answers then.
        """
        if isinstance(reply, Exception):
            self._on_refusal(f"{reply}", reply, has_begun(reply), now)
            return
        traffic = self.traffic
        sent = traffic.begin_reading()
        try:
            self._act_on(sent, self._parse(reply, sent), now)
        except Exception as senseless:
            traffic.sent = sent
            if not isinstance(senseless, OtherReplyError):
                # The server repeats its reply, so the same call is not sent again.
                self._on_refusal("what it replied to a script makes no sense", senseless, True, now)
            raise
        finally:
            if traffic.state is READING:
                traffic.state = IDLE
        if not (traffic.acquires or traffic.owed):
            self.deadlines.all_answered()
        if self._out_of_order:
            self._apply_out_of_order(now)
        if self.renewal.lost:
            self.renewal.log_lost()
        if traffic.again or traffic.acquires or traffic.operations:
            traffic.schedule()

    def _parse(self, reply: bytes, sent: Sent) -> Reply:
        command = sent.command
        if sent.alone:
            found = parse_grant(reply)
            if found is not None and found[:2] == (command.session_id, command.number):
                return found
        return parse_reply(reply, command.session_id, command.number, command.program)

    def _act_on(self, sent: Sent, reply: Reply, now: float) -> None:
        self.batching.note_answered(sent, isinstance(reply, (Done, GrantedAtOnce)))
        if isinstance(reply, GrantedAtOnce):
            self._accept_grant(sent, reply, now)
        elif isinstance(reply, Done):
            self._accept(sent, reply, now)
        elif isinstance(reply, Unknown):
            for operation in sent.operations:
                self._on_answer(operation, UNKNOWN, now)
        else:
            self._retry(sent, reply, now)

    def _note_reply(self, sent: Sent, server: int) -> None:
        last = self.last_reply
        last.number, last.server = sent.command.number, server
        last.asked_at, last.lease = sent.at, sent.lease
        self.handoff.note_answer(sent.command, server)

    def _accept_grant(self, sent: Sent, reply: GrantedAtOnce, now: float) -> None:
        self._note_reply(sent, reply.now)
        pending = sent.acquires[0]
        # A caller that has left also takes its grant, because `apply_grant` gives it back.
        if self.traffic.waiting.pop(pending.number, None) or pending.future.done():
            self._grants.apply_grant(pending, reply.grant, sent.lease, reply.now, now)

    def _accept(self, sent: Sent, reply: Done, now: float) -> None:
        self.limits.note_carried(sent.command.program, sent.command.how)
        self._note_reply(sent, reply.now)
        if len(reply.answers) != len(sent.operations) + len(sent.acquires):
            raise StoreError("it did not answer each request once")
        traffic, answers = self.traffic, iter(reply.answers)
        for operation, outcome in zip(sent.operations, answers, strict=False):
            self._on_answer(operation, outcome, now)
        ahead, at_once = None, True
        for pending, answer in zip(sent.acquires, cast("Iterable[Answer]", answers), strict=True):
            # A caller that has left takes its answer, too: see `_accept_grant`.
            if pending.number in traffic.waiting or pending.future.done():
                self._grants.apply_answer(pending, answer, now)
            if answer.kind != "grant":
                at_once = False
                if answer.kind == "wait" and ahead is None:
                    ahead = answer.fence
        claims = self._grants.apply_outbox(reply.outbox, reply.now, now)
        unclaimed = self.recovery.unclaimed(claims, reply.now)
        self.handoff.note_queued(sent, ahead)
        self.batching.note_acquires(traffic, sent, at_once, ahead or 0)
        traffic.forget_abandoned()
        self._schedule_poll(reply.head, now)
        if unclaimed:
            self._ask_again(list(traffic.waiting.values()), now)

    def _on_answer(self, operation: Operation, answer: Outcome, now: float) -> None:
        if operation.asker is not None:
            settle(operation.asker, answer)
        elif isinstance(operation, Renew):
            self.renewal.on_answer(operation, answer, now)
        elif isinstance(operation, Rejoin):
            self._grants.on_rejoined(operation, answer)
        elif isinstance(operation, Leave) and not isinstance(answer, StoreError):
            # The session has read its last outbox, so the next session can begin.
            self.traffic.leaving = False
            self._begin_again(now)

    # Notifications --------------------------------------------------------------------------------

    def on_notification(self, notification: str, now: float) -> None:
        """Act on a notification. It may come late, twice or never."""
        found = parse_notification(notification)
        if found.session_id != self.numbering.session_id:
            return
        grants, waiting = found.outbox.grants, self.traffic.waiting
        if waiting and grants and next(iter(waiting)) < grants[0].number:
            # The acquires before it were granted, too, and a reply says so. They take effect in
            # order (S6, FIFO).
            self._out_of_order.append(found)
            self.traffic.schedule()
        else:
            self._apply_notification(found, now)

    def _apply_notification(self, found: Notification, now: float) -> None:
        claims = self._grants.apply_outbox(found.outbox, found.now, now)
        self.recovery.note_announced(claims, found.now)
        self._schedule_poll(found.head, now)
        if not all(claims.values()) and found.now > self.last_reply.server:
            # No reply has named these grants yet. The next reply shows whether they are new.
            self.traffic.schedule()

    def _apply_out_of_order(self, now: float) -> None:
        notifications, self._out_of_order = self._out_of_order, []
        for found in notifications:
            if found.session_id == self.numbering.session_id:
                self._apply_notification(found, now)

    # Failures -------------------------------------------------------------------------------------

    def failed(self, error: StoreError, now: float) -> None:
        """The server is away: fail the callers, but those with a reserved moment keep it.

        Permits that may have been granted are given back when the server answers again.
        """
        traffic = self.traffic
        sent = traffic.stop()
        self._out_of_order = []  # the next reply repeats what these notifications said
        self.batching.uncontended = False
        operations, traffic.operations = traffic.operations, []
        traffic.operations[:0] = keep_owed(self.limits.name, operations, error, now)
        for operation in operations + (sent.operations if sent else []):
            self._on_answer(operation, error, now)
        # Acquires in the unanswered call are not cancelled yet: the reply to it shows their
        # outcome.
        on_its_way = {pending.number for pending in sent.acquires} if sent else set()
        traffic.cancel_all(
            {
                number: pending
                for number, pending in traffic.waiting.items()
                if number not in on_its_way
            }
        )
        acquires = traffic.unanswered()
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
            for pending in self.traffic.unanswered()
            if pending.request.max_sleep == 0
            or spent >= (usual if pending.request.retry_for is None else pending.request.retry_for)
        ]
        self.traffic.fail(over, error)

    def retry_periods(self) -> list[float | None]:
        """For how many seconds each caller lets a server be looked for."""
        return [pending.request.retry_for for pending in self.traffic.unanswered()]

    def _on_refusal(self, refusal: str, lost: Exception, begun: bool, now: float) -> None:
        """The server answered with an error: undo by name what the call did if it had `begun`."""
        traffic = self.traffic
        sent, traffic.sent = traffic.sent, None
        error = refused(self._place, self.limits.name, refusal, lost)
        operations = sent.operations if sent else []
        for operation in operations:
            self._on_answer(operation, error, now)
        traffic.operations += keep_owed(self.limits.name, operations, error, now, refused=True)
        traffic.fail(sent.acquires if sent else (), error)
        for pending in sent.acquires if sent else []:
            traffic.waiting.pop(pending.number, None)
            if begun and not pending.t:
                traffic.cancel(pending)
        self.failed(error, now)

    def _retry(self, sent: Sent, reply: Overruled | Lapsed, now: float) -> None:
        """The script has done nothing yet, and the call must be made in another way.

        The server does not know the session, or names other limits.
        """
        self.batching.uncontended = False
        traffic, acquires = self.traffic, sent.acquires
        overruled = isinstance(reply, Overruled)
        if isinstance(reply, Overruled):
            self._learn(sent, reply.wait, self.limits.read(reply.program), now)
        else:
            acquires = list(traffic.waiting.values())
        if not traffic.leaving:  # the last call of a session is written anew
            traffic.operations[:0] = sent.operations
        self._ask_again(acquires, now, begins=not overruled)

    def _ask_again(self, acquires: list[PendingAcquire], now: float, begins: bool = True) -> None:
        """Ask again for these callers, in a session that `begins` now or in this one."""
        if begins:
            self._begin_again(now)
        for pending in acquires:
            self.traffic.waiting.pop(pending.number, None)
        self.traffic.acquires[:0] = acquires
        self.traffic.schedule()

    def _begin_again(self, now: float) -> None:
        """Begin another session, in which no caller has a place yet."""
        self.traffic.operations += self.recovery.ended(self.numbering.session_id, now)
        self.numbering.begin_again()
        self.last_reply.number = 0
        self.handoff.forget()
        self.renew(now)  # the server may have forgotten the permits, too

    def _learn(self, sent: Sent, wait: int | None, holds: Declaration, now: float) -> None:
        """Go by other limits, because the server names them.

        If the call declared ours, they may be declared again after `wait` microseconds. -1: an
        update holds.
        """
        program = sent.command.program
        if wait is not None and self.limits.note_turned_down(program, holds, wait, now):
            self.limits.declare_if_due(now)
        elif wait is not None or not self.limits.note_overruled(holds):
            return  # something else was declared since the call was sent
        self.renew(now)

    def take_over(self, now: float) -> None:
        """Go on after the loop of all callers has ended: give up what they asked for."""
        traffic = self.traffic
        asked = traffic.unfinished()
        asked += self.renewal.expected - set(asked)
        traffic.stop()
        traffic.acquires, self.poll_at = [], inf
        traffic.reserved.queue.clear()
        self.deadlines.clear()
        for pending in asked:
            traffic.give_up(pending)
        self.renew(now)
        self.send_operations()

    # Time -----------------------------------------------------------------------------------------

    def next_moment(self) -> float:
        """When `on_time` is to be called next. Infinity: never, as it stands."""
        return min(
            self.poll_at,
            self.handoff.moment,
            self.traffic.reserved.moment,
            self.deadlines.moment,
            self.renewal.moment,
            self.limits.moment,
        )

    def on_time(self, now: float) -> None:
        """Do all whose moment has come."""
        self.traffic.reserved.wake(now)
        self._end_waits(now)
        if self.handoff.moment <= now:
            self.handoff.moment = inf
            self.send_operations()
        if self.renewal.moment <= now:
            self.renew(now)
        self.limits.declare_if_due(now)
        if self.poll_at <= now:
            self.poll_at = inf
            self.poll()

    def _end_waits(self, now: float) -> None:
        """Fail the callers that have waited for as long as they may."""
        for pending in self.deadlines.too_late(now):
            delay = 0.0 if pending.due == inf else max(0.0, pending.due - now)
            pending.settle(too_long(self.limits.name, pending.request, int(delay * 1_000_000)))
        if over := self.deadlines.unanswered(now):
            self.traffic.fail(over, cannot(self._place, TimeoutError()))

    def _schedule_poll(self, head: int | None, now: float) -> None:
        """Schedule the next poll.

        If the head of the queue is this session's, it asks in time. A session with waiters is never
        silent for long.
        """
        self.poll_at = inf
        if not self.traffic.waiting:
            return
        wait = self._seconds_to_estimate(now) if head is None else head / 1_000_000
        if head is not None and wait > 2 * MARGIN:
            wait -= MARGIN
        # A grant of which this session knows nothing must not end before the session asks.
        last = self.last_reply
        beat = min(HEARTBEAT, last.lease / 3_000_000) if last.lease else HEARTBEAT
        # Notifications do not count as a sign of life: the server sees only calls (L3, dead
        # waiters).
        self.poll_at = now + max(0.0, min(beat - last.silence(now), wait))

    def _seconds_to_estimate(self, now: float) -> float:
        """Seconds until the first waiter asks for its state: shortly after its estimate, once."""
        first = next(iter(self.traffic.waiting.values()))
        wait = first.due + GRACE - now
        if wait <= 0:
            first.due = inf
        return max(0.0, wait)
