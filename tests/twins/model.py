"""The oracle: `headgate.gate.gate.Gate` and, around it, what the script adds on a server, as plain and slow as can be.

Here live sessions that fall silent, holders whose leases end, mail for others, replies that are kept for a replay. No bounds on
the work of a call are modelled (S9): they are tested on the script by themselves.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field

from headgate.gate.gate import Gate, Grant, Refuse, Units, Wait
from headgate.gate.rules import Declaration
from headgate.gate.rules import parsed as rule_of
from headgate.gate.slots import NEVER, Slots
from headgate.request import units_of
from tests.twins.wire import Acquire, Answer, Call, Caller, Cancel, Release, Renew, Reply, Request, Settle, Status

WAITER, KEEP = 10_000_000, 30_000_000


class PatientGate(Gate):
    """A gate that leaves it to the head of the queue to find out that it can never pass."""

    def requeue(self) -> list[Hashable]:
        asked, self.queue, self.waiting = self.queue, OrderedDict(), [0] * len(self.rules)
        for caller, (units, _) in asked.items():
            self.join(caller, units, self.costs(units))
        return []

    def never(self, units: Units) -> bool:
        costs = self.costs(units)
        return any(cost > rule.capacity for cost, rule in zip(costs, self.rules, strict=True))


@dataclass
class Record:
    """What is kept of a session: the number of its last call, until when it counts as alive, and its last reply."""

    last: int
    alive_until: int
    reply: Reply


@dataclass
class Model:
    """The state of one name, and `call`."""

    gate: PatientGate | None = None
    program: str = ""
    records: dict[str, Record] = field(default_factory=dict)
    alive: dict[str, int] = field(default_factory=dict)  # sessions, and until when
    mail: defaultdict[str, list[tuple[int, int, int]]] = field(default_factory=lambda: defaultdict(list))
    holders: dict[Caller, int] = field(default_factory=dict)
    soonest: int = 0
    sweep: int = 0
    told: tuple[Caller, int] | None = None
    announced: list[tuple[str, int, int, tuple[tuple[int, int, int], ...]]] = field(default_factory=list)

    def call(self, call: Call, now: int) -> Reply:
        self.announced = []
        record = self.records.get(call.session)
        if record is not None and call.number == record.last:
            return record.reply
        if record is not None and call.number < record.last:
            return Reply(call.session, call.number, "late")
        alive_until = 0 if record is None else record.alive_until
        if call.waits and (self.gate is None or alive_until <= max(now, self.gate.t)):
            return Reply(call.session, call.number, "lapsed")
        if self.gate is not None and call.program != self.program and not call.declares:
            return Reply(call.session, call.number, "stale", self.program)
        return Turn(self, call, self.opened(call, now)).reply(alive_until)

    def opened(self, call: Call, now: int) -> PatientGate:
        rules = Declaration([rule_of(text) for text in call.program.split(";")]).rules()
        if self.gate is None:
            self.gate, self.program, self.sweep = PatientGate(rules, now), call.program, now
        self.gate.clamp(now)
        self.expire_holders(self.gate)
        if call.program != self.program:
            self.gate.follow(now, rules)
            self.program = call.program
        return self.gate

    def lease(self) -> int | None:
        assert self.gate is not None
        return min((rule.lease for rule in self.gate.rules if isinstance(rule, Slots)), default=None)

    def hold(self, caller: Caller, t: int) -> None:
        lease = self.lease()
        if lease is not None:
            self.holders[caller] = t + lease
            self.soonest = min(self.soonest or t + lease, t + lease)

    def expire_holders(self, gate: Gate) -> None:
        """Return what leases ended with."""
        if not 0 < self.soonest <= gate.t:
            return
        for caller in [caller for caller, end in self.holders.items() if end <= gate.t]:
            del self.holders[caller]
            gate.release(units_of(caller.asked))
        self.soonest = min(self.holders.values(), default=0)


class Turn:
    """One call while it is decided."""

    def __init__(self, model: Model, call: Call, gate: PatientGate) -> None:
        self.model, self.call, self.gate = model, call, gate
        self.own = model.mail.pop(call.session, [])
        self.others: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.heads: dict[str, int] = {}  # sessions that must hear when to look at the head of the queue

    def reply(self, alive_until: int) -> Reply:
        model, call = self.model, self.call
        self.sweep()
        answers = merged([answer for request in call.requests for answer in self.answers(request)])
        self.advance()
        head, mine = self.look_at_head()
        self.send_mail()
        alive_until = self.attend(alive_until)
        mail = tuple(self.own)
        reply = Reply(call.session, call.number, "ok", "", self.gate.t, head, mine, answers, mail)
        model.records[call.session] = Record(call.number, alive_until, reply)
        return reply

    # Who is there --------------------------------------------------------------------------------------------------------

    def dead(self, session: str) -> bool:
        return session != self.call.session and self.model.alive.get(session, 0) <= self.gate.t

    def sweep(self) -> None:
        """Once in a while the dead leave the queue, wherever they stand."""
        if self.gate.queue and self.model.sweep <= self.gate.t:
            for caller in list(self.gate.queue):
                if self.dead(caller.session):
                    self.gate.leave(caller)
            self.model.sweep = self.gate.t + WAITER

    def head(self) -> Caller | None:
        """The head of the queue, past the dead and past those who can never pass and are told so."""
        while self.gate.queue:
            caller, (units, _) = next(iter(self.gate.queue.items()))
            dead = self.dead(caller.session)
            if not dead and not self.gate.never(units):
                return caller
            self.gate.leave(caller)
            if not dead:
                self.deliver(caller, -1, 0)
        return None

    def attend(self, until: int) -> int:
        """Stay alive, and forget who has been silent for long."""
        model, t = self.model, self.gate.t
        if until >= t + 0.75 * WAITER:
            return until
        model.alive[self.call.session] = t + WAITER
        for session in [session for session, end in model.alive.items() if end <= t - KEEP]:
            del model.alive[session]
            model.records.pop(session, None)
            model.mail.pop(session, None)
        return t + WAITER

    # Requests ------------------------------------------------------------------------------------------------------------

    def answers(self, request: Request) -> list[Answer]:
        match request:
            case Acquire():
                return self.acquire(request)
            case Cancel():
                return [("done", 1, int(self.cancel(request)), 0)]
            case Release():
                return [("done", 1, int(self.release(request.caller)), 0)]
            case Renew():
                return [("done", 1, int(self.renew(request.caller)), 0)]
            case Settle():
                self.gate.settle(self.gate.t, units_of(request.extras), request.moment)
                return [("done", 1, 1, 0)]
            case Status():
                return [self.status(units_of(request.asked))]

    def acquire(self, request: Acquire) -> list[Answer]:
        units = units_of(request.asked)
        if self.gate.never(units):
            return [("never", 1, 0, 0)] * request.count
        numbers = range(request.first, request.first + request.count)
        return [self.acquired(Caller(self.call.session, number, request.asked), units, request) for number in numbers]

    def acquired(self, caller: Caller, units: Units, request: Acquire) -> Answer:
        gate = self.gate
        answer = gate.acquire(gate.t, caller, units, self.call.horizon, request.max_sleep, request.max_waiters)
        match answer:
            case Grant(t, fence):
                self.model.hold(caller, t)
                return "grant", 1, t, fence
            case Wait(t, _):
                return "wait", 1, t - gate.t, 0
            case Refuse(t, full):
                return "full" if full else "late", 1, t - gate.t, 0

    def cancel(self, request: Cancel) -> bool:
        caller, t = request.caller, request.moment
        if self.gate.leave(caller):
            return True
        mailed = self.recall(caller.number) if caller.session == self.call.session else 0
        t = t or mailed
        held = self.model.holders.pop(caller, None) is not None
        if held or (t > 0 and self.model.lease() is None):
            self.gate.cancel(self.gate.t, units_of(caller.asked), t)
            return True
        return False

    def release(self, caller: Caller) -> bool:
        held = self.model.holders.pop(caller, None) is not None
        if held:
            self.gate.release(units_of(caller.asked))
        return held

    def renew(self, caller: Caller) -> bool:
        end = self.model.holders.get(caller, 0)
        if end <= self.gate.t:
            return False
        self.model.holders[caller] = max(end, self.gate.t + (self.model.lease() or 0))
        return True

    def status(self, units: Units) -> Answer:
        gate = self.gate
        costs = gate.costs(units)
        t = max(gate.next_at(), gate.estimate(costs)) if self.head() else gate.ready(costs)
        return "status", len(gate.queue), t - gate.t, *(rule.left(gate.t) for rule in gate.rules)

    # The queue and the mail ----------------------------------------------------------------------------------------------

    def advance(self) -> None:
        """Let pass whoever is due: the living in front of the queue as the gate does it, run by run."""
        while self.head() is not None:
            run = self.living()
            rest = list(self.gate.queue.items())[len(run) :]
            self.gate.queue = OrderedDict(run)
            granted = self.gate.advance(self.gate.t, self.call.horizon)
            self.gate.queue.update(rest)
            for caller, grant in granted:
                self.model.hold(caller, grant.t)
                self.deliver(caller, *grant)
            if len(granted) < len(run):
                return

    def living(self) -> list[tuple[Caller, tuple[Units, tuple[int, ...]]]]:
        """The front of the queue up to the first who is dead or can never pass."""
        run = []
        for caller, asked in self.gate.queue.items():
            if self.dead(caller.session) or self.gate.never(asked[0]):
                break
            run.append((caller, asked))
        return run

    def look_at_head(self) -> tuple[int, bool]:
        """When the head should be looked at again, and whether by us; another session is told once."""
        caller = self.head()
        if caller is None:
            return -1, False
        t = self.gate.next_at()
        if t >= NEVER:
            t = self.model.soonest or self.gate.t + WAITER
        if caller.session != self.call.session and self.model.told != (caller, t):
            self.model.told = caller, t
            self.heads[caller.session] = t
        return t, caller.session == self.call.session

    def deliver(self, caller: Caller, t: int, fence: int) -> None:
        box = self.own if caller.session == self.call.session else self.others[caller.session]
        box.append((caller.number, t, fence))

    def recall(self, number: int) -> int:
        """Take back the mail for one who has given up before it was read; its moment, or 0."""
        for letter in self.own:
            if letter[0] == number:
                self.own.remove(letter)
                return letter[1]
        return 0

    def send_mail(self) -> None:
        for session in {**self.others, **self.heads}:
            letters = self.others[session]
            self.model.mail[session] += letters
            self.model.announced.append((session, self.gate.t, self.heads.get(session, -1), tuple(letters)))


def merged(answers: list[Answer]) -> tuple[Answer, ...]:
    """Neighbours that are equal, or grants whose fences follow one another, are told as one; of waiters the first one's estimate."""
    runs: list[Answer] = []
    for answer in answers:
        if runs and follows(runs[-1], answer):
            kind, count, number, fence = runs[-1]
            runs[-1] = kind, count + 1, number, fence
        else:
            runs.append(answer)
    return tuple(runs)


def follows(run: Answer, answer: Answer) -> bool:
    if run[0] == "status" or run[0] != answer[0]:
        return False
    if run[0] == "grant":
        return bool(run[2] == answer[2] and run[3] + run[1] == answer[3])
    return bool(run[0] == "wait" or run[2] == answer[2])
