"""A session: one event loop's conversation with the store about one name.

It holds the loop's requests for the name, those in flight and those that wait. It numbers its calls
and its callers, and acts on each reply of the script. It decides nothing: the script does. Every
method runs in the session's own loop, unless its docstring says otherwise.
"""

from __future__ import annotations

import os
from asyncio import Future
from collections import OrderedDict
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ref

from headgate.errors import StoreError
from headgate.gate.gate import Grant
from headgate.request import Request
from headgate.stores.redis.protocol.calls import (
    HORIZON,
    Command,
    QuickCall,
    WholeCall,
    keys_of,
    write_requests,
)
from headgate.stores.redis.protocol.operations import KNOWN, Leave, Operation, Rejoin, Renew
from headgate.stores.redis.protocol.replies import (
    UNKNOWN,
    Answer,
    Done,
    Lapsed,
    Notification,
    NotQuick,
    OtherReplyError,
    Outbox,
    Overruled,
    QuickGrant,
    Unknown,
    has_begun,
    parse_notification,
    parse_quick,
    parse_reply,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.acquires import PendingAcquire, abandon, await_grant, settle
from headgate.stores.redis.session.lease_renewal import LeaseRenewal
from headgate.stores.redis.session.local_handoff import LocalHandoff
from headgate.stores.redis.session.recovery import Recovery
from headgate.stores.redis.session.reply_timeouts import ReplyTimeouts
from headgate.stores.redis.session.traffic import Sent, Traffic
from headgate.stores.redis.session.undelivered import keep_owed, keep_refused
from headgate.stores.redis.transport.endpoint import REPLY_TIMEOUT
from headgate.stores.redis.transport.failures import refused
from headgate.stores.redis.transport.portal import portal
from headgate.stores.redis.transport.reconnection import retry_for
from headgate.stores.refusals import never, queue_full, too_long

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, TimerHandle
    from collections.abc import Iterable

    from headgate.gate.compile import Declaration
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.operations import Outcome
    from headgate.stores.redis.protocol.replies import Reply
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.node import Node

# The head of the queue asks so many seconds before its moment.
MARGIN = 0.5 * HORIZON / 1_000_000
# Seconds without a call after which a session with waiters sends one, to show that it is alive.
# This is a third of the script's WAITER.
HEARTBEAT = 3.0
GRACE = 0.1  # seconds after its estimate at which a waiter asks for its state
FAR = 50  # from this position on, one round trip more or less makes no difference to a waiter


class Home(Protocol):
    """The queue that a session belongs to."""

    @property
    def key(self) -> str: ...
    @property
    def limits(self) -> LimitSync: ...
    def leave_closed(self) -> None: ...
    def adopt(self, session: Session) -> None: ...


class Session:
    """The traffic of one name on one client."""

    def __init__(self, client: Client, queue: Home) -> None:
        self.client = client
        self.queue = queue
        self.limits = queue.limits
        self.key = queue.key
        # The connection that its calls use, as far as the client knows. The client sets it.
        self.node: Node | None = None
        # Whether the last call was answered. None: there was no call yet. The client sets it.
        self.met: bool | None = None
        self.id = client.new_session_id()
        self._call, self._number = 0, 0  # the numbers of the last call and of the last caller
        # The last call that the server is known to have carried out, and the server's clock then.
        self._known, self._server = 0, 0
        self.traffic = Traffic(client.loop)
        # Notifications that arrived before the reply to an earlier call. They are read after it.
        self._out_of_order: list[Notification] = []
        self._queued = False  # the client knows that this session has something to send
        # A reply is being read. Nothing is sent until its end is known too.
        self._reading_reply = False
        self._send_after_reading = False  # there is something to send as soon as the reply is read
        # The last acquires were granted at once, and no caller waits: the next call may be quick.
        self._uncontended = False
        # The last call carried one request, so the next call does not wait for a second one.
        self._sent_one_request = False
        self._sent_one_operation = False  # the last call with operations carried one of them
        self._far_from_head = False  # the last acquires that had to wait are far from the head
        # When the call that was answered last was sent, by the monotonic clock.
        self.asked_at = 0.0
        self.lease = 0  # the lease of the limits that this call named, in microseconds
        self._timer: TimerHandle | None = None  # for the next look at the server
        self._reply_timeouts = ReplyTimeouts(self)
        self.why = "it has not answered in time"  # the reason for which the last call failed
        # How often the backlog could not be delivered since the last reply.
        self._failed_offers = 0
        self.renewal = LeaseRenewal(self)
        self.handoff = LocalHandoff(self)
        self.recovery = Recovery(self, self.renewal)
        self.limits.declare_in_time(client.loop)

    # Requests of the queue ------------------------------------------------------------------------

    async def acquire(self, request: Request, enters: bool = False) -> tuple[Grant, PendingAcquire]:
        """The grant of `request`, at its moment.

        A caller that `enters` never sees its permit. It may take over `pending.permit`, which
        another caller left to it, instead of a grant of its own.
        """
        self._number += 1
        pending = PendingAcquire(self._number, request, self.client.loop.create_future(), enters)
        if request.max_sleep is not None:
            self._reply_timeouts.listen(pending, request.max_sleep / 1_000_000 or REPLY_TIMEOUT)
        try:
            request.closing.begin(ref(pending))
            self.traffic.acquires.append(pending)
            self._send()
            return await (
                pending.future
                if request.on_wait is None
                else await_grant(pending, request.on_wait, self.limits.name)
            ), pending
        except BaseException:
            self.leave(pending)
            raise
        finally:
            request.closing.end(ref(pending))
            self.renewal.expected.discard(pending)
            if pending.deadline is not None:
                pending.deadline.cancel()

    async def ask(self, operation: Operation) -> Any:
        """The answer to any other request."""
        return await self.answer_to(operation)

    def answer_to(self, operation: Operation) -> Future[Any]:
        """A future for the answer to `operation`."""
        future = operation.asker = self.client.loop.create_future()
        self.run([operation])
        return future

    def run(self, operations: list[Operation]) -> None:
        self.traffic.operations += operations
        self._send()

    @property
    def name(self) -> str:
        return self.limits.name

    @property
    def declared(self) -> Declaration:
        return self.limits.declared

    @property
    def loop(self) -> AbstractEventLoop:
        return self.client.loop

    @property
    def idle(self) -> bool:
        """Whether the process loses nothing when it drops this session."""
        return self.traffic.idle and not self._queued and not self.renewal.planned

    @property
    def waits(self) -> bool:
        return bool(self.traffic.waiting)

    @property
    def paused(self) -> bool:
        """Whether all callers are held back by a pause, as far as this session knows."""
        return self.traffic.reserved.pause_left > 0

    def withdraw(self, pending: PendingAcquire) -> None:
        """Give up the place of a waiter. The next call tells the server."""
        del self.traffic.waiting[pending.number]
        self.traffic.cancel(pending)

    def send_operations(self) -> None:
        if self.traffic.owes:
            self._send()

    def note(self, operation: Operation) -> None:
        """Let `operation` go with the next call, whenever that is.

        A signal handler, a finalizer or another thread may call this in the middle of any method.
        """
        self.traffic.operations.append(operation)

    def send_noted(self) -> None:
        """Send the noted operations, from the loop that had the session then.

        Another loop may have the session by now.
        """
        if self.client.here and not self.client.closed:
            self.send_operations()
        else:
            with suppress(RuntimeError):  # the process ends, and its leases too
                portal().tell(self.rescue)

    def rescue(self) -> None:
        """In the portal: go on, if the session's loop was closed."""
        if self.client.closed:
            self.client.end()
            self.queue.adopt(self)
        self.send_operations()

    def look(self) -> None:
        """Leave the sessions of closed loops. Ask the server for news if a caller waits."""
        self.queue.leave_closed()
        if self.traffic.waiting:
            self._send()

    # Sending --------------------------------------------------------------------------------------

    def _send(self) -> None:
        if self._queued or self.traffic.sent is not None:
            return
        if self._reading_reply:
            self._send_after_reading = True
            return
        self._queued = True
        if self._sends_at_once():
            self.client.at_once(self)
        else:
            self.client.ready(self)

    def _sends_at_once(self) -> bool:
        """Whether the next call does not wait for the end of the loop's turn.

        An acquire leaves at once if the last call carried one request. A release leaves at once if
        no caller was found waiting, or if the queue is so long that another call makes no
        difference. Otherwise its caller may ask again in the same turn, and both travel in one
        call.
        """
        if self.traffic.operations and self.traffic.operations[-1].leads_release:
            return False
        if self.traffic.acquires:
            return self._sent_one_request
        return (self._sent_one_request and self._uncontended) or (
            self._sent_one_operation and self._far_from_head
        )

    def command(self) -> Command:
        """The next call, or the same call again if it was not answered.

        The garbage collector may drop permits in the middle of this. Nothing else must be sent
        until the call is complete.
        """
        self.traffic.sent, self.traffic.owed = self.traffic.owed or self._make_call(), None
        self._queued = False
        return self.traffic.sent.command

    def _make_call(self) -> Sent:
        self._call += 1
        acquires, operations = self._load()
        declared, how = self.limits.limits_for_call(
            bool(acquires or self.traffic.waiting), operations
        )
        command = self._write_command(acquires, operations, declared, how)
        ahead, outbox_grants = self.handoff.count_ahead(), self.handoff.outbox_grants
        for pending in acquires:
            pending.session_id, pending.last = self.id, acquires[-1].number
            self.traffic.waiting[pending.number] = pending
        at = declared.lease, monotonic()
        return Sent(command, *at, acquires, operations, ahead, outbox_grants)

    def _load(self) -> tuple[list[PendingAcquire], list[Operation]]:
        if self.traffic.leaving:
            return [], [Leave(self.id)]
        return self.traffic.load()

    def _write_command(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        declared: Declaration,
        how: int,
    ) -> Command:
        waits, keys = bool(self.traffic.waiting), keys_of(self.key, declared, how)
        if (
            self._uncontended
            and len(acquires) == 1
            and not (operations or waits or how or self.recovery.doubts)
        ):
            request = acquires[0].request
            asked = (acquires[0].number, request.text, *declared.costs(request.units))
            return QuickCall(keys, declared.program, self.id, self._call, asked)
        return WholeCall(
            library().whole if acquires else library().back,
            *(keys, declared.program, self.id, self._call, how),
            self.recovery.last_reply(self._known, self._server),
            waits,
            self.client.counts(self),
            write_requests(operations, acquires),
            bool(operations) and not self._uncontended,
        )

    # Replies and notifications --------------------------------------------------------------------

    def answered(self, reply: Any) -> None:
        """Act on the reply to the last command."""
        sent = self.traffic.sent
        assert sent is not None, "a reply answers a call"
        if isinstance(reply, Exception):
            self._on_refusal(f"{reply}", reply, has_begun(reply))
            return
        self.traffic.sent = None
        self._reading_reply, self._send_after_reading = True, False
        try:
            self._act_on(sent, self._parse(reply, sent))
        except Exception as senseless:
            # Some of its callers may not have their answers yet.
            self.traffic.sent = sent
            if not isinstance(senseless, OtherReplyError):
                # The server repeats its reply, so the same call is not sent again.
                self._on_refusal("what it replied to a script makes no sense", senseless, True)
            raise
        finally:
            self._reading_reply = False
        if not (self.traffic.acquires or self.traffic.owed):
            self._reply_timeouts.cancel()
        self._apply_out_of_order()
        if self._send_after_reading or self.traffic.acquires or self.traffic.operations:
            self._send()

    def _parse(self, reply: bytes | None, sent: Sent) -> Reply:
        command = sent.command
        if isinstance(command, QuickCall) and reply is not None:
            found = parse_quick(reply)
            if found is not None and found[:2] == (command.session_id, command.number):
                return found
        return parse_reply(reply, command.session_id, command.number, command.program)

    def _act_on(self, sent: Sent, reply: Reply) -> None:
        done = isinstance(reply, (Done, QuickGrant))
        if done:
            self._known, self._failed_offers = sent.command.number, 0
        self._sent_one_request = done and len(sent.acquires) + len(sent.operations) == 1
        self._sent_one_operation = (
            len(sent.operations) == 1 if sent.operations else self._sent_one_operation
        )
        if isinstance(reply, QuickGrant):
            self._accept_quick(sent, reply)
        elif isinstance(reply, Done):
            self._accept(sent, reply)
        elif isinstance(reply, Unknown):
            for operation in sent.operations:
                self._on_answer(operation, UNKNOWN)
        else:
            self._retry(sent, reply)

    def _accept_quick(self, sent: Sent, reply: QuickGrant) -> None:
        self._note_answered(sent, reply.now)
        pending = sent.acquires[0]
        if self.traffic.waiting.pop(pending.number, None) or pending.future.done():
            self._apply_grant(pending, reply.grant, sent.lease, reply.now)

    def _note_answered(self, sent: Sent, now: int) -> None:
        self.asked_at, self.lease, self._server = sent.at, sent.lease, now
        self.handoff.note_answer(sent.command, now)

    def _accept(self, sent: Sent, reply: Done) -> None:
        self.limits.note_carried(sent.command.program, sent.command.how)
        self._note_answered(sent, reply.now)
        if len(reply.answers) != len(sent.operations) + len(sent.acquires):
            raise StoreError("it did not answer each request once")
        answers = iter(reply.answers)
        for operation, answer in zip(sent.operations, answers, strict=False):
            self._on_answer(operation, answer)
        ahead, at_once = None, True
        for pending, (kind, number, fence) in zip(
            sent.acquires, cast("Iterable[Answer]", answers), strict=True
        ):
            if pending.number in self.traffic.waiting or pending.future.done():
                self._apply_answer(pending, kind, number, fence)
            if kind != "grant":
                at_once = False
                if kind == "wait" and ahead is None:
                    ahead = fence
        unclaimed = self.recovery.unclaimed(self._apply_outbox(reply.outbox, reply.now), reply.now)
        self.handoff.note_queued(sent, ahead)
        self._far_from_head = (ahead or 0) >= FAR if sent.acquires else self._far_from_head
        # Without waiters, a reply to releases alone does not show whether callers would pass.
        if self.traffic.waiting or self.traffic.reserved.queue or sent.acquires:
            self._uncontended = at_once and not (
                self.traffic.waiting or self.traffic.reserved.queue
            )
        self.traffic.forget_abandoned()
        self._plan(reply.head)
        if unclaimed:
            self._ask_again(list(self.traffic.waiting.values()))

    def _on_answer(self, operation: Operation, answer: Outcome) -> None:
        if isinstance(operation.asker, Future):
            settle(operation.asker, answer)
        elif operation.asker is not None:
            operation.asker(answer)
        elif isinstance(operation, Renew):
            self.renewal.on_answer(operation, answer)
        elif isinstance(operation, Rejoin):
            self._on_rejoined(operation, answer)
        elif isinstance(operation, Leave) and not isinstance(answer, StoreError):
            # The reply to the last call of a session carries the last of its outbox.
            self.traffic.leaving = False
            self._begin_again()

    def _apply_answer(self, pending: PendingAcquire, kind: str, number: int, fence: int) -> None:
        if pending.t:
            return  # a notification was faster
        if kind == "wait":
            self._apply_wait(pending, number, fence)
            return
        self.traffic.waiting.pop(pending.number, None)
        if kind == "grant":
            self._apply_grant(pending, Grant(number, fence), self.lease, self._server)
        elif kind == "never":
            pending.settle(never(self.limits.name, self.limits.declared, pending.request))
        elif kind == "full":
            pending.settle(queue_full(self.limits.name, pending.request, number, fence))
        else:
            pending.settle(too_long(self.limits.name, pending.request, number))

    def _apply_wait(self, pending: PendingAcquire, delay: int, position: int) -> None:
        pending.due = monotonic() + delay / 1_000_000 if delay else inf
        if pending.future.done():
            self.traffic.waiting.pop(pending.number, None)
            self.traffic.cancel(pending)
            self._send()
            return
        pending.report_wait(position, delay)
        pending.answer_by = inf
        self._reply_timeouts.limit_wait(pending)

    def on_notification(self, notification: str) -> None:
        """Act on a notification. It may come late, twice or never."""
        found = parse_notification(notification)
        if found.session_id != self.id:
            return
        grants, waiting = found.outbox.grants, self.traffic.waiting
        if waiting and grants and next(iter(waiting)) < grants[0].number:
            # The acquires before it were granted, too, and a reply says so. They take effect in
            # order (S6, FIFO).
            self._out_of_order.append(found)
            self._send()
        else:
            self._apply_notification(found)

    def _apply_notification(self, found: Notification) -> None:
        claims = self._apply_outbox(found.outbox, found.now)
        self.recovery.note_announced(claims, found.now)
        self._plan(found.head)
        if not all(claims.values()) and found.now > self._server:
            # No reply has named these grants yet. The next reply shows whether they are new.
            self._send()

    def _apply_out_of_order(self) -> None:
        notifications, self._out_of_order = self._out_of_order, []
        for found in notifications:
            if found.session_id == self.id:
                self._apply_notification(found)

    def _apply_outbox(self, outbox: Outbox, server: int) -> dict[int, bool]:
        """Apply what the server noted in this session's outbox: grants, and at the end a pause.

        A reply or a notification carries the outbox. Return, by fence, whether a caller claims the
        grant.
        """
        claims = {}
        for number, t, fence, lease in outbox.grants:
            self.handoff.outbox_grants += 1
            if number in self.traffic.waiting and fence <= self.traffic.waiting[number].fence:
                continue  # this grant was taken back
            pending = self.traffic.waiting.pop(number, None) or self.traffic.abandoned.pop(
                number, None
            )
            claims[fence] = pending is not None or t < 0
            if pending is None:
                continue  # the grant was applied before, or the state has gone back
            if t < 0:
                pending.settle(never(self.limits.name, self.limits.declared, pending.request))
            else:
                self._apply_grant(pending, Grant(t, fence), lease, server)
        if outbox.pause is not None:
            self.handoff.stop()  # the callers held back come before all others
            if self.traffic.reserved.pause(server, outbox.pause):
                self._hold_back()
        return claims

    def _hold_back(self) -> None:
        """A pause ends later than the moments of some grants: let their callers wait again.

        They come before all waiters that were granted nothing (T3, order of moments).
        """
        held = self.traffic.reserved.held_back(self.id)
        for pending, grant in held:
            self.traffic.operations.append(Rejoin(pending.caller, grant.t, grant.fence))
            pending.t, pending.fence = 0, grant.fence
            pending.due = monotonic() + self.traffic.reserved.pause_left
            self._reply_timeouts.limit_wait(pending)
        if held:
            self.traffic.waiting = (
                OrderedDict({pending.number: pending for pending, _ in held}) | self.traffic.waiting
            )
            self._send()

    def _on_rejoined(self, rejoin: Rejoin, answer: Outcome) -> None:
        """Ask anew for a grant that the server does not know any more.

        Its caller comes last then (S6, FIFO).
        """
        pending = self.traffic.waiting.get(rejoin.caller.number)
        lost = not isinstance(answer, StoreError) and not cast(Answer, answer).number
        if lost and pending is not None and pending.session_id == rejoin.caller.session_id:
            del self.traffic.waiting[pending.number]
            self._number = pending.number = self._number + 1
            self.traffic.acquires.append(pending)

    def _apply_grant(self, pending: PendingAcquire, grant: Grant, lease: int, server: int) -> None:
        """Sleep until the moment of the grant, counted from now.

        The server's clock is further ahead now than when the reply left, so this is never early
        (TL1).
        """
        pending.t = t = grant.t
        pending.lease = lease
        self.handoff.note_grant(pending)
        sent_at = self.traffic.sent.at if self.traffic.sent else 0.0
        pending.believed = self.renewal.believed(t, lease, server, self._server, sent_at)
        if pending.future.done():
            self._give_up(pending)
            return
        if lease:
            self.renewal.expected.add(pending)
        if t <= server and not self.traffic.reserved.queue:
            pending.settle(grant)
        else:
            self.traffic.reserved.sleep(pending, grant, t - server)
            if self.traffic.reserved.precedes_pause(grant):  # its notification arrived only now
                self._hold_back()

    def fail(self, acquires: Iterable[PendingAcquire], error: StoreError) -> None:
        """Raise `error` in these callers."""
        failed = [pending for pending in acquires if not pending.future.done()]
        for pending in failed:
            pending.settle(error)
        if any(pending.request.raises for pending in failed):
            self.client.note_outage(self, error)

    def cannot(self, lost: BaseException) -> StoreError:
        return self.client.cannot(lost)

    # Giving up ------------------------------------------------------------------------------------

    def leave(self, pending: PendingAcquire) -> None:
        """The coroutine that waits for `pending` ends without its grant.

        The collector may close it where its loop does not run: that loop may be stopped, closed or
        another thread's. In the child of a fork it belongs to the parent, and stays as it is.
        """
        client = self.client
        if client.process != os.getpid():
            return
        abandon(pending.future)
        if client.here and not client.closed:
            self._leave(pending)
            return
        with suppress(RuntimeError):  # the process ends, and its leases too
            if client.closed or client.of_portal:
                portal().tell(lambda: self._leave(pending))
            else:
                client.loop.call_soon_threadsafe(self._leave, pending)

    def _leave(self, pending: PendingAcquire) -> None:
        if self.client.closed:
            self.rescue()
        if pending.permit is not None and not self.handoff.hand_over(pending.permit):
            pending.permit.release()
        self._give_up(pending)

    def _give_up(self, pending: PendingAcquire) -> None:
        """No caller wants this acquire any more: leave the queue, or undo the grant.

        While the reply is on the way, it is not known which one is needed. Then the reply decides.
        """
        if not self.traffic.may_be_on_its_way(pending) and (
            pending.number in self.traffic.waiting or pending.t
        ):
            self.traffic.waiting.pop(pending.number, None)
            self.traffic.cancel(pending)
            self._send()

    def failed(self, error: StoreError) -> None:
        """The server is away: fail the callers, but those with a reserved moment keep it.

        Permits that may have been granted are given back when the server answers again.
        """
        self.why = str(error)
        sent, self.traffic.sent = self.traffic.sent or self.traffic.owed, None
        self._out_of_order = []  # the next reply repeats what these notifications said
        self.traffic.owed, self._queued, self._uncontended = sent, False, False
        operations, self.traffic.operations = self.traffic.operations, []
        self.traffic.operations[:0] = keep_owed(self.name, operations, error)
        for operation in operations + (sent.operations if sent else []):
            self._on_answer(operation, error)
        # These are given up as soon as a reply shows their outcome.
        on_its_way = {pending.number for pending in sent.acquires} if sent else set()
        self.traffic.cancel_all(
            {
                number: pending
                for number, pending in self.traffic.waiting.items()
                if number not in on_its_way
            }
        )
        acquires = self.traffic.unanswered()
        self.traffic.waiting, self.traffic.acquires = OrderedDict(), []
        self.fail(acquires, error)
        self._reply_timeouts.cancel()
        self._failed_offers += 1
        if self.traffic.owes:
            self.client.reconnection.offers.add(self, self._failed_offers)

    def on_disconnect(self, lost: BaseException, spent: float) -> None:
        """The call in flight has lost its connection, and may be sent again.

        A caller fails if its `retry_for` is over by now, or if it may not wait at all.
        """
        over = [
            pending
            for pending in self.traffic.unanswered()
            if pending.request.max_sleep == 0 or spent >= retry_for(pending.request.retry_for)
        ]
        self.fail(over, self.client.cannot(lost))

    def doubt(self) -> None:
        """Note that the connection is lost."""
        self.recovery.doubt()

    def retry_periods(self) -> list[float | None]:
        """For how many seconds each caller lets a server be looked for."""
        return [pending.request.retry_for for pending in self.traffic.unanswered()]

    def _begin_again(self) -> None:
        """Begin another session, in which no caller has a place yet."""
        self.traffic.operations += self.recovery.ended(self.id)
        self.id, self._call, self._known = self.client.new_session_id(), 0, 0
        self.handoff.forget()
        self.renewal.renew()  # the server may have forgotten the permits, too

    def _on_refusal(self, refusal: str, lost: Exception, begun: bool) -> None:
        """The server answered with an error: undo by name what the call did if it had `begun`."""
        sent, self.traffic.sent = self.traffic.sent, None
        error = refused(self.client.topology, self.limits.name, refusal, lost)
        operations = sent.operations if sent else []
        for operation in operations:
            self._on_answer(operation, error)
        self.traffic.operations += keep_refused(self.name, operations, error)
        self.fail(sent.acquires if sent else (), error)
        for pending in sent.acquires if sent else []:
            self.traffic.waiting.pop(pending.number, None)
            if begun and not pending.t:
                self.traffic.cancel(pending)
        self.failed(error)

    def _retry(self, sent: Sent, reply: Overruled | Lapsed | NotQuick) -> None:
        """The script has done nothing yet, and the call must be made in another way.

        The server does not know the session, or names other limits, or needs a whole call instead
        of a quick one.
        """
        self._uncontended = False
        acquires, overruled = sent.acquires, isinstance(reply, Overruled)
        # Send the same requests as a whole call with the same number. Should the server run the
        # quick call late after all, it knows the number.
        if isinstance(reply, NotQuick):
            quick = sent.command
            command = WholeCall(
                library().whole,
                *(quick.keys, quick.program, quick.session_id, quick.number, KNOWN),
                self.recovery.last_reply(self._known, self._server),
                waits=False,
                notified=False,
                requests=write_requests([], acquires),
            )
            self.traffic.owed = sent._replace(command=command)
            self._send()
            return
        if isinstance(reply, Overruled):
            self._learn(sent, reply.wait, self.limits.read(reply.program))
        else:
            acquires = list(self.traffic.waiting.values())
        if not self.traffic.leaving:  # the last call of a session is written anew
            self.traffic.operations[:0] = sent.operations
        self._ask_again(acquires, begins=not overruled)

    def _ask_again(self, acquires: list[PendingAcquire], begins: bool = True) -> None:
        """Ask again for these callers, in a session that `begins` now or in this one."""
        if begins:
            self._begin_again()
        for pending in acquires:
            self.traffic.waiting.pop(pending.number, None)
        self.traffic.acquires[:0] = acquires
        self._send()

    def _learn(self, sent: Sent, wait: int | None, holds: Declaration) -> None:
        """Go by other limits, because the server names them.

        If the call declared ours, they may be declared again after `wait` microseconds. -1: an
        update holds.
        """
        if wait is not None and self.limits.note_turned_down(sent.command.program, holds, wait):
            self.limits.declare_in_time(self.client.loop)
        elif wait is not None or not self.limits.note_overruled(holds):
            return  # something else was declared since the call was sent
        self.renewal.renew()

    # Time -----------------------------------------------------------------------------------------

    def _plan(self, head: int | None) -> None:
        """Set the timer for the next look.

        If the head of the queue is this session's, it asks in time. A session with waiters is never
        silent for long.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.traffic.waiting:
            return
        self.client.listen(self)
        wait = self._seconds_to_estimate() if head is None else head / 1_000_000
        if head is not None and wait > 2 * MARGIN:
            wait -= MARGIN
        # A grant of which this session knows nothing must not end before the session asks.
        beat = min(HEARTBEAT, self.lease / 3_000_000) if self.lease else HEARTBEAT
        # Notifications do not count as a sign of life: the server sees only calls (L3, dead
        # waiters).
        silent = monotonic() - self.asked_at
        self._timer = self.client.loop.call_later(max(0.0, min(beat - silent, wait)), self.look)

    def _seconds_to_estimate(self) -> float:
        """Seconds until the first waiter asks for its state: shortly after its estimate, once."""
        first = next(iter(self.traffic.waiting.values()))
        wait = first.due + GRACE - monotonic()
        if wait <= 0:
            first.due = inf
        return max(0.0, wait)
