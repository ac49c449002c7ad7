"""Plays a story to both twins and compares every answer, every notification and the final state.

A story is plain data, so that one that failed once can be kept as JSON in tests/seeds. It has
programs, and steps that move the clock, change the declaration, make a call or lose something. The
subject of a cancel or a release is a number that picks from the callers that have asked so far.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.twins.kept import client_of
from tests.twins.model import KEEP, Model, OutboxItem
from tests.twins.wire import (
    NOON,
    Acquire,
    Amend,
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
    Wire,
    spelled,
)
from tests.twins.witness import Witness, answered, lease_of, promised, promised_members

Story = dict[str, Any]
PICKS = 12  # how far back a pick reaches
SESSIONS = 3
FOR_EVER = -1  # PTTL of a key that is never deleted
HASTE = 10_000  # milliseconds that a story may take to play


@dataclass
class Session:
    """A client's knowledge of its own session."""

    client_name: str
    program: str
    generation: int = 1
    calls: int = 0
    asked: int = 0
    declares: int = 1
    gave_up: bool = (
        # an acquire before it was sent: the next call declares the limits, with any operation
        False
    )
    received: str = "0"  # how the last reply to it began
    waiting: dict[int, Caller] = field(default_factory=dict)
    notified_items: tuple[OutboxItem, ...] = ()  # of its last notification
    sent: list[tuple[int, Call]] = field(default_factory=list)  # and when, by its own clock

    @property
    def name(self) -> str:
        return f"{self.client_name}.{self.generation}"

    def lapse(self) -> None:
        """The server has forgotten this session: a new one, as a client makes it."""
        self.generation += 1
        self.calls = 0
        self.received = "0"
        self.waiting = {}
        self.notified_items = ()


