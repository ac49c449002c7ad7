"""The oracle: `headgate.gate.gate.Gate` and, around it, the script's additions on a server, as
plain and slow as can be.

This module has sessions that fall silent, holders whose leases end, notifications for others, and
replies that are kept for a replay. It also has keys that get lost, and the bounds on the work of
one call. The model knows nothing of scores or texts: those are the script's.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import islice

from headgate.gate.concurrency import NEVER, ConcurrencyRule
from headgate.gate.gate import Gate, Grant, Refuse, Units, Wait
from tests.twins.kept import (
    PatientGate,
    Record,
    Replaced,
    client_of,
    done,
    end_that_says,
    rules_of,
    units_of,
)
from tests.twins.wire import (
    Acquire,
    Amend,
    Answer,
    Call,
    Caller,
    Cancel,
    Declared,
    Drain,
    Pause,
    PauseWhole,
    Quit,
    Rejoin,
    Release,
    Renew,
    Reply,
    Request,
    Reset,
    Resume,
    Settle,
    Status,
    Update,
    merged,
)

# How long a silent session keeps its places, and its replies after that.
SESSION_LIFE, KEEP = 10_000_000, 30_000_000
UNHEARD = 4_000_000  # after its last call, a session without receivers is dead
SOON = 3 * SESSION_LIFE // 10  # a waiter asks by itself after that
SLACK = 60_000_000  # keys live for so much longer than they must
LATER = 2**60  # microseconds: in a Cluster the members live as long as the state
DAY = 86_400_000_000  # for which an update is remembered in any case
# How the session of a process' threads ends: its calls and its callers have the same numbers.
THREADS = ".0"
MOST = 2**52  # of anything that is counted, so no call has a higher number
CLEANUP = 100  # the dead, the ended and the forgotten that one look gets rid of (S9)
GRANTS = 1000  # the most grants of one call to waiters (S9)

OutboxItem = tuple[int, int, int, int]  # number, moment, fence, lease


@dataclass
class Model:
    """The state of one name, and `call`."""

    gate: PatientGate | None = None
    program: str = ""
    offered: bool = False  # no process has declared the program: it was paused or drained
    replaced: Replaced = field(default_factory=Replaced)
    until: int = 0  # for an update or a pause, everything is remembered at least until then
    records: dict[str, Record] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)  # sessions, and until when
    members_end: int = 0  # until when the key of the members lives; 0: there is none
    tidied_at: int = 0  # when the name was last made small
    outbox: defaultdict[str, list[OutboxItem]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[Caller, int] = field(default_factory=dict)
    next_expiry: int = 0
    held: int = 0  # how many holders the state knows of
    queued: int = 0  # waiters that were there after the last call
    restarted_at: int = 0  # the queue was lost, and begun anew, at this moment
    sweep: int = 0
    cursor: int = 0
    notified: tuple[Caller, int] | None = None
    acted: bool = False  # the last call was carried out: no replay, no question in return
    granted: list[tuple[Caller, Grant]] = field(default_factory=list)  # by the last call, in order
    notifications: list[tuple[str, int, int, int, tuple[OutboxItem, ...]]] = field(
        default_factory=list
    )
    unheard: Collection[str] = ()  # clients that receive no notification of the present call
    run: int = 0  # of the server that runs the present call
    # Waiters before all that were granted nothing, by fence.
    first: dict[Caller, int] = field(default_factory=dict)

    def call(
        self,
        call: Call,
        now: int,
        unheard: Collection[str] = (),
        run: int = 0,
    ) -> Reply:
        """The reply to `call`.

        The clients in `unheard` receive no notification. `run`: of the server that runs it.
        """
        self.unheard, self.run = unheard, run
        self.acted, self.granted, self.notifications = False, [], []
        record = self.records.get(call.session)
        if record is not None and call.number <= record.last:
            late = Reply(call.session, call.number, "late")
            return record.reply if call.number == record.last else late
        alive_until = 0 if record is None else record.alive_until
        if self.gate is None:
            if call.received != "0":
                return Reply(call.session, call.number, "lapsed")
            if call.declares == 3:
                return Reply(call.session, call.number, "unknown")
            self.begin(call.program, now)
            self.offered = call.declares == 4
        elif self.offered:  # a call that declares nothing goes by it, and any other replaces it
            if call.declares == 3 and call.program != self.program:
                return Reply(call.session, call.number, "offer", self.program)
        elif call.program != self.program and not call.may_replace:
            return Reply(call.session, call.number, "stale", self.program)
        elif call.program != self.program and (
            wait := self.replaced.withheld(call, max(now, self.gate.t))
        ):
            return Reply(call.session, call.number, "held", self.program, wait)
        fast = self.is_fast(call, now)
        gate = self.opened(call.session, now, fast)
        received = call.received == "0" or (
            record is not None and record.reply.beginning == call.received
        )
        if (
            call.waits and (alive_until <= gate.t or alive_until < self.restarted_at + SESSION_LIFE)
        ) or not received:
            return self.lapse(call)
        self.acted = True
        self.expire_holders(gate)
        if call.declares == 2:
            self.until = max(self.until, gate.t + DAY)
        if (call.program != self.program and not self.offered) or call.declares == 2:
            self.replaced.replace(call, self.program, self.program, gate.t)
        elif call.declares == 1:
            self.replaced.confirm()
        if call.program != self.program:
            self.follow(gate, call.program, now)
        kept = self.outbox.pop(call.session, None) if fast else None
        reply = Turn(self, call, gate).reply(alive_until, fast)
        if kept:  # the fast path does not read it
            self.outbox[call.session] = kept
        self.offered = self.offered and call.declares in (3, 4)
        return reply

    def lapse(self, call: Call) -> Reply:
        """The session is over, and a copy of an earlier call comes too late."""
        lapsed = Reply(call.session, call.number, "lapsed")
        self.quit(call.session)
        if call.session in self.records:
            self.records[call.session] = Record(call.number, 0, lapsed)
        self.extend()
        return lapsed

    def quit(self, session: str) -> None:
        assert self.gate is not None
        self.enlist()
        if session in self.alive:
            self.alive[session] = self.gate.t
        if session in self.records:
            self.records[session].alive_until = self.records[session].listened = 0
        self.outbox.pop(session, None)

    # Beginnings -----------------------------------------------------------------------------------

    def begin(self, program: str, now: int) -> None:
        self.replaced, self.until, self.offered = Replaced(), 0, False
        self.gate, self.program = PatientGate(rules_of(program), now), program
        self.alive, self.holders, self.members_end, self.tidied_at = {}, {}, 0, 0
        self.next_expiry, self.held, self.queued, self.cursor = 0, 0, 0, 0
        self.restarted_at, self.sweep = now, now

    def is_fast(self, call: Call, now: int) -> bool:
        """Whether the fast path carries out the call, which repairs nothing and reads no outbox."""
        gate, record = self.gate, self.records.get(call.session)
        known = call.received == "0" or (
            record is not None and record.reply.beginning == call.received
        )
        if gate is None or self.offered or call.program != self.program or not known:
            return False
        t = max(now, gate.t)
        in_time = gate.not_before <= t and not 0 < self.next_expiry <= t
        in_time = in_time and not 0 < self.members_end <= now
        if not call.is_lone_acquire or self.queued or not in_time:
            return False
        [request] = call.requests
        assert isinstance(request, Acquire)
        costs = gate.rules.costs(units_of(request.asked))
        return not gate.rules.never(costs) and all(
            not cost or rule.ready(cost, t) == t
            for rule, cost in zip(gate.rules.all, costs, strict=True)
        )

    def opened(self, session: str, now: int, fast: bool) -> PatientGate:
        assert self.gate is not None
        self.gate.clamp(now)
        if not fast:
            if 0 < self.members_end <= now:
                self.forget_members(self.gate, session)
            self.repair(self.gate)
        return self.gate

    def enlist(self) -> None:
        """A name has members from the first waiter, holder or second session on."""
        assert self.gate is not None
        self.members_end = self.members_end or self.gate.t

    def extend(self) -> None:
        """After a call, the members live for as long as a silent session is remembered, and for a
        lease.
        """
        assert self.gate is not None
        self.outlast(self.gate.t + KEEP + SESSION_LIFE)
        if self.held and (lease := self.lease()):
            self.outlast(max(self.gate.t, self.gate.not_before) + lease)

    def outlast(self, end: int) -> None:
        if 0 < self.members_end < end:
            self.members_end = end + SLACK

    def forget_members(self, gate: PatientGate, session: str) -> None:
        """Their key has expired. Only the session that calls is remembered."""
        self.members_end, self.queued, self.holders = 0, 0, {}
        self.sweep, self.cursor = 0, 0
        gate.queue.clear()
        gate.waiting = [0] * len(gate.rules.all)
        self.alive = {each: end for each, end in self.alive.items() if each == session}
        for other in self.records.keys() - {session}:
            self.records.pop(other)
            self.outbox.pop(other, None)

    def repair(self, gate: PatientGate) -> None:
        """Without a queue there are no waiters, and the held units are those of the holders: keys
        can be lost one by one.
        """
        if self.members_end and not self.alive:
            its = self.records.items()
            self.alive = {each: record.alive_until for each, record in its if record.alive_until}
            self.members_end = gate.t
        if self.queued and not gate.queue:
            self.queued, self.restarted_at = 0, gate.clamp(gate.t + 1)  # a moment of its own
            gate.waiting = [0] * len(gate.rules.all)
        if self.held != len(self.holders):
            self.held, self.next_expiry = len(self.holders), min(self.holders.values(), default=0)
            for index, rule in enumerate(gate.rules.all):
                if isinstance(rule, ConcurrencyRule):
                    rule.used = sum(
                        gate.rules.costs(units_of(caller.asked))[index] for caller in self.holders
                    )

    def lose(self, key: str) -> None:
        """One of the keys was lost."""
        if key == "":
            self.gate, self.records, self.notified, self.offered = None, {}, None, False
            self.outbox.clear()
        elif self.gate is not None and self.members_end:
            self.gate.queue.clear()
            self.holders, self.alive = {}, {}

    def follow(self, gate: PatientGate, program: str, now: int) -> None:
        """Other limits.

        A holder since the time of a limit that was dropped, and comes back, still holds (S1).
        """
        former = [rule.unit for rule in gate.rules.all if isinstance(rule, ConcurrencyRule)]
        gate.follow(now, rules_of(program))
        self.program = program
        for index, rule in enumerate(gate.rules.all):
            if isinstance(rule, ConcurrencyRule) and rule.unit in former:
                former.remove(rule.unit)
            elif isinstance(rule, ConcurrencyRule):
                rule.used = sum(
                    gate.rules.costs(units_of(caller.asked))[index] for caller in self.holders
                )

    # Holders --------------------------------------------------------------------------------------

    def lease(self) -> int | None:
        assert self.gate is not None
        return min(
            (rule.lease for rule in self.gate.rules.all if isinstance(rule, ConcurrencyRule)),
            default=None,
        )

    def hold(self, caller: Caller, grant: Grant, lease: int | None) -> None:
        self.granted.append((caller, grant))
        if lease is not None:
            self.enlist()
            self.held += caller not in self.holders
            self.holders[caller] = grant.t + lease
            if lease != self.lease():
                self.holders[caller] = end_that_says(grant.t, grant.t + lease)
            self.next_expiry = min(self.next_expiry or grant.t + lease, grant.t + lease)

    def let_go(self, caller: Caller) -> bool:
        held = self.holders.pop(caller, None) is not None
        self.held -= held
        return held

    def expire_holders(self, gate: Gate) -> None:
        """Return the units of expired leases."""
        if not 0 < self.next_expiry <= gate.t:
            return
        ended = sorted(
            (end, caller.text, caller) for caller, end in self.holders.items() if end <= gate.t
        )
        for _, _, caller in ended[:CLEANUP]:
            self.let_go(caller)
            gate.release(units_of(caller.asked))
        self.next_expiry = min(self.holders.values(), default=0)


class Turn:
    """One call while it is decided."""

    def __init__(self, model: Model, call: Call, gate: PatientGate) -> None:
        self.model, self.call, self.gate = model, call, gate
        self.own = model.outbox.pop(call.session, [])
        self.others: defaultdict[str, list[OutboxItem]] = defaultdict(list)
        self.heads: dict[str, int] = {}  # sessions to notify when to look at the head of the queue
        self.paused = 0  # until when, by a pause of this call; now, when it has ended one
        self.notified: list[str] = []  # sessions that are notified of that
        self.living = {call.session: True}  # the sessions that this call found alive, or not

    def reply(self, alive_until: int, fast: bool) -> Reply:
        model, call = self.model, self.call
        self.sweep()
        answers = merged(self.each_answered())
        head, mine = self.look_at_head(*self.advance())
        while self.send_notifications():
            model.expire_holders(self.gate)
            head, mine = self.look_at_head(*self.advance())
        if self.gate.whole_pause > self.gate.t:
            self.gate.pause_whole(self.gate.t, 0)
        alive_until = 0 if self.dead(call.session) else self.attend(alive_until)
        if alive_until and not fast:
            self.tidy()
        model.extend()
        reply = Reply(
            call.session,
            call.number,
            "ok",
            "",
            self.gate.t,
            head,
            mine,
            answers,
            tuple(self.own),
            self.paused_until(),
        )
        model.records[call.session] = Record(
            call.number, alive_until, reply, self.gate.t if call.listens else 0, model.run
        )
        model.queued = len(self.gate.queue)
        return reply

    # The living sessions --------------------------------------------------------------------------

    def dead(self, session: str) -> bool:
        if session not in self.living:
            self.living[session] = self.model.alive.get(session, 0) > self.gate.t
        return not self.living[session]

    def quit(self, session: str) -> None:
        """Its places are lost, and its session is forgotten."""
        self.living[session] = False
        self.model.quit(session)

    def sweep(self) -> None:
        """Once in a while, if any session has died, the dead leave the queue, wherever they stand,
        a stretch of it in each call.
        """
        model, queue = self.model, self.gate.queue
        if not queue or model.sweep > self.gate.t:
            return
        if not model.cursor and all(until > self.gate.t for until in model.alive.values()):
            model.sweep = self.gate.t + SESSION_LIFE
            return
        stretch = list(queue)[model.cursor : model.cursor + CLEANUP]
        for caller in stretch:
            if self.dead(caller.session):
                self.gate.leave(caller)
                self.quit(caller.session)
            else:
                model.cursor += 1
        if len(stretch) < CLEANUP:
            model.sweep, model.cursor = self.gate.t + SESSION_LIFE, 0

    def head(self) -> Caller | None:
        """The head of the queue, past the dead and past waiters that can never pass and get that
        answer.
        """
        for _ in range(CLEANUP):
            if not self.gate.queue:
                return None
            caller, (_, costs) = next(iter(self.gate.queue.items()))
            dead = self.dead(caller.session)
            if not dead and not self.gate.rules.never(costs):
                return caller
            self.gate.leave(caller)
            if dead:
                self.quit(caller.session)
            else:
                self.deliver(caller, -1, 0)
        return None

    def attend(self, until: int) -> int:
        """Stay alive, and forget sessions that have been silent for long."""
        model, t = self.model, self.gate.t
        if until >= t + 0.75 * SESSION_LIFE and until >= model.restarted_at + SESSION_LIFE:
            return until
        others = [end for each, end in model.alive.items() if each != self.call.session]
        if self.call.clustered or (not until and any(end > t - KEEP for end in others)):
            model.enlist()
            model.outlast(LATER if self.call.clustered else 0)
        model.alive[self.call.session] = t + SESSION_LIFE
        silent = sorted((end, session) for session, end in model.alive.items() if end <= t - KEEP)
        for _, session in silent[:CLEANUP]:
            del model.alive[session]
            model.records.pop(session, None)
            model.outbox.pop(session, None)
        return t + SESSION_LIFE

    def tidy(self) -> None:
        """An idle name is made small, once in a while: it needs no members for one session."""
        model, t = self.model, self.gate.t
        busy = self.gate.queue or model.held or not model.members_end
        if busy or model.tidied_at + SESSION_LIFE > t:
            return
        model.tidied_at, model.notified = t, None
        for request in self.call.requests:
            for caller in request.callers if isinstance(request, Release) else ():
                if caller.session == self.call.session:
                    self.recall(caller.number)
        if len(model.alive) == 1 and not self.call.clustered:
            model.members_end = model.next_expiry = model.sweep = model.cursor = 0

    # Requests -------------------------------------------------------------------------------------

    def each_answered(self) -> Iterator[tuple[Answer, bool]]:
        """Each answer, and whether it may be joined with the one before it: acquires are answered
        one request at a time.
        """
        for request in self.call.requests:
            for index, answer in enumerate(self.answers(request)):
                yield answer, index > 0 or not isinstance(request, Acquire)

    def answers(self, request: Request) -> list[Answer]:
        match request:
            case Acquire():
                return self.acquire(request)
            case Cancel():
                return done(
                    sum(self.cancel(caller, request.moment) for caller in request.callers),
                    request.count,
                )
            case Release():
                return done(sum(map(self.release, request.callers)), request.count)
            case Renew():
                return [("done", 1, int(self.renew(request)), 0)]
            case Quit():
                self.leave(request)
                return [("done", 1, 1, 0)]
            case Settle():
                self.gate.settle(self.gate.t, units_of(request.extras), request.moment)
                return [("done", 1, 1, 0)]
            case Drain():
                self.gate.drain(self.gate.t, *request)
                return [("done", 1, 1, 0)]
            case Pause():
                self.pause(request.time)
                return [("done", 1, 1, 0)]
            case PauseWhole():
                self.gate.pause_whole(self.gate.t, request.time)
                return [("done", 1, 1, 0)]
            case Resume():
                self.resume()
                return [("done", 1, 1, 0)]
            case Declared():
                return [("done", 1, int(not self.model.offered), 0)]
            case Reset():
                self.gate.reset(self.gate.t)
                return [("done", 1, 1, 0)]
            case Rejoin():
                return [("done", 1, int(self.rejoin(request)), 0)]
            case Amend():
                return [("done", 1, int(self.amend(request)), 0)]
            case Status():
                return [self.status(units_of(request.asked))]
            case Update():
                if self.call.declares == 2:
                    self.model.replaced.replace(
                        self.call, request.former, self.model.program, self.gate.t
                    )
                return [("done", 1, 1, 0)]

    def acquire(self, request: Acquire) -> list[Answer]:
        units = units_of(request.asked)
        if self.gate.rules.never(self.gate.rules.costs(units)):
            return [("never", 1, 0, 0)] * request.count
        numbers = range(request.first, request.first + request.count)
        return [
            self.acquired(Caller(self.call.session, number, request.asked), units, request)
            for number in numbers
        ]

    def acquired(self, caller: Caller, units: Units, request: Acquire) -> Answer:
        gate = self.gate
        answer = gate.acquire(
            gate.t, caller, units, self.call.reserve_ahead, request.max_sleep, request.max_waiters
        )
        match answer:
            case Grant(t, fence):
                self.model.hold(caller, answer, self.model.lease())
                return "grant", 1, t, fence
            case Wait(t, position):
                self.model.enlist()
                return "wait", 1, t - gate.t, position
            case Refuse(t, True):
                return "full", 1, t - gate.t, len(gate.queue)
            case Refuse(t, False):
                return "late", 1, t - gate.t, 0

    def cancel(self, caller: Caller, t: int) -> bool:
        if self.gate.leave(caller):
            return True
        recalled = self.recall(caller.number) if caller.session == self.call.session else 0
        known = self.model.records.get(caller.session)
        if known is not None and caller.session.endswith(THREADS):
            recalled = known.granted_at(caller.number)
        t = t or recalled
        granted = self.model.let_go(caller) or (t > 0 and self.model.lease() is None)
        if granted:
            self.gate.cancel(self.gate.t, units_of(caller.asked), t)
        self.forbid(caller)
        return granted

    def forbid(self, caller: Caller) -> None:
        """A thread gave up a call: if it still comes, it comes too late (F25)."""
        session, number, _ = caller
        known = self.model.records.get(session)
        if session.endswith(THREADS) and (known.last if known else 0) <= number:
            self.reject(session, number)

    def reject(self, session: str, number: int) -> None:
        """From now on, the calls of the session up to this number come too late."""
        self.model.enlist()
        self.model.records[session] = Record(number, 0, Reply(session, number, "late"))
        self.model.alive[session] = self.gate.t

    def pause(self, time: int) -> None:
        model, gate = self.model, self.gate
        gate.pause(gate.t, time)
        model.until = max(model.until, gate.own_pause)
        self.paused = gate.own_pause
        self.notified = self.others_alive()

    def resume(self) -> None:
        gate = self.gate
        if gate.pause_left():
            self.paused = gate.t
            self.notified = self.others_alive()
        gate.resume(gate.t)

    def others_alive(self) -> list[str]:
        self.model.enlist()
        return [
            session
            for session, until in self.model.alive.items()
            if until > self.gate.t and session != self.call.session
        ]

    def paused_until(self) -> int:
        gate = self.gate
        return self.paused or (gate.not_before if gate.pause_left() else 0)

    def rejoin(self, request: Rejoin) -> bool:
        caller, gate, first = request.caller, self.gate, self.model.first
        if caller.session == self.call.session:
            self.recall(caller.number)
        if not self.model.let_go(caller) and self.model.lease() is not None:
            return False
        units = units_of(caller.asked)
        gate.cancel(gate.t, units, request.moment)
        self.model.enlist()
        if caller not in gate.queue:
            first[caller] = request.fence
            gate.join(caller, units, gate.rules.costs(units))
            self.sort_first()
        return True

    def sort_first(self) -> None:
        gate, first = self.gate, self.model.first
        granted = sorted((first[each], each.text, each) for each in gate.queue if each in first)
        for *_, each in reversed(granted):
            gate.queue.move_to_end(each, last=False)

    def amend(self, request: Amend) -> bool:
        (caller, amended), gate = request.callers(self.call.session), self.gate
        units = units_of(request.wanted)
        costs = gate.rules.costs(units)
        if gate.rules.never(costs) or caller not in gate.queue:
            return False
        gate.amend(caller, units, costs)
        renamed = [(amended if each == caller else each, its) for each, its in gate.queue.items()]
        gate.queue = OrderedDict(renamed)
        if caller in self.model.first:
            self.model.first[amended] = self.model.first.pop(caller)
            self.sort_first()
        return True

    def leave(self, request: Quit) -> None:
        """Its process has begun another session: any call that still arrives is a late copy."""
        self.quit(request.session)
        self.reject(request.session, MOST)
        if request.kept != "*":
            kept = request.kept.split(",")
            for caller in list(self.model.holders):
                if caller.session == request.session and str(caller.number) not in kept:
                    self.release(caller)

    def release(self, caller: Caller) -> bool:
        held = self.model.let_go(caller)
        if held:
            self.gate.release(units_of(caller.asked))
        return held

    def renew(self, request: Renew) -> bool:
        end = self.model.holders.get(request.caller, 0)
        if end <= self.gate.t:
            return False
        lease = self.model.lease() or request.lease
        self.model.outlast(self.gate.t + lease)
        end = max(end, self.gate.t + lease)
        self.model.holders[request.caller] = end_that_says(request.since, end)
        return True

    def status(self, units: Units) -> Answer:
        gate = self.gate
        costs = gate.rules.costs(units)
        head = self.head()  # the dead leave the queue first
        estimate = gate.estimate(costs)
        t = max(gate.next_at(), estimate) if head else gate.ready(costs)
        if t >= NEVER and estimate > gate.t:
            t = estimate
        return (
            "status",
            len(gate.queue),
            t - gate.t,
            gate.pause_left(),
            *(rule.left(gate.t) for rule in gate.rules.all),
        )

    # The queue and the outboxes -------------------------------------------------------------------

    def advance(self) -> tuple[Caller | None, int]:
        """Let all due waiters pass: the living in front of the queue as the gate does it, run by
        run. The next one, and when.
        """
        left = GRANTS
        while (caller := self.head()) is not None:
            t = self.gate.next_at()
            if t > self.gate.t + self.call.reserve_ahead or not left:
                return caller, t
            run = self.able()[:left]
            rest = list(self.gate.queue.items())[len(run) :]
            self.gate.queue = OrderedDict(run)
            granted = self.gate.advance(self.gate.t, self.call.reserve_ahead)
            self.gate.queue.update(rest)
            left -= len(granted)
            for waiter, grant in granted:
                lease = self.model.lease()
                if lease is not None and waiter.session != self.call.session:
                    # It may be dead, and be found out (L3).
                    lease = min(lease, self.model.alive[waiter.session] - self.gate.t)
                self.model.hold(waiter, grant, lease)
                self.deliver(waiter, *grant, lease or 0)
        return None, NEVER

    def able(self) -> list[tuple[Caller, tuple[Units, tuple[int, ...]]]]:
        """The front of the queue up to the first that is dead or can never pass."""
        run = []
        for caller, asked in self.gate.queue.items():
            if self.dead(caller.session) or self.gate.rules.never(asked[1]):
                break
            run.append((caller, asked))
        return run

    def look_at_head(self, caller: Caller | None, t: int) -> tuple[int, bool]:
        """When the head should be looked at again, and whether by us; another session is notified
        once, if it is soon.
        """
        if caller is None:  # more of them are dead than one call drops, or none waits
            return (self.gate.t, True) if self.gate.queue else (-1, False)
        if t >= NEVER:
            t = self.next_end() or self.gate.t + SESSION_LIFE
        caller = self.first_awake(caller)
        if (
            caller.session != self.call.session
            and t < self.gate.t + SOON
            and not self.was_notified(caller, t)
        ):
            self.model.notified = caller, t
            self.heads[caller.session] = max(t, self.gate.t)
        return max(t, self.gate.t), caller.session == self.call.session

    def was_notified(self, caller: Caller, t: int) -> bool:
        """Whether it was notified to ask then, or before: that call brings a later moment."""
        whom, moment = self.model.notified or (None, 0)
        return whom == caller and (moment == t or self.gate.t < moment < t)

    def first_awake(self, head: Caller) -> Caller:
        """The first whose session is not about to die: it looks at the head."""
        for caller in islice(self.gate.queue, CLEANUP):
            own = caller.session == self.call.session
            until = self.model.alive.get(caller.session, 0)
            if not self.dead(caller.session) and (own or until - self.gate.t >= UNHEARD):
                return caller
        return head

    def next_end(self) -> int:
        """When the next lease ends: exactly if that is soon, otherwise not before; 0: there is no
        holder.
        """
        if 0 < self.model.next_expiry < self.gate.t + SOON:
            self.model.next_expiry = min(self.model.holders.values(), default=0)
        return self.model.next_expiry

    def deliver(self, caller: Caller, t: int, fence: int, lease: int = 0) -> None:
        box = self.own if caller.session == self.call.session else self.others[caller.session]
        box.append((caller.number, t, fence, lease))

    def recall(self, number: int) -> int:
        """Take back a notification that was not read; its moment, or 0."""
        for item in self.own:
            if item[0] == number:
                self.own.remove(item)
                return item[1]
        return 0

    def send_notifications(self) -> bool:
        """Whether a session is suspected now: nothing receives its notification, though it said
        that it subscribes.
        """
        suspected = False
        for session in {**self.others, **self.heads, **dict.fromkeys(self.notified, 0)}:
            outbox_items = self.others[session]
            paused = self.paused if session in self.notified else 0
            self.model.notifications.append(
                (session, self.gate.t, self.heads.get(session, -1), paused, tuple(outbox_items))
            )
            suspected |= client_of(session) in self.model.unheard and self.suspect(
                session, outbox_items
            )
            if outbox_items:
                self.model.outbox[session] += outbox_items
        self.others.clear()
        self.heads, self.notified = {}, []
        return suspected

    def suspect(self, session: str, outbox_items: list[OutboxItem]) -> bool:
        """It counts as alive until soon after its last call, and so do its new grants.

        Whether that is new.
        """
        model, record = self.model, self.model.records.get(session)
        if record is None or not record.listened or record.run != model.run:
            return False
        if record.alive_until <= record.listened + UNHEARD:
            return False
        record.alive_until = until = record.listened + UNHEARD
        if session in model.alive:
            model.alive[session] = until
        self.living[session] = until > self.gate.t
        left = max(0, until - self.gate.t)
        for index, (number, t, fence, lease) in enumerate(outbox_items):
            if lease > left:
                outbox_items[index] = number, t, fence, left
                for caller in [
                    caller for caller in model.holders if caller[:2] == (session, number)
                ]:
                    model.holders[caller] = end_that_says(t, t + left) if left else t
                    model.next_expiry = min(model.next_expiry, t + left)
        return True
