"""A lane: what one event loop has going on under one name.

Here live the requests on their way and the waiters; a lane numbers its calls and its callers, and acts on what the script says. It
decides nothing. Every method runs in the lane's own loop.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import ref

from headgate.errors import StoreError
from headgate.gate.gate import Grant
from headgate.request import Request
from headgate.stores.redis.protocol.messages import (
    Answer,
    Command,
    Errand,
    Sent,
    Ticket,
    answers_in,
    back,
    chores,
    heard,
    letters_in,
    nobody,
    runs,
    settle,
)
from headgate.stores.redis.protocol.script import library
from headgate.stores.redis.session.delivery import kept, leave, turned_away
from headgate.stores.redis.session.lease_renewal import Renewals
from headgate.stores.redis.session.local_handoff import Succession
from headgate.stores.redis.session.recovery import Recovery
from headgate.stores.redis.session.reply_timeouts import Patience
from headgate.stores.redis.session.reservations import Bookings
from headgate.stores.redis.transport.endpoint import REPLY_TIMEOUT
from headgate.stores.redis.transport.failures import refused
from headgate.stores.refusals import never, queue_full, too_long

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle
    from collections.abc import Iterable, Sequence

    from headgate.gate.rules import Declaration
    from headgate.stores.redis.queue import RedisLine
    from headgate.stores.redis.transport.client import Link
    from headgate.stores.redis.transport.node import Peer

HORIZON = 50_000  # microseconds: moments so near are booked now, and slept until
MARGIN = 0.5 * HORIZON / 1_000_000  # seconds before its moment at which the head asks for it
HEARTBEAT = 3.0  # seconds of silence after which a lane with waiters shows that it lives: a third of the script's WAITER
GRACE = 0.1  # seconds after its estimate at which a waiter asks what became of it
MOST = 1000  # callers in one call (S9)
FAR = 50  # places in the queue, from where on a round trip more or less makes no difference


class Lane:
    """The traffic of one name on one link."""

    def __init__(self, link: Link, line: RedisLine) -> None:
        self.link = link
        self.line = line
        self.key = line.key
        self.peer: Peer | None = None  # where its calls go: the link's to know, as is
        self.met: bool | None = None  # whether the last was answered; None: there was none
        self._session = link.new_session()
        self._call, self._number = 0, 0
        self._known, self._server = (
            0,
            0,
        )  # the last of them that was carried out, as far as we know, and the server's clock then
        self._tickets: list[Ticket] = []  # to be sent
        self._errands: list[Errand] = []  # to be sent
        self._sent: Sent | None = None
        self._owed: Sent | None = (
            None  # a call of which nobody knows whether it was run: sent again before any other
        )
        self._waiting: OrderedDict[int, Ticket] = (
            OrderedDict()
        )  # asked, in order; a dict forgets its first slowly
        self._gone: dict[
            int, Ticket
        ] = {}  # given up, and perhaps granted before the server hears of that
        self._booked = Bookings(link.loop)  # granted, and sleeping until their moments
        self._early: list[str] = []  # announcements that were faster than the reply before them
        self._quits = False  # more waiters than a call can name have given up: the session ends, with all its places
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
        self._patience = Patience(self)
        self.why = (
            "it has not answered in time"  # what stood in the way of the last call that failed
        )
        self._in_vain = 0  # how often it could not be sent what is owed, since it was answered last
        self.renewals = Renewals(self)
        self.succession = Succession(self)
        self.recovery = Recovery(self)
        line.declare_in_time(link.loop)

    # What the line asks for ----------------------------------------------------------------------------------------------

    async def acquire(self, request: Request, enters: bool = False) -> tuple[Grant, Ticket]:
        """The grant of `request`, at its moment. Who `enters` never sees its permit, and may take over `ticket.permit` instead."""
        self._number += 1
        ticket = Ticket(self._number, request, self.link.loop.create_future(), enters)
        if request.max_sleep is not None:
            self._patience.listen(ticket, request.max_sleep / 1_000_000 or REPLY_TIMEOUT)
        try:
            request.closing.begin(ref(ticket))
            self._tickets.append(ticket)
            self._send()
            return await (
                ticket.future
                if request.on_wait is None
                else heard(ticket, request.on_wait, self.line.name)
            ), ticket
        except BaseException:
            leave(self, ticket)
            raise
        finally:
            request.closing.end(ref(ticket))
            self.renewals.expected.discard(ticket)
            if ticket.deadline is not None:
                ticket.deadline.cancel()

    async def ask(self, words: str) -> Sequence[Any]:
        """The answer to any other request."""
        return await self.answer_to(words)

    def answer_to(self, words: str) -> Future[Sequence[Any]]:
        """A future for the reply to `words`."""
        future: Future[Sequence[Any]] = self.link.loop.create_future()
        self.run([Errand(words, functools.partial(settle, future))])
        return future

    def post(self, words: str) -> None:
        """A request whose answer nobody waits for."""
        self.run([Errand(words, nobody)])

    def run(self, errands: list[Errand]) -> None:
        self._errands += errands
        self._send()

    def idle(self) -> bool:
        """Whether nothing would be missed if this lane were forgotten."""
        waits = (
            self._tickets,
            self._queued,
            self._sent,
            self.owes,
            self._waiting,
            self._booked.queue,
        )
        return not any(waits) and not self.renewals.planned

    @property
    def owes(self) -> bool:
        """Whether there is something that the server has to hear, though nobody waits for the answer."""
        return bool(self._errands or self._owed or self._quits)

    @property
    def waits(self) -> bool:
        return bool(self._waiting)

    @property
    def paused(self) -> bool:
        """Whether nobody passes at present, as far as is known here."""
        return self._booked.pause_left > 0

    def first(self) -> Ticket | None:
        """Who waits here before all others."""
        return next(iter(self._waiting.values())) if self._waiting else None

    def crowd(self) -> tuple[int, int]:
        """How many wait here, and the number of the last of them."""
        return len(self._waiting), next(reversed(self._waiting), 0)

    def withdraw(self, ticket: Ticket) -> None:
        """It needs its place no more; the next call says so."""
        del self._waiting[ticket.number]
        self._cancel(ticket)

    def send_errands(self) -> None:
        if self.owes:
            self._send()

    def look(self) -> None:
        """Leave the lanes of closed loops. Ask for news if a task waits."""
        self.line.leave_closed()
        if self._waiting:
            self._send()

    # Sending -------------------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        if self._queued or self._sent is not None:
            return
        if self._hears:
            self._wanted = True
            return
        self._queued = True
        if self._presses():
            self.link.at_once(self)
        else:
            self.link.ready(self)

    def _presses(self) -> bool:
        """Whether what is to be sent does not wait for the end of the turn.

        A request leaves at once if the last call carried one. What is given back leaves at once if
        no caller was found waiting, or if the queue is so long that another call makes no
        difference. Otherwise its caller may ask again in the same turn, and that is one call.
        """
        if self._errands and self._errands[-1].words.startswith("settle "):
            return False  # what was settled for is given back in the same turn
        if self._tickets:
            return self._alone
        return (self._alone and self._calm) or (self._singly and self._far)

    def command(self) -> Command:
        """What is to be sent next; the same again if it is not answered.

        The collector may drop permits in the middle of this: until the call stands, nothing else must be sent.
        """
        self._sent, self._owed = self._owed or self._next(), None
        self._queued = False
        return self._sent.command

    def _next(self) -> Sent:
        self._call += 1
        tickets, errands = self._load()
        declared, how = self.line.said(bool(tickets or self._waiting), errands)
        command = self._written(tickets, errands, declared, how)
        ahead, letters = self.succession.ahead(), self.succession.letters
        for ticket in tickets:
            ticket.session, ticket.last = self._session, tickets[-1].number
            self._waiting[ticket.number] = ticket
        at = self._session, self._call, declared.program, declared.lease, monotonic()
        return Sent(command, *at, tickets, errands, ahead, letters)

    def _load(self) -> tuple[list[Ticket], list[Errand]]:
        """What goes into one call."""
        if self._quits:
            return [], [Errand(f"quit {self._session} *", self._left)]
        tickets, self._tickets = self._tickets, []
        errands, self._errands = self._errands, []
        asked = [ticket for ticket in tickets if not ticket.future.done()]
        self._tickets[:0] = asked[MOST:]
        self._errands[:0] = errands[MOST:]
        return asked[:MOST], errands[:MOST]

    def _written(
        self, tickets: list[Ticket], errands: list[Errand], declared: Declaration, declares: int
    ) -> Command:
        waits, keys = bool(self._waiting), self.line.keys(declared, declares)
        header: tuple[Any, ...] = (len(keys), *keys, declared.program, self._session, self._call)
        if (
            self._calm
            and len(tickets) == 1
            and not (errands or waits or declares or self.recovery.doubts)
        ):
            request = tickets[0].request
            return Command(
                library().quick,
                (*header, tickets[0].number, request.text, *declared.costs(request.units)),
            )
        script = library().whole if tickets else library().back
        heard, stands = (
            self.recovery.last_reply(self._known, self._server),
            int(waits) + 2 * self.link.counts(self),
        )
        header = (*header, declares, heard, stands, HORIZON)
        return Command(
            script, (*header, *chores(errands), *runs(tickets)), bool(errands) and not self._calm
        )

    # Hearing -------------------------------------------------------------------------------------------------------------

    def answered(self, reply: Any) -> None:
        """Act on the reply to the last command."""
        sent = self._sent
        assert sent is not None, "a reply answers a call"
        if isinstance(reply, Exception):
            self._refused(f"{reply}", reply)
            return
        verdict, words = "more", []
        if reply is not None:
            session, number, verdict, *words = reply.decode().split(" ")
            if (session, int(number)) != (sent.session, sent.number):
                raise StoreError("it gave the reply to another call")
        self._sent = None
        if verdict == "ok":
            self._known, self._in_vain = sent.number, 0
        self._alone = verdict == "ok" and len(sent.tickets) + len(sent.errands) == 1
        self._singly = len(sent.errands) == 1 if sent.errands else self._singly
        self._hears, self._wanted = True, False
        try:
            self._act_on(sent, verdict, words)
        except Exception as senseless:
            self._sent = sent  # of those whom it answers some may not have heard
            self._refused("what it replied to a script makes no sense", senseless)
            raise
        finally:
            self._hears = False
        if not (self._tickets or self._owed):
            self._patience.over()
        self._catch_up()
        if self._wanted or self._tickets or self._errands:
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
        self.succession.answered(sent, self._server, declared=False)
        ticket, now = sent.tickets[0], self._server
        if self._waiting.pop(ticket.number, None) or ticket.future.done():
            self._granted(ticket, Grant(now + int(words[5]), now + int(words[6])), sent.lease, now)

    def _accept(self, sent: Sent, words: list[str]) -> None:
        self.line.carried(sent.program, sent.how)
        self.asked_at, self.lease, self._server = sent.at, sent.lease, int(words[0])
        self.succession.answered(sent, self._server, declared=sent.declares)
        head, mine = int(words[1]), words[2] == "1"
        ahead, at_once, rest = None, True, iter(words[3:])
        answers = answers_in(rest, sent.program, self._server)
        for errand, answer in zip(sent.errands, answers, strict=False):
            errand.told(answer)
        for ticket, (kind, number, fence) in zip(sent.tickets, answers, strict=False):
            if ticket.number in self._waiting or ticket.future.done():
                self._decided(ticket, kind, number, fence)
            if kind != "grant":
                at_once = False
                if kind == "wait" and ahead is None:
                    ahead = fence
        unclaimed = self.recovery.unclaimed(
            self._mail(islice(rest, 1, None), self._server), self._server
        )
        self.succession.joined(sent, ahead)
        self._far = (ahead or 0) >= FAR if sent.tickets else self._far
        if (
            self._waiting or self._booked.queue or sent.tickets
        ):  # what was given back does not say whether there is room
            self._calm = at_once and not (self._waiting or self._booked.queue)
        if self._gone and not self._quits:  # of all others the server knows now
            owed = set(self._errands)
            self._gone = {
                number: ticket for number, ticket in self._gone.items() if ticket.cancel in owed
            }
        self._plan(head if mine else None)
        if unclaimed:
            self._ask_again(list(self._waiting.values()))

    def _decided(self, ticket: Ticket, kind: str, number: int, fence: int) -> None:
        if ticket.t:
            return  # heard of by an announcement, which was faster
        if kind == "wait":
            self._wait(ticket, number, fence)
            return
        self._waiting.pop(ticket.number, None)
        if kind == "grant":
            self._granted(ticket, Grant(number, fence), self.lease, self._server)
        elif kind == "never":
            ticket.settle(never(self.line.name, self.line.declared, ticket.request))
        elif kind == "full":
            ticket.settle(queue_full(self.line.name, ticket.request, number, fence))
        else:
            ticket.settle(too_long(self.line.name, ticket.request, number))

    def _wait(self, ticket: Ticket, delay: int, position: int) -> None:
        ticket.due = monotonic() + delay / 1_000_000 if delay else inf
        if ticket.future.done():
            self._waiting.pop(ticket.number, None)
            self._cancel(ticket)
            self._send()
            return
        ticket.tell(position, delay)
        ticket.hope = inf
        self._patience.limit_wait(ticket)

    def heard(self, announcement: str) -> None:
        """Act on an announcement: "session now head mail..."; it may come late, twice or never."""
        session, server, head, *mail = announcement.split()
        if session != self._session:
            return
        if (
            self._waiting
            and mail
            and mail[0].isdigit()
            and next(iter(self._waiting)) < int(mail[0])
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
        for session, server, head, *mail in map(str.split, early):
            if session == self._session:
                self._news(mail, server, head)

    def _mail(self, words: Iterable[str], server: int) -> dict[int, bool]:
        """Grants made behind our back; at the end, whether all are paused. Returns by fence whether a caller claims it."""
        words, told = list(words), {}
        pause = int(words.pop()[1:]) if words and words[-1][0] == "!" else None
        for number, t, fence, lease in letters_in(words, server):
            self.succession.letters += 1
            if number in self._waiting and fence <= self._waiting[number].fence:
                continue  # that one was taken back
            ticket = self._waiting.pop(number, None) or self._gone.pop(number, None)
            told[fence] = ticket is not None or t < 0
            if ticket is None:
                continue  # heard before, or the state has gone back
            if t < 0:
                ticket.settle(never(self.line.name, self.line.declared, ticket.request))
            else:
                self._granted(ticket, Grant(t, fence), lease, server)
        if pause is not None:
            self.succession.stop()  # who is held back stands before all others
            if self._booked.pause(server, pause):
                self._hold_back()
        return told

    def _hold_back(self) -> None:
        """Who sleeps for a moment before the end of a pause waits again, before all who were granted nothing (T3)."""
        held = self._booked.held_back(self._session)
        for ticket, grant in held:
            self._errands.append(
                Errand(
                    back(ticket, grant), functools.partial(self._held_back, ticket, ticket.session)
                )
            )
            ticket.t, ticket.fence, ticket.due = (
                0,
                grant.fence,
                monotonic() + self._booked.pause_left,
            )
            self._patience.limit_wait(ticket)
        if held:
            self._waiting = (
                OrderedDict({ticket.number: ticket for ticket, _ in held}) | self._waiting
            )
            self._send()

    def _held_back(self, ticket: Ticket, session: str, answer: Answer) -> None:
        """What the server does not know of any more is asked for anew, as one who has come last (S6)."""
        lost = not isinstance(answer, StoreError) and not answer[1]
        if lost and ticket.session == session and self._waiting.get(ticket.number) is ticket:
            del self._waiting[ticket.number]
            self._number = ticket.number = self._number + 1
            self._tickets.append(ticket)

    def _granted(self, ticket: Ticket, grant: Grant, lease: int, server: int) -> None:
        """Sleep until the moment, counted from now: the reply is younger than it was when it was sent (TL1)."""
        ticket.t = t = grant.t
        ticket.lease = lease
        self.succession.granted(ticket)
        sent_at = self._sent.at if self._sent else 0.0
        ticket.believed = self.renewals.believed(t, lease, server, self._server, sent_at)
        if ticket.future.done():
            self._give_up(ticket)
            return
        if lease:
            self.renewals.expected.add(ticket)
        if t <= server and not self._booked.queue:
            ticket.settle(grant)
        else:
            self._booked.sleep(ticket, grant, t - server)
            if self._booked.precedes_pause(grant):  # and is heard of only now
                self._hold_back()

    # Giving up -----------------------------------------------------------------------------------------------------------

    def _give_up(self, ticket: Ticket) -> None:
        """Nobody wants this ticket any more: out of the queue with it, or its grant undone, once it is known what it is."""
        on_its_way = self._sent is not None and ticket in self._sent.tickets and not ticket.t
        if not on_its_way and (ticket.number in self._waiting or ticket.t):
            self._waiting.pop(ticket.number, None)
            self._cancel(ticket)
            self._send()

    def _cancel(self, ticket: Ticket) -> None:
        """One errand for each ticket: its grant, heard of after it was given up, is told with it."""
        words = f"cancel {ticket.t} {ticket.caller}"
        if ticket.cancel is not None:
            ticket.cancel.words = words
            return
        ticket.cancel = Errand(words, nobody)
        self._errands.append(ticket.cancel)
        if not ticket.t:
            self._gone[ticket.number] = ticket

    def failed(self, error: StoreError) -> None:
        """The server is away: who has a booking keeps it, everybody else learns; what may have been granted is given back later."""
        self.why = str(error)
        sent, self._sent, self._early = (
            self._sent or self._owed,
            None,
            [],
        )  # early: the next reply has what they had
        self._owed, self._queued, self._calm = sent, False, False
        errands, self._errands = self._errands, []
        self._errands[:0] = kept(self, errands, error)
        for errand in errands + (sent.errands if sent else []):
            errand.told(error)
        on_its_way = (
            {ticket.number for ticket in sent.tickets} if sent else set()
        )  # given up when it is known what they got
        self._leave_queue(
            {number: ticket for number, ticket in self._waiting.items() if number not in on_its_way}
        )
        tickets, self._waiting, self._tickets = (
            [*self._waiting.values(), *self._tickets],
            OrderedDict(),
            [],
        )
        self.link.fail(self, tickets, error)
        self._patience.over()
        self._in_vain += 1
        if self.owes:
            self.link.offer_later(self, self._in_vain)

    def adrift(self, lost: BaseException, spent: float) -> None:
        """The call on its way has lost its connection, and there is hope: callers that do not wait so long for that fail."""
        over = [
            ticket
            for ticket in self.unanswered()
            if ticket.request.max_sleep == 0 or spent >= self.link.retry_for(ticket)
        ]
        self.link.fail(self, over, self.link.cannot(lost))

    def unanswered(self) -> list[Ticket]:
        """All who wait for the server: for a first answer, or for their turn."""
        return [*self._waiting.values(), *self._tickets]

    def unheard(self) -> list[Ticket]:
        """Who has asked and was not answered."""
        asked = self._sent or self._owed
        return [*(asked.tickets if asked else ()), *self._tickets]

    def silence(self, ticket: Ticket) -> float:
        """For how many seconds nothing has come to what it has asked."""
        return 0.0 if self._sent is None else monotonic() - max(self._sent.at, ticket.start)

    def _leave_queue(self, waiting: dict[int, Ticket]) -> None:
        """Give up many at once: one by one, or with the whole session when they are too many for one call."""
        if len(waiting) > MOST:
            self._gone.update(waiting)
            self._quits = True
            return
        for ticket in waiting.values():
            self._cancel(ticket)

    def _left(self, answer: Answer) -> None:
        """The reply to the last call of a session brings its last mail, too."""
        if not isinstance(answer, StoreError):
            self._quits = False
            self._begin_again()

    def _begin_again(self) -> None:
        """Another session, in which nobody has a place yet."""
        self._errands += self.recovery.ended(self._session)
        self._session, self._call, self._known = self.link.new_session(), 0, 0
        self.succession.forget()
        self.renewals.renew()  # what is held may be forgotten, too

    def _refused(self, refusal: str, lost: Exception) -> None:
        """The server answered with an error: what the call did before it, if anything, is undone by name."""
        sent, self._sent = self._sent, None
        begun = (
            "script" in refusal
        )  # otherwise it was turned away at the door: the server may not write, or is full
        error = refused(self.link.topology, self.line.name, refusal, lost)
        self._errands += turned_away(self, sent.errands if sent else [], error)
        self.link.fail(self, sent.tickets if sent else (), error)
        for ticket in sent.tickets if sent else []:
            self._waiting.pop(ticket.number, None)
            if begun and not ticket.t:
                self._cancel(ticket)
        self.failed(error)

    def _again(self, sent: Sent, verdict: str, words: list[str]) -> None:
        """The script has done nothing yet: it wants to know who we are now, or that we know the limits, or to be the whole one."""
        self._calm = False
        tickets = sent.tickets
        if (
            verdict == "more"
        ):  # the same as a whole call: the quick one, should it be run late after all, has its number too
            header = sent.command.words[: sent.command.words[0] + 4]
            heard = self.recovery.last_reply(self._known, self._server)
            command = Command(library().whole, (*header, 0, heard, 0, HORIZON, *runs(tickets)))
            self._owed = sent._replace(command=command)
            self._send()
            return
        if verdict in ("stale", "held"):
            wait = int(words.pop(0)) if verdict == "held" else None
            self._learn(sent, wait, self.line.read(" ".join(words)))
        else:
            tickets = list(self._waiting.values())
        if not self._quits:  # the last word of a session is written anew
            self._errands[:0] = sent.errands
        self._ask_again(tickets, begins=verdict not in ("stale", "held"))

    def _ask_again(self, tickets: list[Ticket], begins: bool = True) -> None:
        """For these callers: in a session that `begins` now, or in this one."""
        if begins:
            self._begin_again()
        for ticket in tickets:
            self._waiting.pop(ticket.number, None)
        self._tickets[:0] = tickets
        self._send()

    def _learn(self, sent: Sent, wait: int | None, holds: Declaration) -> None:
        """Other limits hold. Ours, if the call has declared them, may be declared again after `wait`; -1: an update holds."""
        if wait is not None and self.line.turned_down(sent.program, holds, wait):
            self.line.declare_in_time(self.link.loop)
        elif wait is not None or not self.line.overruled(holds):
            return  # something else was declared since the call was sent
        self.renewals.renew()

    # Time ----------------------------------------------------------------------------------------------------------------

    def _plan(self, head: int | None) -> None:
        """See to it that the head of the queue is asked for in time if it is ours, and that waiters are never silent for long."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        self.link.listen(self)
        wait = self._overdue() if head is None else head / 1_000_000
        if head is not None and wait > 2 * MARGIN:
            wait -= MARGIN
        beat = (
            min(HEARTBEAT, self.lease / 3_000_000) if self.lease else HEARTBEAT
        )  # or a grant unheard of could end unheard of
        silent = monotonic() - self.asked_at  # hearing of others shows nobody that we live (L3)
        self._timer = self.link.loop.call_later(max(0.0, min(beat - silent, wait)), self.look)

    def _overdue(self) -> float:
        """Seconds until the first waiter has a reason to wonder: a little after the estimate it was given, once."""
        first = next(iter(self._waiting.values()))
        wait = first.due + GRACE - monotonic()
        if wait <= 0:
            first.due = inf
        return max(0.0, wait)
