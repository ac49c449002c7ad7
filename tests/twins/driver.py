"""Plays a story to both twins and compares every answer.

A story is plain data, so that one that failed once can be kept as JSON in tests/seeds: programs, and steps that move the clock, change
the declaration or make a call. Who is meant by a cancel or a release is a number that picks from those who have asked so far.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headgate.request import units_of
from tests.twins.model import Model
from tests.twins.wire import NOON, Acquire, Call, Caller, Cancel, Release, Renew, Reply, Request, Settle, Status, Wire

Story = dict[str, Any]
PICKS = 12  # how far back a pick reaches


@dataclass
class Session:
    """What a client knows of its own talk."""

    link: str
    program: str
    generation: int = 1
    calls: int = 0
    asked: int = 0
    declares: bool = True
    waiting: dict[int, Caller] = field(default_factory=dict)
    sent: list[Call] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.link}.{self.generation}"

    def lapse(self) -> None:
        """Nobody knows this session any more: a new one, as a client makes it."""
        self.generation += 1
        self.calls = 0
        self.waiting = {}
        self.sent = []


class Player:
    """One story, on both twins."""

    def __init__(self, wire: Wire, story: Story) -> None:
        self.wire, self.model = wire, Model()
        self.programs = story["programs"]
        self.now = NOON + story.get("start", 0)
        self.sessions = [Session(f"{wire.token}-{index}", self.programs[0]) for index in range(3)]
        self.callers: list[Caller] = []
        self.moments: dict[Caller, int] = {}  # of those who were granted, as far as anybody was told
        self.head = -1
        self.announced: Counter[Any] = Counter()
        self.trace: list[str] = []

    def play(self, steps: list[list[Any]]) -> None:
        for kind, *details in steps:
            getattr(self, kind)(*details)

    # Steps ---------------------------------------------------------------------------------------------------------------

    def time(self, delta: int) -> None:
        self.now += delta

    def to_head(self, delta: int) -> None:
        """To the moment at which somebody was told to look at the queue again."""
        if self.head >= 0:
            self.now = self.head + delta

    def to_grant(self, pick: int, delta: int) -> None:
        """To the moment of a grant."""
        caller = self.picked(pick)
        if caller in self.moments:
            self.now = self.moments[caller] + delta

    def declare(self, index: int, program: int) -> None:
        session = self.sessions[index]
        session.program, session.declares = self.programs[program % len(self.programs)], True

    def call(self, index: int, horizon: int, specs: list[list[Any]]) -> None:
        session = self.sessions[index]
        session.calls += 1
        waits = bool(session.waiting)
        requests = tuple(request for spec in specs for request in self.request(session, *spec))
        call = Call(session.program, session.name, session.calls, requests, waits, session.declares, horizon)
        session.sent.append(call)
        self.hear(session, call, self.both(call))

    def again(self, index: int, back: int) -> None:
        """A call that was made before arrives once more."""
        sent = self.sessions[index].sent
        if back < len(sent):
            self.both(sent[-1 - back])

    # What is asked -------------------------------------------------------------------------------------------------------

    def picked(self, pick: int) -> Caller | None:
        return self.callers[-1 - pick % min(len(self.callers), PICKS)] if self.callers else None

    def request(self, session: Session, kind: str, *details: Any) -> list[Request]:
        if kind == "acquire":
            return [self.acquire(session, *details)]
        if kind == "status":
            return [Status(*details)]
        caller = self.picked(details[0])
        if caller is None:
            return []
        if kind == "cancel":
            return [self.cancel(caller, *details[1:])]
        if kind == "settle":
            return [Settle(self.moments.get(caller, self.now), *details[1:])]
        return [Release(caller) if kind == "release" else Renew(caller)]

    def acquire(
        self, session: Session, count: int, asked: str, max_sleep: int | None, max_waiters: int | None
    ) -> Acquire:
        request = Acquire(session.asked + 1, count, asked, max_sleep, max_waiters)
        session.asked += count
        self.callers += callers_of(session.name, request)
        return request

    def cancel(self, caller: Caller, knows: bool) -> Cancel:
        for session in self.sessions:
            if session.name == caller.session:
                session.waiting.pop(caller.number, None)
        return Cancel(caller, self.moments.get(caller, 0) if knows else 0)

    # What is answered ----------------------------------------------------------------------------------------------------

    def both(self, call: Call) -> Reply:
        """The reply, after a look at whether both twins give the same; as a client does, by the quick script if it may be."""
        quick = call.may_be_quick and not self.model.mail.get(call.session)
        found = (quick and self.wire.call_quickly(call, self.now)) or self.wire.call(call, self.now)
        expected = self.model.call(call, self.now)
        self.announced.update(self.model.announced)
        self.trace.append(f"at {self.now}: {call}\n   -> {found}")
        assert found == expected, "\n".join([*self.trace, f"but -> {expected}"])
        return found

    def hear(self, session: Session, call: Call, reply: Reply) -> None:
        if reply.verdict == "lapsed":
            session.lapse()
        elif reply.verdict == "stale":
            session.program = reply.program
        elif reply.verdict == "ok":
            session.declares = False
            self.head = reply.head
            self.learn(session, call, reply)

    def learn(self, session: Session, call: Call, reply: Reply) -> None:
        asked = [caller for request in call.requests for caller in callers_of(session.name, request)]
        for caller, answer in zip(asked, reply.each(), strict=False):
            if caller is not None and answer[0] == "grant":
                self.moments[caller] = answer[1]
            elif caller is not None and answer[0] == "wait":
                session.waiting[caller.number] = caller
        for number, t, _ in reply.mail:
            caller = session.waiting.pop(number, None)
            if caller is not None:
                self.moments[caller] = t


def callers_of(session: str, request: Request) -> list[Any]:
    """One place for each answer: who asked, or None where the answer is not a decision."""
    if not isinstance(request, Acquire):
        return [None]
    return [Caller(session, request.first + index, request.asked) for index in range(request.count)]


def promises(model: Model) -> int:
    """Until when the state must live: the last lease end, and the moment from which every rate is as good as new (S8, T12)."""
    assert model.gate is not None
    rates = [rule.idle_at() for rule in model.gate.rules if not rule.holds]
    return max([*rates, *model.holders.values(), model.gate.t])


def held(model: Model, unit: str) -> int:
    """How much of `unit` the holders hold together."""
    return sum(units_of(caller.asked).get(unit, int(unit == "permits")) for caller in model.holders)
