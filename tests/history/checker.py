"""The judgement of a history, in one pass: the store's half is replayed, and the clients' half must
agree with it and with real time.

A call that was answered before another one was made was decided before it. A call of unknown
outcome, made and never answered, may have been run or not. The store's half says which; if the call
was run, then not before it was made. A history in which it can be neither is false.
"""

from __future__ import annotations

from collections import defaultdict
from math import inf
from typing import NamedTuple

from tests.history.events import Commit, History, Invoked, Op, Returned
from tests.history.replay import Broken, Replay


class Verdict(NamedTuple):
    """`broken` is None for a history that agrees with the model."""

    broken: Broken | None
    commits: int
    unknown: int  # calls of unknown outcome
    run: int  # of these, so many were run after all

    def __str__(self) -> str:
        if self.broken is not None:
            return f"event {self.broken.at} breaks {self.broken.invariant}: {self.broken.story}"
        return (
            f"{self.commits} commits agree with the model; {self.unknown} calls of unknown "
            f"outcome, {self.run} of which were run"
        )


def judged(history: History) -> Verdict:
    replay, clients = Replay(), Clients(history)
    for at, event in enumerate(history):
        found = (
            clients.check(event) if isinstance(event, Invoked | Returned) else replay.check(event)
        )
        if found is not None:
            return Verdict(Broken(found[0], at, found[1]), replay.seq, 0, 0)
    late = clients.run_before_they_were_made()
    broken = Broken("order", len(history), late) if late else None
    return Verdict(broken, replay.seq, len(clients.unknown), clients.unknown_but_run)


class Clients:
    """The clients' half.

    `Invoked` and `Returned` stand in the order of their own clock, wherever the commits stand.
    """

    def __init__(self, history: History) -> None:
        self._commits: dict[Op, list[Commit]] = defaultdict(list)
        for event in history:
            if isinstance(event, Commit):
                self._commits[event.op].append(event)
        self._watches = any(isinstance(event, Invoked) for event in history)
        self._floor: dict[
            Op, int
        ] = {}  # the last commit that any client knew of when the call was made
        self._known = 0  # the last commit that any client knows of
        self.unknown: set[Op] = set()

    @property
    def unknown_but_run(self) -> int:
        return sum(op in self._commits for op in self.unknown)

    def check(self, event: Invoked | Returned) -> tuple[str, str] | None:
        if isinstance(event, Invoked):
            self._floor.setdefault(event.op, self._known)
            self.unknown.add(event.op)
            return None
        return self._returned(event)

    def _returned(self, event: Returned) -> tuple[str, str] | None:
        _, session, number = event.op
        if event.op not in self._floor:
            return "S3", f"nobody has asked for the answer to call {number} of {session}"
        made = [commit for commit in self._commits[event.op] if commit.reply == event.reply]
        if not made:
            return (
                "S3",
                f"call {number} of {session} was answered {event.reply!r}, which the store has "
                "never said to it",
            )
        if made[-1].seq <= self._floor[event.op]:
            return (
                "order",
                f"call {number} of {session} was run as {made[-1].seq}, behind "
                f"{self._floor[event.op]}: before it was made",
            )
        self._known = max(self._known, made[0].seq)
        self.unknown.discard(event.op)
        return None

    def run_before_they_were_made(self) -> str:
        """The first call that can neither have been run nor not: the store ran it before a client
        made it, or no client has made it.
        """
        for op, commits in self._commits.items() if self._watches else ():
            if commits[0].seq <= self._floor.get(op, inf):
                return (
                    f"call {op[2]} of {op[1]} was run as {commits[0].seq}, and made by nobody "
                    "before that"
                )
        return ""