class Player:
    """One story, on both twins."""

    def __init__(self, wire: Wire, story: Story) -> None:
        self.wire, self.model, self.witness = wire, Model(), Witness()
        self.programs = story["programs"]
        self.now = NOON + story.get("start", 0)
        self.clients = 0
        self.deaf_clients: set[str] = set()
        self.sessions = [self.session() for _ in range(SESSIONS)]
        self.callers: list[Caller] = []
        self.fences: dict[Caller, int] = {}
        # of granted callers, as far as replies have named them
        self.moments: dict[Caller, int] = {}
        self.head = -1
        self.notifications: Counter[str] = Counter()
        self.trace: list[str] = []

    def play(self, steps: list[list[Any]]) -> None:
        for kind, *details in steps:
            getattr(self, kind)(*details)
        self.compare_what_is_left()

    def session(self) -> Session:
        """Every third one's notifications reach no connection."""
        self.clients += 1
        client_name = f"{self.wire.token}{'+' if self.clients % 3 == 0 else '-'}{self.clients}"
        if self.clients % 3 == 0:
            self.deaf_clients.add(client_name)
        return Session(client_name, self.programs[0])

    # Steps ----------------------------------------------------------------------------------------

    def time(self, delta: int) -> None:
        self.now += delta
        self.witness.time(delta)

    def to_head(self, delta: int) -> None:
        """To the moment at which the head has to look at the queue again."""
        if self.head >= 0:
            self.time(self.head + delta - self.now)

    def to_grant(self, pick: int, delta: int) -> None:
        """To the moment of a grant."""
        caller = self.picked(pick)
        if caller in self.moments:
            self.time(self.moments[caller] + delta - self.now)

    def declare(self, index: int, program: int, gave_up: bool = False) -> None:
        session = self.sessions[index]
        session.program, session.declares, session.gave_up = (
            self.programs[program % len(self.programs)],
            1,
            gave_up,
        )

    def update(self, index: int, program: int, former: int | None) -> None:
        """And the operation that goes with it, if that was not lost."""
        session = self.sessions[index]
        session.program, session.declares = self.programs[program % len(self.programs)], 2
        self.call(
            index,
            0,
            [] if former is None else [["update", self.programs[former % len(self.programs)]]],
        )

    def call(self, index: int, reserve_ahead: int, specs: list[list[Any]]) -> None:
        session = self.sessions[index]
        session.calls += 1
        received = session.received if session.waiting or session.calls % 2 else "0"
        listens = session.calls % 5 > 0
        requests = tuple(request for spec in specs for request in self.request(session, *spec))
        declares, waits = said_of(session, requests), bool(session.waiting)
        call = Call(
            session.program,
            session.name,
            session.calls,
            requests,
            received,
            waits,
            listens,
            declares,
            reserve_ahead,
        )
        session.gave_up = False
        session.sent.append((self.witness.clock, call))
        self.hear(session, call, self.both(call))

    def listen(self, index: int) -> None:
        """The last notification arrives before a reply brings it; those before that were lost."""
        session = self.sessions[index]
        self.read(session, session.notified_items)

    def again(self, index: int, back: int, ever: bool = False) -> None:
        """A call that was made before arrives once more: sent again, or late.

        After KEEP nothing is promised (`ever`).
        """
        sent = self.sessions[index].sent
        if back < len(sent):
            at, call = sent[-1 - back]
            if ever or self.witness.clock - at < KEEP:
                self.witness.lost |= ever
                self.both(call)

    def die(self, index: int) -> None:
        """A process is killed, and another one starts in its stead."""
        self.witness.died(self.sessions[index].client_name)
        self.sessions[index] = self.session()

    def start_over(self, index: int, itself: bool = True, kept: str = "*") -> None:
        """A client gives up all its places at once: its session says so in its last call, or
        another one says it for it.

        It holds the permits of the numbers in `kept` ("2,5"), and "*" stands for all of them.
        """
        session = self.sessions[index]
        former = session.name
        if kept != "*":
            self.witness.holds_only(former, set(map(int, kept.split(","))))
        if not itself:
            session.lapse()
        self.call(index, 0, [["quit", former, kept]])
        if itself:
            session.lapse()

    def lose(self, key: str) -> None:
        """One of the keys is lost; no promise is kept beyond that, but both twins do the same."""
        self.wire.lose(key)
        self.model.lose(key)
        self.witness.lost = True

    # Requests -------------------------------------------------------------------------------------

    def picked(self, pick: int) -> Caller | None:
        return self.callers[-1 - pick % min(len(self.callers), PICKS)] if self.callers else None

    def request(self, session: Session, kind: str, *details: Any) -> list[Request]:
        if kind == "acquire":
            return [self.acquire(session, *details)]
        if kind in ("status", "pause", "whole"):
            return [{"status": Status, "pause": Pause, "whole": PauseWhole}[kind](*details)]
        if kind in ("resume", "reset", "declared"):
            return [{"resume": Resume, "reset": Reset, "declared": Declared}[kind]()]
        if kind in ("quit", "update"):
            return [Quit(*details) if kind == "quit" else Update(*details)]
        if kind == "drain":
            unit, limit, left, before = details
            return [Drain(unit, limit, left, self.now - before if before else 0)]
        caller = self.picked(details[0])
        if caller is None:
            return []
        if kind == "amend":
            mine = caller.session == session.name
            return [Amend(caller.number, caller.asked, *details[1:])] if mine else []
        if kind == "rejoin":
            granted = caller.session == session.name and caller in self.moments
            return [Rejoin(caller, self.moments[caller], self.fences[caller])] if granted else []
        if kind == "cancel":
            return [self.cancel(caller, *details[1:])]
        if kind == "settle":
            return [Settle(self.moments.get(caller, self.now), *details[1:])]
        if kind == "renew":
            return [Renew(caller, *details[1:], since=self.moments.get(caller, self.now))]
        return [Release(caller, *details[1:])]

    def acquire(
        self,
        session: Session,
        count: int,
        asked: str,
        max_sleep: int | None,
        max_waiters: int | None,
    ) -> Acquire:
        request = Acquire(session.asked + 1, count, asked, max_sleep, max_waiters)
        session.asked += count
        self.callers += callers_of(session.name, request)
        return request

    def cancel(self, caller: Caller, knows: bool, count: int = 1) -> Cancel:
        """A caller gives up only after it has asked; each has its own moment of a grant."""
        session = next(
            (session for session in self.sessions if session.name == caller.session), None
        )
        count = min(count, session.asked - caller.number + 1) if session else 1
        for number in range(caller.number, caller.number + count) if session else ():
            session.waiting.pop(number, None)
        return Cancel(caller, self.moments.get(caller, 0) if knows and count == 1 else 0, count)

    # Replies --------------------------------------------------------------------------------------

    def both(self, call: Call) -> Reply:
        """The reply, after a look at whether both twins give the same.

        Every other call asks the fast script first, as threads do. It answers what the fast path
        carries out, and copies.
        """
        record = self.model.records.get(call.session)
        copied = call.is_lone_acquire and record is not None and call.number <= record.last
        fast = copied or self.model.is_fast(call, self.now)
        found = self.wire.call_fast(call, self.now) if call.number % 2 else None
        assert (found is not None) == (fast and call.number % 2 == 1), self.trace
        expected = self.model.call(call, self.now, unheard=self.deaf_clients)
        how = "  " if found is None else " fast"
        found = found or self.wire.call(call, self.now)
        self.trace.append(f"at {self.now}: {call}\n  {how}-> {found}")
        assert found == expected, "\n".join([*self.trace, f"but -> {expected}"])
        self.notifications.update(self.model_notifications())
        self.notify_sessions()
        self.witness.saw(self.model, call, expected)
        return found

    def model_notifications(self) -> list[str]:
        """The notifications of the model in its last call, as the script writes them."""
        return [
            " ".join([self.wire.key, *map(str, (session, t, head, paused)), spelled(outbox_items)])
            for session, t, head, paused, outbox_items in self.model.notifications
            if client_of(session) not in self.deaf_clients
        ]

    def notify_sessions(self) -> None:
        """To the sessions that are meant, and still there."""
        for name, *_, outbox_items in self.model.notifications:
            for session in self.sessions:
                if (
                    session.name == name
                    and outbox_items
                    and session.client_name not in self.deaf_clients
                ):
                    session.notified_items = outbox_items

    def hear(self, session: Session, call: Call, reply: Reply) -> None:
        if reply.verdict == "lapsed":
            session.lapse()
        elif reply.verdict in ("stale", "held"):
            session.program, session.declares = reply.program, 0
        elif reply.verdict == "offer":
            session.program = reply.program
        elif reply.verdict == "ok":
            session.declares = session.declares if call.declares in (3, 4) else 0
            session.received = reply.beginning
            self.head = reply.head
            self.learn(session, call, reply)

    def learn(self, session: Session, call: Call, reply: Reply) -> None:
        asked = [
            caller for request in call.requests for caller in callers_of(session.name, request)
        ]
        for caller, answer in zip(asked, reply.each(), strict=True):
            if caller is not None and answer[0] == "grant":
                self.moments[caller], self.fences[caller] = answer[1:]
                self.witness.believes(caller, answer[1], lease_of(call.program), reply)
            elif caller is not None and answer[0] == "wait":
                session.waiting[caller.number] = caller
        for request, answer in answered(call, reply):
            if isinstance(request, Amend) and answer[1]:
                caller, amended = request.callers(session.name)
                session.waiting[request.number] = amended
                self.callers[self.callers.index(caller)] = amended
            if isinstance(request, Rejoin) and answer[1]:
                session.waiting[request.caller.number] = request.caller
                self.moments.pop(request.caller, None)
        for caller, t, lease in self.read(session, reply.outbox):
            self.witness.believes(caller, t, lease, reply)
        self.witness.renewed(call, reply)

    def read(
        self, session: Session, outbox_items: Iterable[OutboxItem]
    ) -> list[tuple[Caller, int, int]]:
        """The waiters that get a moment from the outbox, with the moment and the lease."""
        granted = []
        for number, t, fence, lease in outbox_items:
            caller = session.waiting.pop(number, None)
            if caller is not None and t > 0:
                self.moments[caller], self.fences[caller] = t, fence
                granted.append((caller, t, lease))
        return granted

    # The final state ------------------------------------------------------------------------------

    def compare_what_is_left(self) -> None:
        """The facts that no reply brings: notifications, the state to its last number, and how long
        it lives.
        """
        received = Counter(self.wire.notifications())
        assert received == self.notifications, "\n".join(
            [*self.trace, f"announced {received}", f"but not {self.notifications}"]
        )
        found, expected = self.wire.state(), remembered(self.model)
        assert found == expected, "\n".join(
            [*self.trace, f"remembers {found}", f"but not   {expected}"]
        )
        if self.model.gate is not None:
            ends = promised(self.model), promised_members(self.model)
            needed = {
                key: (end - self.model.gate.t) // 1_000 - HASTE
                for key, end in zip(self.wire.keys, ends, strict=True)
            }
            short = {
                key: left
                for key, left in self.wire.lives().items()
                if left == FOR_EVER or left < needed[key]
            }
            assert not short, "\n".join([*self.trace, f"S8, T12: {short} is less than {needed}"])


