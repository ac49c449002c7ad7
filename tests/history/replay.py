"""The store's half of a history: the model of tests/twins gets every call that the store has run,
and the answers must be the same.

One pass compares each answer, word for word, with the model's answer at the store's time. A
difference is reported by the invariant that it breaks.
"""

from __future__ import annotations

import pickle
from typing import NamedTuple

from tests.history.events import Commit, Copied, Event, Lost, Op, Restored
from tests.history.words import call_of
from tests.twins.model import Model, OutboxItem
from tests.twins.wire import Answer, Call, Reply, parsed


class Broken(NamedTuple):
    """The first event of a history that breaks an invariant: the event number `at`."""

    invariant: str
    at: int
    story: str


class Replay:
    """The models of all names, at one point of a history."""

    def __init__(self) -> None:
        self.seq = 0
        self.names: dict[str, Name] = {}
        self._copies: dict[int, bytes] = {}

    def check(self, event: Event) -> tuple[str, str] | None:
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
    """One name, as the model has it, and the store's last clock and fence."""

    def __init__(self) -> None:
        self.model = Model()
        self.t = 0
        self.fence = 0  # the last one that this state has given
        self.lost = 0  # the highest fence or time in any state that was lost
        self.lost_fence = 0  # and the fence alone
        self.answered: dict[Op, Reply] = {}

    def lose(self, part: str) -> None:
        self.model.lose(part)
        if part == "":
            self.follow(self)
            self.answered, self.t, self.fence = {}, 0, 0

    def follow(self, former: Name) -> None:
        """The server has started again without the writes that came after this."""
        self.lost_fence = max(former.lost_fence, former.fence)
        self.lost = max(former.lost, former.t, former.fence)

    def commit(self, commit: Commit) -> tuple[str, str] | None:
        call = call_of(commit)
        found = parsed(commit.reply, call.program.count(";") + 1)
        expected = self._expected(call, commit)
        return self._unlike_itself(commit, found) or self._unlike_the_model(found, expected)

    def _expected(self, call: Call, commit: Commit) -> Reply:
        return self.model.call(call, commit.t, unheard=commit.unheard, run=commit.run)

    def _unlike_itself(self, commit: Commit, found: Reply) -> tuple[str, str] | None:
        """Checks that need no model: the receiver of the answer, its time and its fences."""
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
        ):  # it runs a call again that it has forgotten: half a minute later (docs/promises.md)
            return "T10", f"call {op[2]} of {op[1]} was run twice: {former}, then {found}"
        self.answered[op] = found
        if found.t < self.t:
            return "T6", f"the store's time was {self.t}, and is {found.t}"
        self.t = found.t
        return self._stale_fence(found)

    def _stale_fence(self, found: Reply) -> tuple[str, str] | None:
        """A state that has replaced lost ones has passed their fences once its time is beyond all
        their times. After a clock that stepped back this takes as long, and meanwhile a fence may
        be given again (docs/redis.md).
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


# The meaning of a difference ----------------------------------------------------------------------


def invariant_of(found: Reply, expected: Reply) -> str:
    """By the first answer, or notification, that differs."""
    if found.verdict != expected.verdict:
        return "T10" if "late" in (found.verdict, expected.verdict) else "S8"
    if found.t != expected.t:
        return "T6"
    for given, right in zip(found.each(), expected.each(), strict=False):
        if given != right:
            return invariant_between(given, right)
    for notification, expected_one in zip(found.outbox, expected.outbox, strict=False):
        if notification != expected_one:
            return invariant_of_notification(notification, expected_one)
    return "L2"  # a caller does not get its grant, or the time of the next look


def invariant_of_notification(notification: OutboxItem, right: OutboxItem) -> str:
    """Its receiver, its moment, its fence, and its lease."""
    if notification[0] != right[0]:
        return "S6"
    if notification[1] != right[1]:
        return "T1" if notification[1] < right[1] else "T2"
    return "S5" if notification[2] != right[2] else "S2"


def invariant_between(given: Answer, right: Answer) -> str:
    kinds = given[0], right[0]
    if kinds == ("grant", "grant"):
        return "S5" if given[1] == right[1] else "T1" if given[1] < right[1] else "T2"
    if given[0] == "grant":
        return "S1"  # or the limit of a rate: more is granted than there is
    if right[0] == "grant":
        return "S7"  # a free permit is kept back
    if kinds == ("done", "done"):
        return "S4"
    return "S6" if kinds == ("wait", "wait") else "T8"
