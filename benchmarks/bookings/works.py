"""The works: four processes ask one bucket of the server, and the server's own figures show the
cost.

Here are the callers' actions, the counts and the checks. Here is no line that differs for one of
the two ways.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from redis import Redis

from benchmarks.bookings.session import STEP, Through
from benchmarks.usage import Stats, stats

SESSIONS = 4
HORIZON = 50_000  # microseconds: the tokens that fit into it may be lost


class Work(NamedTuple):
    """The actions of the callers; seconds."""

    title: str
    callers: int
    apart: float = 0.0  # between two askers of one process
    # between two of every other caller, which give up; less than 0: none gives up
    give_up: float = -1.0


WORKS = (
    Work("100 at once", 100),
    Work("1,000 at once", 1000),
    Work("1,000, each process's 1 ms apart", 1000, apart=0.001),
    Work("the same, and then every other one gives up, at once", 1000, apart=0.001, give_up=0.0),
    Work(
        "the same, and then every other one gives up, each process's 4 ms apart",
        1000,
        apart=0.001,
        give_up=0.004,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """One work done one way: the server's work while all asked, while some gave up, and in all; and
    the granted callers.
    """

    work: Work
    asking: Stats
    giving_up: Stats
    whole: Stats
    through: list[Through]

    @property
    def seconds(self) -> float:
        return (self.through[-1].moment - self.through[0].moment + STEP) / 1_000_000

    @property
    def lost(self) -> int:
        """Tokens that no caller got, though one waited for them."""
        return round(self.seconds * 1_000_000 / STEP) - len(self.through)

    @property
    def latest(self) -> float:
        """Milliseconds between a moment and its caller's going: the worst."""
        return max(one.gone - one.moment for one in self.through) / 1000

    def failures(self) -> Iterator[str]:
        """The checks that failed."""
        start, moments = self.through[0].moment, [one.moment for one in self.through]
        if any(moment < start + index * STEP for index, moment in enumerate(moments)):
            yield "T1: more was granted than the bucket had"
        if moments != sorted(moments):
            yield "T3: an earlier one was granted a later moment"
        if any(one.gone < one.moment for one in self.through):
            yield "TL1: somebody went before the moment"
        arrived = sorted(self.through)
        if any(a.session == b.session and a.order >= b.order for a, b in pairwise(arrived)):
            yield "S6: somebody overtook, or two have one booking"
        callers = self.work.callers // SESSIONS
        stayed = range(callers) if self.work.give_up < 0 else (*range(0, callers, 2), callers)
        if not {(session, place) for session in range(SESSIONS) for place in stayed} <= {
            one[:2] for one in self.through
        }:
            yield "L5: somebody who stayed did not get through"
        if not 0 <= self.lost <= HORIZON // STEP:
            yield f"T5: {self.lost} tokens were lost"


def measured(work: Work, way: str, url: str, name: str) -> Outcome:
    with Redis.from_url(url) as server, ExitStack() as stack:
        callers = work.callers // SESSIONS
        words = (way, url, name, callers, work.apart, work.give_up)
        sessions = [stack.enter_context(process((number, *words))) for number in range(SESSIONS)]
        stages = [together(sessions, server, word) for word in ("ready", "asked", "given up")]
        through = [Through(*one) for session in sessions for one in json.loads(line_of(session))]
        stages.append(stats(server))
    through.sort(key=lambda one: one.order)
    asking, giving_up, _ = (after - before for before, after in pairwise(stages))
    return Outcome(work, asking, giving_up, stages[-1] - stages[0], through)


@contextmanager
def process(words: tuple[object, ...]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "benchmarks.bookings.session", *map(str, words)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            yield running
        finally:
            if running.poll() is None and sys.exc_info()[0] is not None:
                running.kill()


def together(sessions: list[subprocess.Popen[str]], server: Redis, word: str) -> Stats:
    """All sessions have come so far: the server's figures until now; and all go on."""
    for session in sessions:
        said = line_of(session).strip()
        assert said == word, f"a session said {said!r} instead of {word!r}"
    before = stats(server)
    for session in sessions:
        assert session.stdin is not None
        session.stdin.write("\n")
        session.stdin.flush()
    return before


def line_of(session: subprocess.Popen[str]) -> str:
    assert session.stdout is not None
    return session.stdout.readline()
