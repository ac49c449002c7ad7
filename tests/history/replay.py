"""The store's half of a history: every call that it has run is given to the model of tests/twins,
and the answers must be the same.

One pass: each answer is compared, word for word, with the one that the model gives at the time
which the store has told. What differs is said by the invariant that it breaks.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

from tests.history.events import Commit, Copied, Event, Lost, Op, Restored
from tests.history.words import call_of
from tests.twins.model import Model, OutboxItem
from tests.twins.wire import Answer, Call, Reply, parsed


class Broken(NamedTuple):
    """Where a history is not one that may be: in its event number `at`."""

    invariant: str
    at: int
    story: str


class Replay:
    """The models of all names, at one point of a history."""

    def __init__(self) -> None:
        self.seq = 0
        self.names: dict[str, Name] = {}
        self._copies: dict[int, bytes] = {}

    def hear(self, event: Event) -> tuple[str, str] | None:
        """The invariant that `event` breaks, and how."""
        match event:
            case Commit():
                return self._commit(event)
            case Lost(key, part):
                if key in self.names:
                    self.names[key].lose(part)
            case Copied(copy):
                self._copies[copy] = pickle.dumps(self.names)
            case Restored(copy, str(key)):
                former = self.names.get(key, Name())
                self.names[key] = pickle.loads(self._copies[copy or 0]).get(key) or Name()
                self.names[key].follow(former)
            case Restored(copy):
                names, self.names = (
                    self.names,
                    {} if copy is None else pickle.loads(self._copies[copy]),
                )
                for key, name in names.items():
                    self.names.setdefault(key, Name()).follow(name)
        return None

    def _commit(self, commit: Commit) -> tuple[str, str] | None:
        if commit.seq != self.seq + 1:
            return "order", f"commit {commit.seq} stands behind commit {self.seq}"
        self.seq = commit.seq
        return self.names.setdefault(commit.key, Name()).commit(commit)


class Name:
    """One name, as the model has it, and the store's clock and fence as they were told last."""

    def __init__(self) -> None:
        self.model = Model()
        self.blind = False  # a log was lost, of which the model knows nothing: until all is new
        self.t = 0
        self.fence = 0  # the last one that this state has given
        self.lost = 0  # the highest fence, or time that was told, in whatever state was lost
        self.lost_fence = 0  # and the fence alone
        self.answered: dict[Op, Reply] = {}

    def lose(self, part: str) -> None:
        if part == "log":
            self.blind = True
            return
        self.model.lose(part)
        if part == "":
            self.follow(self)
            self.blind, self.answered, self.t, self.fence = False, {}, 0, 0

    def follow(self, former: Name) -> None:
        """The server has started again without what came after this."""
        self.lost_fence = max(former.lost_fence, former.fence)
        self.lost = max(former.lost, former.t, former.fence)

    def commit(self, commit: Commit) -> tuple[str, str] | None:
        call = call_of(commit)
        found = parsed(commit.reply, call.program.count(";") + 1)
        expected = self._expected(call, commit)
        return self._unlike_itself(commit, found) or (
            None if self.blind else self._unlike_the_model(found, expected)
        )

    def _expected(self, call: Call, commit: Commit) -> Reply:
        model = self.model
        kept = (
            model.outbox.pop(call.session, None) if commit.quick else None
        )  # the quick call reads no mail: it stays where it is
        expected = model.call(
            call, commit.t, quickly=commit.quick, unheard=commit.unheard, run=commit.run
        )
        if kept:
            model.outbox[call.session] = kept
        return expected

    def _unlike_itself(self, commit: Commit, found: Reply) -> tuple[str, str] | None:
        """What needs no model: whom it answers, its time and its fences."""
        op = commit.op
        if (found.session, found.number) != op[1:]:
            return (
                "S3",
                f"call {op[2]} of {op[1]} is answered as call {found.number} of {found.session}",
            )
        former = self.answered.get(op)
        if found.verdict != "ok" or found == former:
            return None
        if (
            former is not None and not self.model.acted
        ):  # it acts again on what it has forgotten: half a minute later (docs/promises.md)
            return "T10", f"call {op[2]} of {op[1]} was run twice: {former}, then {found}"
        self.answered[op] = found
        if found.t < self.t:
            return "T6", f"the store's time was {self.t}, and is {found.t}"
        self.t = found.t
        return self._stale_fence(found)

    def _stale_fence(self, found: Reply) -> tuple[str, str] | None:
        """A state that has lost others has their fences behind it once its time has come past all
        that was said in them. Where the clock had stepped back that takes as long, and a fence may
        be given again meanwhile (docs/redis.md).
        """
        for answer in found.each():
            if answer[0] == "grant":
                behind = max(self.fence, self.lost_fence if found.t > self.lost else 0)
                if answer[2] <= behind:
                    return "S5", f"the fence {answer[2]} does not rise above {behind}"
                self.fence = answer[2]
        return None

    def _unlike_the_model(self, found: Reply, expected: Reply) -> tuple[str, str] | None:
        if found == expected:
            return None
        return invariant_of(found, expected), f"the store says {found}, the model {expected}"


# What a difference means --------------------------------------------------------------------------


def invariant_of(found: Reply, expected: Reply) -> str:
    """By the first answer, or letter, that differs."""
    if found.verdict != expected.verdict:
        return "T10" if "late" in (found.verdict, expected.verdict) else "S8"
    if found.t != expected.t:
        return "T6"
    for told, right in zip(found.each(), expected.each(), strict=False):
        if told != right:
            return invariant_between(told, right)
    for letter, right_one in zip(found.outbox, expected.outbox, strict=False):
        if letter != right_one:
            return invariant_of_letter(letter, right_one)
    return "L2"  # somebody is not told what is for it, or when to look again


def invariant_of_letter(letter: OutboxItem, right: OutboxItem) -> str:
    """Whom it is for, when, with which fence, and for how long."""
    if letter[0] != right[0]:
        return "S6"
    if letter[1] != right[1]:
        return "T1" if letter[1] < right[1] else "T2"
    return "S5" if letter[2] != right[2] else "S2"


def invariant_between(told: Answer, right: Answer) -> str:
    kinds = told[0], right[0]
    if kinds == ("grant", "grant"):
        return "S5" if told[1] == right[1] else "T1" if told[1] < right[1] else "T2"
    if told[0] == "grant":
        return "S1"  # or the limit of a rate: more is granted than there is
    if right[0] == "grant":
        return "S7"  # what is free is kept back
    if kinds == ("done", "done"):
        return "S4"
    return "S6" if kinds == ("wait", "wait") else "T8"
