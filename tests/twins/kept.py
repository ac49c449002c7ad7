"""The model's record of sessions and of limits that were replaced, its gate and its readers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from headgate.gate.compile import Declaration
from headgate.gate.compile import parsed as rule_of
from headgate.gate.gate import Gate, Rule, Units
from headgate.request import NOTHING
from tests.twins.wire import Answer, Call, Reply

FORMER = 8  # declarations that are remembered
HOLD = 60_000_000  # for so long limits that another process has replaced are not taken again


def units_of(text: str) -> Units:
    if text == NOTHING:
        return {}
    return {unit: int(number) for unit, number in (part.split("=") for part in text.split(","))}


def done(count: int, asked: int) -> list[Answer]:
    """The answer to many returns: how many were there, not which."""
    return [("done", 1, 1, 0)] * count + [("done", 1, 0, 0)] * (asked - count)


def rules_of(program: str) -> tuple[Rule, ...]:
    return Declaration([rule_of(text) for text in program.split(";")]).rules()


@dataclass
class Record:
    """The record of a session: the number of its last call, until when it counts as alive, and its
    last reply.
    """

    last: int
    alive_until: int
    reply: Reply
    listened: int = 0  # the moment of that call, if the server notifies the session
    run: int = 0  # of that server

    def granted_at(self, number: int) -> int:
        """The moment of the grant by a thread's last call, if it has this number, or 0."""
        answers = self.reply.answers if number == self.last else ()
        return sum(t for kind, _, t, *_ in answers if kind == "grant")


class Former(NamedTuple):
    """Limits that were replaced: when, by whose client, and whether only an update had set them."""

    t: int
    client_name: str
    program: str
    updated: bool


@dataclass
class Replaced:
    """The limits that a name had before, and how it came by its present ones."""

    how: int = 0  # the present limits came: 0 by a declaration, 1 by an update, 2 by both
    former: list[Former] = field(default_factory=list)  # the oldest first

    def withheld(self, call: Call, t: int) -> int:
        """For how long the name does not take the declaration of the call. -1: as long as the
        update holds; 0: it takes it.
        """
        if call.declares == 2 or not self.former:
            return 0
        found = next((former for former in self.former if former.program == call.program), None)
        if found is not None and self.how:
            return -1
        if client_of(call.session) in (self.former[-1].client_name, found and found.client_name):
            return 0
        if found is not None:
            return max(0, found.t + HOLD - t)
        young = [former.t for former in self.former if former.t + HOLD > t and not former.updated]
        return young[0] + HOLD - t if len(young) >= FORMER else 0

    def replace(self, call: Call, program: str, present: str, t: int) -> None:
        """Remember that the call's limits took the place of `program`.

        The name had `present` until now.
        """
        updates, how = call.declares == 2, self.how
        declared = call.program == present and how != 1
        declared |= any(
            former.program == call.program and not former.updated for former in self.former
        )
        self.how = 0 if not updates else 2 if declared else 1
        kept = [former for former in self.former if updates or former.t + HOLD > t]
        kept = [former for former in kept if former.program not in (program, call.program)]
        if program != call.program:
            kept.append(
                Former(t, client_of(call.session), program, program == present and how == 1)
            )
        self.former = shortened(kept)

    def confirm(self) -> None:
        """A process declares the present limits."""
        if self.how == 1:
            self.how = 2


def end_that_says(since: int, end: int) -> int:
    """The end of a lease that was renewed or shortened: up to 33 ms later, at a moment of which the
    last 15 bits say since when the permit is held.
    """
    since = max(0, min(since, end))
    spans = [20_000 * 8**power for power in range(8)]
    power = next((power for power in range(7) if end + 2**15 - since < 4096 * spans[power]), 7)
    bits = 4096 * power + since // spans[power] % 4096
    return end + (bits - end) % 2**15


def client_of(session: str) -> str:
    return session.partition(".")[0]


def shortened(entries: list[Former]) -> list[Former]:
    """The last few that were declared; those that were only updated make room for them, but for the
    very last.
    """
    if not entries:
        return []
    *earlier, last = entries
    room = FORMER - (not last.updated)
    excess = max(0, len(earlier) - room)
    spare = [former for former in earlier if former.updated][:excess]
    earlier = [former for former in earlier if former not in spare]
    return [*earlier[max(0, len(earlier) - room) :], last]


class PatientGate(Gate):
    """A gate that leaves it to the head of the queue to find out that it can never pass."""

    def requeue(self) -> list[Hashable]:
        asked, self.queue, self.waiting = self.queue, OrderedDict(), [0] * len(self.rules.all)
        for caller, (units, _) in asked.items():
            self.join(caller, units, self.rules.costs(units))
        return []
