"""A lane: what one event loop has going on under one name.

Here live the requests on their way and the waiters; a lane numbers its calls and its callers, and acts on what the script says. It
decides nothing. Every method runs in the lane's own loop.
"""

from __future__ import annotations

import functools
import os
from collections import OrderedDict
from contextlib import suppress
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol
from weakref import ref

from headgate.errors import StoreError
from headgate.gate.gate import Grant
from headgate.request import Request
from headgate.stores.redis.protocol.messages import (
    Answer,
    Command,
    Operation,
    PendingAcquire,
    Sent,
    abandon,
    answers_in,
    back,
    chores,
    heard,
    ignore_reply,
    keys_of,
    letters_in,
    runs,
    settle,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.lease_renewal import LeaseRenewal
from headgate.stores.redis.session.local_handoff import LocalHandoff
from headgate.stores.redis.session.recovery import Recovery
from headgate.stores.redis.session.reply_timeouts import ReplyTimeouts
from headgate.stores.redis.session.traffic import Traffic
from headgate.stores.redis.session.undelivered import kept, turned_away
from headgate.stores.redis.transport.endpoint import REPLY_TIMEOUT
from headgate.stores.redis.transport.failures import refused
from headgate.stores.redis.transport.portal import portal
from headgate.stores.redis.transport.reconnection import retry_for
from headgate.stores.refusals import never, queue_full, too_long

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future, TimerHandle
    from collections.abc import Iterable, Sequence

    from headgate.gate.compile import Declaration
    from headgate.stores.redis.limit_sync import LimitSync
    from headgate.stores.redis.transport.client import Client
    from headgate.stores.redis.transport.node import Node

HORIZON = 50_000  # microseconds: moments so near are booked now, and slept until
MARGIN = 0.5 * HORIZON / 1_000_000  # seconds before its moment at which the head asks for it
HEARTBEAT = 3.0  # seconds of silence after which a lane with waiters shows that it lives: a third of the script's WAITER
GRACE = 0.1  # seconds after its estimate at which a waiter asks what became of it
FAR = 50  # places in the queue, from where on a round trip more or less makes no difference


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
        self.node: Node | None = None  # where its calls go: the link's to know, as is
        self.met: bool | None = None  # whether the last was answered; None: there was none
        self.id = client.new_session_id()
        self._call, self._number = 0, 0
        self._known, self._server = (
            0,
            0,
        )  # the last of them that was carried out, as far as we know, and the server's clock then
        self.traffic = Traffic(client.loop)
        self._early: list[str] = []  # announcements that were faster than the reply before them
        self._queued = False  # the link knows that there is something to send
        self._hears = False  # a reply is being read: what it says at its end must be known before anything is sent
        self._wanted = False  # and then there will be something to send
        self._calm = False  # the last who asked were granted it at once, and nobody waits: the next call may be quick
        self._alone = False  # the last call carried one request: the next will not wait for company
        self._singly = False  # the last call with errands carried one of them
        self._far = False  # the last who had to wait stand far from the head of the queue
        self.asked_at = 0.0  # when the call that was answered last was sent
        self.lease = 0  # of the limits that it was asked under
        self._timer: TimerHandle | None = None
        self._reply_timeouts = ReplyTimeouts(self)
        self.why = (
            "it has not answered in time"  # what stood in the way of the last call that failed
        )
        self._in_vain = 0  # how often it could not be sent what is owed, since it was answered last
        self.renewal = LeaseRenewal(self)
        self.handoff = LocalHandoff(self)
        self.recovery = Recovery(self, self.renewal)
        self.limits.declare_in_time(client.loop)

    # What the line asks for ----------------------------------------------------------------------------------------------

    async def acquire(self, request: Request, enters: bool = False) -> tuple[Grant, PendingAcquire]:
        """The grant of `request`, at its moment. Who `enters` never sees its permit, and may take over `ticket.permit` instead."""
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
                else heard(pending, request.on_wait, self.limits.name)
            ), pending
        except BaseException:
            self.leave(pending)
            raise
        finally:
            request.closing.end(ref(pending))
            self.renewal.expected.discard(pending)
            if pending.deadline is not None:
                pending.deadline.cancel()

    async def ask(self, words: str) -> Sequence[Any]:
        """The answer to any other request."""
        return await self.answer_to(words)

    def answer_to(self, words: str) -> Future[Sequence[Any]]:
        """A future for the reply to `words`."""
        future: Future[Sequence[Any]] = self.client.loop.create_future()
        self.run([Operation(words, functools.partial(settle, future))])
        return future

    def post(self, words: str) -> None:
        """A request whose answer nobody waits for."""
        self.run([Operation(words, ignore_reply)])

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
        """Whether nobody passes at present, as far as is known here."""
        return self.traffic.reserved.pause_left > 0

    def withdraw(self, pending: PendingAcquire) -> None:
        """It needs its place no more; the next call says so."""
        del self.traffic.waiting[pending.number]
        self.traffic.cancel(pending)

    def send_operations(self) -> None:
        if self.traffic.owes:
            self._send()

    def note(self, operation: Operation) -> None:
        """`operation` goes with the next call, whenever that is.

        A signal handler, a finalizer or another thread may do this in the middle of any method.
        """
        self.traffic.operations.append(operation)

    def send_noted(self) -> None:
        """Send what was noted, in the loop that was the session's then. By now another may have it."""
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
        """Leave the lanes of closed loops. Ask for news if a task waits."""
        self.queue.leave_closed()
        if self.traffic.waiting:
            self._send()

    # Sending -------------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if self._queued or self.traffic.sent is not None:
            return
        if self._hears:
            self._wanted = True
            return
        self._queued = True
        if self._presses():
            self.client.at_once(self)
        else:
            self.client.ready(self)

    def _presses(self) -> bool:
        """Whether what is to be sent does not wait for the end of the turn.

        A request leaves at once if the last call carried one. What is given back leaves at once if
        no caller was found waiting, or if the queue is so long that another call makes no
        difference. Otherwise its caller may ask again in the same turn, and that is one call.
        """
        if self.traffic.operations and self.traffic.operations[-1].words.startswith("settle "):
            return False  # what was settled for is given back in the same turn
        if self.traffic.acquires:
            return self._alone
        return (self._alone and self._calm) or (self._singly and self._far)

    def command(self) -> Command:
        """What is to be sent next; the same again if it is not answered.

        The collector may drop permits in the middle of this: until the call stands, nothing else must be sent.
        """
        self.traffic.sent, self.traffic.owed = self.traffic.owed or self._next(), None
        self._queued = False
        return self.traffic.sent.command

    def _next(self) -> Sent:
        self._call += 1
        acquires, operations = self._load()
        declared, how = self.limits.said(bool(acquires or self.traffic.waiting), operations)
        command = self._written(acquires, operations, declared, how)
        ahead, letters = self.handoff.ahead(), self.handoff.letters
        for pending in acquires:
            pending.session_id, pending.last = self.id, acquires[-1].number
            self.traffic.waiting[pending.number] = pending
        at = self.id, self._call, declared.program, declared.lease, monotonic()
        return Sent(command, *at, acquires, operations, ahead, letters)

    def _load(self) -> tuple[list[PendingAcquire], list[Operation]]:
        if self.traffic.leaving:
            return [], [Operation(f"quit {self.id} *", self._left)]
        return self.traffic.load()

    def _written(
        self,
        acquires: list[PendingAcquire],
        operations: list[Operation],
        declared: Declaration,
        declares: int,
    ) -> Command:
        waits, keys = bool(self.traffic.waiting), keys_of(self.key, declared, declares)
        header: tuple[Any, ...] = (len(keys), *keys, declared.program, self.id, self._call)
        if (
            self._calm
            and len(acquires) == 1
            and not (operations or waits or declares or self.recovery.doubts)
        ):
            request = acquires[0].request
            return Command(
                library().quick,
                (*header, acquires[0].number, request.text, *declared.costs(request.units)),
            )
        script = library().whole if acquires else library().back
        heard, stands = (
            self.recovery.last_reply(self._known, self._server),
            int(waits) + 2 * self.client.counts(self),
        )
        header = (*header, declares, heard, stands, HORIZON)
        return Command(
            script,
            (*header, *chores(operations), *runs(acquires)),
            bool(operations) and not self._calm,
        )

    # Hearing -------------------------------------------------------------------------------------------------------------

    def answered(self, reply: Any) -> None:
        """Act on the reply to the last command."""
        sent = self.traffic.sent
        assert sent is not None, "a reply answers a call"
        if isinstance(reply, Exception):
            self._refused(f"{reply}", reply)
            return
        verdict, words = "more", []
        if reply is not None:
            session_id, number, verdict, *words = reply.decode().split(" ")
            if (session_id, int(number)) != (sent.session_id, sent.number):
                raise StoreError("it gave the reply to another call")
        self.traffic.sent = None
        if verdict == "ok":
            self._known, self._in_vain = sent.number, 0
        self._alone = verdict == "ok" and len(sent.acquires) + len(sent.operations) == 1
        self._singly = len(sent.operations) == 1 if sent.operations else self._singly
        self._hears, self._wanted = True, False
        try:
            self._act_on(sent, verdict, words)
        except Exception as senseless:
            self.traffic.sent = sent  # of those whom it answers some may not have heard
            self._refused("what it replied to a script makes no sense", senseless)
            raise
        finally:
            self._hears = False
        if not (self.traffic.acquires or self.traffic.owed):
            self._reply_timeouts.over()
        self._catch_up()
        if self._wanted or self.traffic.acquires or self.traffic.operations:
            self._send()

    def _act_on(self, sent: Sent, verdict: str, words: list[str]) -> None:
        if self._alone and sent.command.script is library().quick:
            self._pass(sent, words)
        elif verdict == "ok":
            self._accept(sent, words)
        elif verdict == "unknown":
            sent.tell_unknown()
        else:
            self._again(sent, verdict, words)

    def _pass(self, sent: Sent, words: list[str]) -> None:
        """A quick call says: "now -1 0 grant 1 0 fence |"."""
        if words[3] != "grant":
            raise StoreError("it gave the reply to another call")
        self.asked_at, self.lease, self._server = sent.at, sent.lease, int(words[0])
        self.handoff.answered(sent, self._server, declared=False)
        pending, now = sent.acquires[0], self._server
        if self.traffic.waiting.pop(pending.number, None) or pending.future.done():
            self._granted(pending, Grant(now + int(words[5]), now + int(words[6])), sent.lease, now)

    def _accept(self, sent: Sent, words: list[str]) -> None:
        self.limits.carried(sent.program, sent.how)
        self.asked_at, self.lease, self._server = sent.at, sent.lease, int(words[0])
        self.handoff.answered(sent, self._server, declared=sent.declares)
        head, mine = int(words[1]), words[2] == "1"
        ahead, at_once, rest = None, True, iter(words[3:])
        answers = answers_in(rest, sent.program, self._server)
        for operation, answer in zip(sent.operations, answers, strict=False):
            operation.told(answer)
        for pending, (kind, number, fence) in zip(sent.acquires, answers, strict=False):
            if pending.number in self.traffic.waiting or pending.future.done():
                self._decided(pending, kind, number, fence)
            if kind != "grant":
                at_once = False
                if kind == "wait" and ahead is None:
                    ahead = fence
        unclaimed = self.recovery.unclaimed(
            self._mail(islice(rest, 1, None), self._server), self._server
        )
        self.handoff.joined(sent, ahead)
        self._far = (ahead or 0) >= FAR if sent.acquires else self._far
        if (
            self.traffic.waiting or self.traffic.reserved.queue or sent.acquires
        ):  # what was given back does not say whether there is room
            self._calm = at_once and not (self.traffic.waiting or self.traffic.reserved.queue)
        self.traffic.forget_abandoned()
        self._plan(head if mine else None)
        if unclaimed:
            self._ask_again(list(self.traffic.waiting.values()))

    def _decided(self, pending: PendingAcquire, kind: str, number: int, fence: int) -> None:
        if pending.t:
            return  # heard of by an announcement, which was faster
        if kind == "wait":
            self._wait(pending, number, fence)
            return
        self.traffic.waiting.pop(pending.number, None)
        if kind == "grant":
            self._granted(pending, Grant(number, fence), self.lease, self._server)
        elif kind == "never":
            pending.settle(never(self.limits.name, self.limits.declared, pending.request))
        elif kind == "full":
            pending.settle(queue_full(self.limits.name, pending.request, number, fence))
        else:
            pending.settle(too_long(self.limits.name, pending.request, number))

    def _wait(self, pending: PendingAcquire, delay: int, position: int) -> None:
        pending.due = monotonic() + delay / 1_000_000 if delay else inf
        if pending.future.done():
            self.traffic.waiting.pop(pending.number, None)
            self.traffic.cancel(pending)
            self._send()
            return
        pending.tell(position, delay)
        pending.hope = inf
        self._reply_timeouts.limit_wait(pending)

    def heard(self, announcement: str) -> None:
        """Act on an announcement: "session now head mail..."; it may come late, twice or never."""
        session_id, server, head, *mail = announcement.split()
        if session_id != self.id:
            return
        if (
            self.traffic.waiting
            and mail
            and mail[0].isdigit()
            and next(iter(self.traffic.waiting)) < int(mail[0])
        ):
            self._early.append(
                announcement
            )  # those before were granted, too, and a reply tells of it: each in its turn (S6)
            self._send()
        else:
            self._news(mail, server, head)

    def _news(self, mail: list[str], server: str, head: str) -> None:
        told = self._mail(mail, int(server))
        self.recovery.hear(told, int(server))
        self._plan(int(head) if head != "-1" else None)
        if not all(told.values()) and int(server) > self._server:
            self._send()  # no reply has told of them yet: the next one shows whether they are news

    def _catch_up(self) -> None:
        early, self._early = self._early, []
        for session_id, server, head, *mail in map(str.split, early):
            if session_id == self.id:
                self._news(mail, server, head)

    def _mail(self, words: Iterable[str], server: int) -> dict[int, bool]:
        """Grants made behind our back; at the end, whether all are paused. Returns by fence whether a caller claims it."""
        words, told = list(words), {}
        pause = int(words.pop()[1:]) if words and words[-1][0] == "!" else None
        for number, t, fence, lease in letters_in(words, server):
            self.handoff.letters += 1
            if number in self.traffic.waiting and fence <= self.traffic.waiting[number].fence:
                continue  # that one was taken back
            pending = self.traffic.waiting.pop(number, None) or self.traffic.abandoned.pop(
                number, None
            )
            told[fence] = pending is not None or t < 0
            if pending is None:
                continue  # heard before, or the state has gone back
            if t < 0:
                pending.settle(never(self.limits.name, self.limits.declared, pending.request))
            else:
                self._granted(pending, Grant(t, fence), lease, server)
        if pause is not None:
            self.handoff.stop()  # who is held back stands before all others
            if self.traffic.reserved.pause(server, pause):
                self._hold_back()
        return told

    def _hold_back(self) -> None:
        """Who sleeps for a moment before the end of a pause waits again, before all who were granted nothing (T3)."""
        held = self.traffic.reserved.held_back(self.id)
        for pending, grant in held:
            self.traffic.operations.append(
                Operation(
                    back(pending, grant),
                    functools.partial(self._held_back, pending, pending.session_id),
                )
            )
            pending.t, pending.fence, pending.due = (
                0,
                grant.fence,
                monotonic() + self.traffic.reserved.pause_left,
            )
            self._reply_timeouts.limit_wait(pending)
        if held:
            self.traffic.waiting = (
                OrderedDict({pending.number: pending for pending, _ in held}) | self.traffic.waiting
            )
            self._send()

    def _held_back(self, pending: PendingAcquire, session_id: str, answer: Answer) -> None:
        """What the server does not know of any more is asked for anew, as one who has come last (S6)."""
        lost = not isinstance(answer, StoreError) and not answer[1]
        if (
            lost
            and pending.session_id == session_id
            and self.traffic.waiting.get(pending.number) is pending
        ):
            del self.traffic.waiting[pending.number]
            self._number = pending.number = self._number + 1
            self.traffic.acquires.append(pending)

    def _granted(self, pending: PendingAcquire, grant: Grant, lease: int, server: int) -> None:
        """Sleep until the moment, counted from now: the reply is younger than it was when it was sent (TL1)."""
        pending.t = t = grant.t
        pending.lease = lease
        self.handoff.granted(pending)
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
            if self.traffic.reserved.precedes_pause(grant):  # and is heard of only now
                self._hold_back()

    def fail(self, acquires: Iterable[PendingAcquire], error: StoreError) -> None:
        """Their callers get `error`."""
        failed = [pending for pending in acquires if not pending.future.done()]
        for pending in failed:
            pending.settle(error)
        if any(pending.request.raises for pending in failed):
            self.client.note_outage(self, error)

    def cannot(self, lost: BaseException) -> StoreError:
        return self.client.cannot(lost)

    # Giving up -----------------------------------------------------------------------------------------------------------

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
                portal().tell(functools.partial(self._leave, pending))
            else:
                client.loop.call_soon_threadsafe(self._leave, pending)

    def _leave(self, pending: PendingAcquire) -> None:
        if self.client.closed:
            self.rescue()
        if pending.permit is not None and not self.handoff.hand_over(pending.permit):
            pending.permit.release()
        self._give_up(pending)

    def _give_up(self, pending: PendingAcquire) -> None:
        """Nobody wants this ticket any more: out of the queue with it, or its grant undone, once it is known what it is."""
        if not self.traffic.may_be_on_its_way(pending) and (
            pending.number in self.traffic.waiting or pending.t
        ):
            self.traffic.waiting.pop(pending.number, None)
            self.traffic.cancel(pending)
            self._send()

    def failed(self, error: StoreError) -> None:
        """The server is away: who has a booking keeps it, everybody else learns; what may have been granted is given back later."""
        self.why = str(error)
        sent, self.traffic.sent, self._early = (
            self.traffic.sent or self.traffic.owed,
            None,
            [],
        )  # early: the next reply has what they had
        self.traffic.owed, self._queued, self._calm = sent, False, False
        operations, self.traffic.operations = self.traffic.operations, []
        self.traffic.operations[:0] = kept(self.name, operations, error)
        for operation in operations + (sent.operations if sent else []):
            operation.told(error)
        on_its_way = (
            {pending.number for pending in sent.acquires} if sent else set()
        )  # given up when it is known what they got
        self.traffic.cancel_all(
            {
                number: pending
                for number, pending in self.traffic.waiting.items()
                if number not in on_its_way
            }
        )
        acquires, self.traffic.waiting, self.traffic.acquires = (
            [*self.traffic.waiting.values(), *self.traffic.acquires],
            OrderedDict(),
            [],
        )
        self.fail(acquires, error)
        self._reply_timeouts.over()
        self._in_vain += 1
        if self.traffic.owes:
            self.client.reconnection.offers.add(self, self._in_vain)

    def adrift(self, lost: BaseException, spent: float) -> None:
        """The call on its way has lost its connection, and there is hope: callers that do not wait so long for that fail."""
        over = [
            pending
            for pending in self.traffic.unanswered()
            if pending.request.max_sleep == 0 or spent >= retry_for(pending.request.retry_for)
        ]
        self.fail(over, self.client.cannot(lost))

    def doubt(self) -> None:
        """The connection is lost."""
        self.recovery.doubt()

    def patience(self) -> list[float | None]:
        """For how many seconds each caller lets a server be looked for."""
        return [pending.request.retry_for for pending in self.traffic.unanswered()]

    def _left(self, answer: Answer) -> None:
        """The reply to the last call of a session brings its last mail, too."""
        if not isinstance(answer, StoreError):
            self.traffic.leaving = False
            self._begin_again()

    def _begin_again(self) -> None:
        """Another session, in which nobody has a place yet."""
        self.traffic.operations += self.recovery.ended(self.id)
        self.id, self._call, self._known = self.client.new_session_id(), 0, 0
        self.handoff.forget()
        self.renewal.renew()  # what is held may be forgotten, too

    def _refused(self, refusal: str, lost: Exception) -> None:
        """The server answered with an error: what the call did before it, if anything, is undone by name."""
        sent, self.traffic.sent = self.traffic.sent, None
        begun = (
            "script" in refusal
        )  # otherwise it was turned away at the door: the server may not write, or is full
        error = refused(self.client.topology, self.limits.name, refusal, lost)
        self.traffic.operations += turned_away(self.name, sent.operations if sent else [], error)
        self.fail(sent.acquires if sent else (), error)
        for pending in sent.acquires if sent else []:
            self.traffic.waiting.pop(pending.number, None)
            if begun and not pending.t:
                self.traffic.cancel(pending)
        self.failed(error)

    def _again(self, sent: Sent, verdict: str, words: list[str]) -> None:
        """The script has done nothing yet: it wants to know who we are now, or that we know the limits, or to be the whole one."""
        self._calm = False
        acquires = sent.acquires
        if (
            verdict == "more"
        ):  # the same as a whole call: the quick one, should it be run late after all, has its number too
            header = sent.command.words[: sent.command.words[0] + 4]
            heard = self.recovery.last_reply(self._known, self._server)
            command = Command(library().whole, (*header, 0, heard, 0, HORIZON, *runs(acquires)))
            self.traffic.owed = sent._replace(command=command)
            self._send()
            return
        if verdict in ("stale", "held"):
            wait = int(words.pop(0)) if verdict == "held" else None
            self._learn(sent, wait, self.limits.read(" ".join(words)))
        else:
            acquires = list(self.traffic.waiting.values())
        if not self.traffic.leaving:  # the last word of a session is written anew
            self.traffic.operations[:0] = sent.operations
        self._ask_again(acquires, begins=verdict not in ("stale", "held"))

    def _ask_again(self, acquires: list[PendingAcquire], begins: bool = True) -> None:
        """For these callers: in a session that `begins` now, or in this one."""
        if begins:
            self._begin_again()
        for pending in acquires:
            self.traffic.waiting.pop(pending.number, None)
        self.traffic.acquires[:0] = acquires
        self._send()

    def _learn(self, sent: Sent, wait: int | None, holds: Declaration) -> None:
        """Other limits hold. Ours, if the call has declared them, may be declared again after `wait`; -1: an update holds."""
        if wait is not None and self.limits.turned_down(sent.program, holds, wait):
            self.limits.declare_in_time(self.client.loop)
        elif wait is not None or not self.limits.overruled(holds):
            return  # something else was declared since the call was sent
        self.renewal.renew()

    # Time ----------------------------------------------------------------------------------------------------------------

    def _plan(self, head: int | None) -> None:
        """See to it that the head of the queue is asked for in time if it is ours, and that waiters are never silent for long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.traffic.waiting:
            return
        self.client.listen(self)
        wait = self._overdue() if head is None else head / 1_000_000
        if head is not None and wait > 2 * MARGIN:
            wait -= MARGIN
        beat = (
            min(HEARTBEAT, self.lease / 3_000_000) if self.lease else HEARTBEAT
        )  # or a grant unheard of could end unheard of
        silent = monotonic() - self.asked_at  # hearing of others shows nobody that we live (L3)
        self._timer = self.client.loop.call_later(max(0.0, min(beat - silent, wait)), self.look)

    def _overdue(self) -> float:
        """Seconds until the first waiter has a reason to wonder: a little after the estimate it was given, once."""
        first = next(iter(self.traffic.waiting.values()))
        wait = first.due + GRACE - monotonic()
        if wait <= 0:
            first.due = inf
        return max(0.0, wait)
