"""A session in its event loop: its futures, its timer and its client.

It gives each input to the session, which is a state machine. Then it carries out what the session
wants. Every method runs in the session's own loop, unless its docstring says otherwise.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ref

from headgate.counts import counts_of, note_grant, note_refusal, reason_of
from headgate.errors import StoreError
from headgate.forks import fork_error
from headgate.permit import Permit
from headgate.request import Try
from headgate.stores.redis.protocol.calls import CLUSTERED, NOTIFIED
from headgate.stores.redis.session.acquires import PendingAcquire
from headgate.stores.redis.session.session import Session
from headgate.stores.redis.session.traffic import SCHEDULED
from headgate.stores.redis.transport import reconnection
from headgate.stores.redis.transport.failures import cannot
from headgate.stores.redis.transport.portal import portal
from headgate.waiting import Waiting

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle
    from collections.abc import Callable

    from headgate.gate.gate import Grant
    from headgate.permit import Issuer
    from headgate.request import Request
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.protocol.calls import Command
    from headgate.stores.redis.protocol.operations import Operation, Promise
    from headgate.stores.redis.session.whole_pause import WholePause
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.node import Node
    from headgate.waiting import OnWait


class Router(Protocol):
    """The part of Routing that a session uses."""

    def leave_closed(self) -> None: ...
    # For a whole limiter: whether the next call of a key's session may leave. Otherwise the watch
    # calls `poll` soon.
    def allows(self, session: LoopSession) -> bool: ...
    def note_pause(self, server_now: int, left: int, asked_at: float = 0.0) -> None: ...
    def note_whole_pause(self) -> None: ...


class SessionQueue(Protocol):
    """The queue that a session belongs to."""

    @property
    def name(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def limits(self) -> LimitSync: ...
    @property
    def issuer(self) -> Issuer: ...
    @property
    def routing(self) -> Router: ...
    @property
    def pause(self) -> WholePause: ...
    # For a key: the queue of the whole limiter.
    @property
    def whole(self) -> SessionQueue | None: ...
    def adopt(self, session: LoopSession) -> None: ...


class LoopSession:
    """The session of one name on one client."""

    optional = False  # see `Sender`

    def __init__(self, client: Client, queue: SessionQueue) -> None:
        self.client = client
        self.queue = queue
        self.key = queue.key
        # The connection that its calls use, as far as the client knows. The client sets it.
        self.node: Node | None = None
        # Whether the last call was answered. None: there was no call yet. The client sets it.
        self.met: bool | None = None
        # The index keeps the numbering, and so the function below, for longer than the session.
        this = ref(self)
        self.machine = Session(
            queue.key,
            queue.limits,
            client.topology,
            lambda: cast(LoopSession, this()).client.new_session_id(),
            None if queue.whole is None else queue.pause,
        )
        self.traffic = self.machine.traffic
        self.why = "it has not answered in time"  # the reason for which the last call failed
        # How often the backlog could not be delivered since the last reply.
        self._failed_deliveries = 0
        # The client knows that there is something to send, and asks for the call.
        self._client_knows = False
        self._timer: TimerHandle | None = None  # for the session's next moment
        self._moment = inf  # at which the timer is due, on the monotonic clock
        self._update()

    # Requests of the queue ------------------------------------------------------------------------

    async def acquire(self, request: Request, enters: bool = False) -> Permit | None:
        """The permit of `request`, at its moment.

        A caller that `enters` never sees its permit. So it may take over that of another caller,
        and it needs none if its limits hold nothing: then this returns None.
        """
        loop, on_wait = self.client.loop, request.on_wait
        pending = LoopAcquire(request, loop.create_future(), enters, monotonic())
        if on_wait is not None:
            pending.grant_future = later = loop.create_future()
            later.add_done_callback(retrieve_error)  # The task may be cancelled before it awaits.
        closing, entry, noted = request.closing, ref(pending), False  # see `Closing`
        try:
            closing.add_waiting(entry)
            self.machine.begin(pending)
            self._schedule()
            if request.max_sleep is not None:
                self._set_timer()
            outcome: Any = (
                pending.future
                if on_wait is None
                else await_grant(pending, on_wait, self.queue.name)
            )
            grant: Grant = await outcome
            if pending.deadline is not None:
                self.machine.deadlines.end(pending, pending.deadline)
            waited = monotonic() - pending.start
            noted = True
            note_grant(
                counts_of(self.queue.name),
                self.queue.name,
                pending.request,
                waited if pending.queued else None,
            )
            return pending.permit or issued(self, pending, grant, waited)
        except BaseException as error:
            self.leave(pending)
            if not noted:
                count_refusal(self.queue.name, pending, error)
            raise
        finally:
            closing.discard_waiting(entry)

    def ask(self, operation: Operation) -> Future[Any]:
        """A future for the answer to any other request."""
        future = operation.asker = self.client.loop.create_future()
        self.run([operation])
        return future

    def run(self, operations: list[Operation]) -> None:
        self.traffic.run(operations)
        self._schedule()

    def rescue(self) -> None:
        """In the portal: go on, if the session's loop was closed."""
        if self.client.closed:
            self.client.lifecycle.end()
            self.queue.adopt(self)
        self.poll()

    def hold(self, permit: Permit, lease: int) -> None:
        """Renew `permit` until it is released or dropped.

        A task whose loop ends may get its grant after the portal has taken over the session. Then
        the portal's loop plans the renewal.
        """
        loop, renewal = self.client.loop, self.machine.renewal
        if renewal.hold(permit, lease):
            return
        if asyncio._get_running_loop() is loop:
            renewal.renew_in_time(permit, lease, monotonic())
            self._set_timer()
        else:
            with suppress(RuntimeError):  # the loop is closed, and nothing is renewed
                loop.call_soon_threadsafe(self.hold, permit, lease)

    def hand_over(self, permit: Permit) -> bool:
        """Give `permit` to the next waiter here, if no other caller can be before it."""
        handoff = self.machine.handoff
        handed = handoff.hand_over(permit, monotonic())
        if handoff.moment < self._moment:
            self._set_timer()
        return handed

    # The client's inputs --------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether notifications are of use: a caller waits, or keys of this limiter are in use."""
        queue = self.queue
        keys_in_use = queue.whole is None and monotonic() < queue.pause.trusted_until
        return bool(self.traffic.waiting) or keys_in_use

    def command(self) -> Command | None:
        """The next call. None: there is none.

        After an exception, the client may ask again for a call that it has sent already.
        """
        try:
            if self.traffic.state is not SCHEDULED:
                return None
            # A signal handler or a finalizer may call `run` in the middle of this. Until the call
            # is complete, the client gets no second one.
            client = self.client
            flags = NOTIFIED * client.subscriptions.notifies(self)
            flags += CLUSTERED * client.topology.several
            return self.machine.next_call.make(flags, monotonic())
        finally:
            self._client_knows = False

    def put_off(self) -> None:
        """An exception came before the call was written. The client asks for it again."""
        self.traffic.put_off()

    def answered(self, reply: Any) -> None:
        """Act on the reply to the last command."""
        try:
            self.machine.on_reply(reply, monotonic())
            if self.traffic.failure is None:
                self._failed_deliveries = 0
        finally:
            self._update()

    def on_notification(self, notification: str) -> None:
        try:
            self.machine.on_notification(notification, monotonic())
        finally:
            self._update()

    def failed(self, error: StoreError) -> None:
        try:
            self.machine.failed(error, monotonic())
        finally:
            self._update()

    def on_disconnect(self, lost: BaseException, spent: float) -> None:
        error = cannot(self.client.topology, lost)
        self.machine.on_disconnect(error, spent, reconnection.OUTAGE)
        self._update()

    def doubt(self) -> None:
        self.machine.recovery.doubt(monotonic())
        self._schedule()

    def retry_periods(self) -> list[float | None]:
        """For how many seconds each caller waits while the client looks for a server."""
        return [pending.request.retry_for for pending in self.traffic.not_granted()]

    def poll(self) -> None:
        """Leave the sessions of closed loops. Send what the server must get, and ask it for news if
        a caller waits or sleeps.
        """
        self.queue.routing.leave_closed()
        try:
            self.machine.poll(monotonic())
        finally:
            self._schedule()
            if self.queue.whole is not None:  # callers that are held back have new deadlines
                self._set_timer()

    # After each input -----------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Send the next call at once, or let the client send it at the end of the loop's turn.

        If the client knows of it already, check that it is not late.
        """
        whole = self.queue.whole
        if self.traffic.state is SCHEDULED and self._client_knows:
            self.client.sending.check_flush()
        elif self.traffic.state is SCHEDULED and (whole is None or whole.routing.allows(self)):
            self._client_knows = True
            try:
                node, at_once = self.node, self.machine.next_call.leaves_at_once()
                if not (at_once and node is not None and node.send_at_once(self)):
                    self.client.sending.ready(self)
            except BaseException:
                self._client_knows = False
                raise

    def _update(self) -> None:
        """Carry out what the session wants."""
        traffic = self.traffic
        if traffic.pause_news is not None:
            news, traffic.pause_news = traffic.pause_news, None
            self.queue.routing.note_pause(*news)
        if self.machine.polls.moment < inf:  # callers wait for a notification
            self.client.subscriptions.listen(self)
        try:
            self._schedule()
        except Exception as interrupt:  # the call is sent later, and no caller should fail for it
            self.client.loop.call_exception_handler(
                {"message": "headgate sends a call again", "exception": interrupt}
            )
        if traffic.failure is not None:
            self.why, traffic.failure = str(traffic.failure), None
            self._failed_deliveries += 1
            if traffic.owes:
                self.client.availability.backlog.add(self, self._failed_deliveries)
        if traffic.outage is not None:
            error, traffic.outage = traffic.outage, None
            self.client.availability.note_outage(self, error)
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer, unless the present one is early enough.

        A timer that fires in vain costs less than one that is set and cancelled for each call. A
        timer of uvloop may fire early, because it counts whole milliseconds. Then it is set again.
        """
        moment = self.machine.next_moment()
        if moment >= self._moment or self.client.closed:
            return
        if self._timer is not None:
            self._timer.cancel()
        # The timer keeps the session alive only if it owes something. Otherwise its permits do so:
        # a permit keeps its queue alive, and the queue its sessions.
        session_of: Callable[[], LoopSession | None]
        session_of = (lambda: self) if self.traffic.owes else ref(self)
        delay = max(0.0, moment - monotonic())
        self._timer = self.client.loop.call_later(delay, on_time, session_of)
        self._moment = moment

    def halt(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._moment = None, inf

    def on_time(self) -> None:
        self._timer, self._moment = None, inf
        now = monotonic()
        try:
            if self.machine.polls.moment <= now:
                self.queue.routing.leave_closed()
            self.machine.on_time(now)
        finally:  # The exception of a signal handler must not stop the timer.
            self._update()

    # The end of a caller, and of the loop ---------------------------------------------------------

    def leave(self, pending: PendingAcquire) -> None:
        """The coroutine that waits for `pending` ends without its grant.

        The collector may close it where its loop does not run: that loop may be stopped, closed or
        another thread's. In the child of a fork it belongs to the parent, and stays as it is.
        """
        client = self.client
        if client.process != os.getpid():
            return
        # A call keeps `pending` until its reply. A failed future would keep its caller's frames for
        # as long, so `pending` gets another one.
        pending.future = client.loop.create_future()
        pending.future.cancel()
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
        if pending.permit is not None and not self.hand_over(pending.permit):
            pending.permit.release()
        self.machine.end(pending)
        self.traffic.give_up(pending)
        self._schedule()

    def move(self, client: Client) -> None:
        """Go on in the loop of `client`, once. No caller waits there: the former loop has ended."""
        if not self.client.closed:
            return
        client.adopted.add(self)
        self.client, self.node, self._client_knows = client, None, False
        self.halt()
        self.machine.take_over(monotonic())
        self._update()


def on_time(session_of: Callable[[], LoopSession | None]) -> None:
    """The moment of a session's timer has come, if the session still exists."""
    session = session_of()
    if session is not None:
        session.on_time()


class LoopAcquire(PendingAcquire):
    """An acquire that a task of a loop awaits."""

    __slots__ = ()

    def refuse(self, error: Exception) -> None:
        """Fail from any thread, unless the grant is already there."""
        with suppress(RuntimeError):  # its loop is closed
            cast("Future[Any]", self.future).get_loop().call_soon_threadsafe(self.resolve, error)


def issued(
    session: LoopSession, pending: PendingAcquire, grant: Grant, waited: float
) -> Permit | None:
    """The permit of a grant. The session renews it from now on.

    None: the caller enters a block, and its limits hold nothing.
    """
    if pending.enters and pending.certain_until is None:
        return None
    permit = Permit(
        session.queue.issuer,
        pending.request.units,
        grant,
        waited,
        pending.caller,
        pending.certain_until,
        session,
    )
    if permit.held:
        expected = session.machine.renewal.expected
        session.hold(permit, expected[pending])
        del expected[pending]
    return permit


def count_refusal(name: str, pending: PendingAcquire, error: BaseException) -> None:
    request, reason = pending.request, reason_of(error)
    if reason == "store_error" and not request.raises:
        return  # the acquire goes on without the store, and is counted there
    if reason == "too_long" and isinstance(request, Try):
        reason = "not_now"
    waited = monotonic() - pending.start if pending.queued else None
    note_refusal(counts_of(name), name, reason, waited)


async def await_grant(pending: PendingAcquire, on_wait: OnWait, name: str) -> Grant:
    """The grant of an acquire whose request has an `on_wait`.

    Raises RuntimeError in the child if `on_wait` forks the process.
    """
    outcome = await cast("Future[Any]", pending.future)
    if isinstance(outcome, Waiting):
        if not (pending.t or pending.future.done()):  # no outcome has arrived since
            process = os.getpid()
            on_wait(outcome)
            if os.getpid() != process:
                raise fork_error(name)
        outcome = await cast("Future[Any]", pending.future)
    return cast("Grant", outcome)


def abandon(promise: Promise) -> None:
    """Cancel a future that may belong to a loop that is closed."""
    with suppress(RuntimeError):
        promise.cancel()


def retrieve_error(future: Future[Any]) -> None:
    """Retrieve the error of `future`, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()