def said_of(session: Session, requests: tuple[Request, ...]) -> int:
    """The client's word about its limits: only a caller that acquires declares, and a pause offers
    its declaration.
    """
    declared = session.waiting or session.gave_up or session.declares == 2
    if declared or any(isinstance(request, Acquire) for request in requests):
        return session.declares
    if all(
        isinstance(request, Status | Resume | Reset | Declared | PauseWhole) for request in requests
    ):
        return 3
    return (
        4
        if all(
            isinstance(request, Status | Resume | Reset | Declared | Pause | Drain)
            for request in requests
        )
        else 0
    )


def callers_of(session: str, request: Request) -> list[Any]:
    """One place for each answer: its caller, or None if the answer is not a decision."""
    if not isinstance(request, Acquire):
        return [None] * (request.count if isinstance(request, Release | Cancel) else 1)
    return [Caller(session, request.first + index, request.asked) for index in range(request.count)]


def remembered(model: Model) -> str:
    """The state of the model, as the server's is written down."""
    gate = model.gate
    if gate is None:
        return (
            " ".join(
                f"{name}=-1"
                for name in (
                    "t",
                    "not_before",
                    "reserved",
                    "fence",
                    "next_expiry",
                    "queued",
                    "restarted_at",
                )
            )
            + "\n0"
        )
    words = [
        f"t={gate.t} not_before={gate.not_before} reserved={max(gate.t, gate.reserved)} "
        f"fence={gate.fence}"
    ]
    words += [
        f"next_expiry={model.next_expiry} queued={model.queued} restarted_at={model.restarted_at}"
    ]
    for rule in gate.rules.all:
        words += [
            f"{name}={getattr(rule, name, -1)}"
            for name in ("used", "start", "level", "at", "taken", "top")
        ]
        words += [f"{moment}:{level}" for moment, level in getattr(rule, "marks", [])]
    former = [
        f"{'+' * former.updated}{former.t} {former.client_name} {former.program}"
        for former in model.replaced.former
    ]
    how = f"{model.replaced.how}{' offered' if model.offered else ''}"
    return "\n".join([" ".join(words), how, *former])
