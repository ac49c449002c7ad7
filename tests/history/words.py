"""The words of a call, read back: a call that travels as text becomes a call of tests/twins again.

The counterpart of `Call.words` there, for the calls of real clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.history.events import Commit
from tests.twins.wire import (
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
    Request,
    Reset,
    Resume,
    Settle,
    Status,
    Update,
)


def call_of(commit: Commit) -> Call:
    program, session, number, *rest = commit.args
    declares, heard, stands, horizon, *words = rest
    asked, its = tuple(requests(iter(words))), int(stands)
    return Call(
        program,
        session,
        int(number),
        asked,
        heard,
        its % 2 == 1,
        its % 4 >= 2,
        int(declares),
        int(horizon),
        its >= 4,
    )


def requests(words: Iterator[str]) -> Iterator[Request]:
    for verb in words:
        yield VERBS[verb](words)


def acquire(words: Iterator[str]) -> Acquire:
    first, count, max_sleep, max_waiters = (int(next(words)) for _ in range(4))
    return Acquire(first, count, next(words), limit(max_sleep), limit(max_waiters))


def limit(number: int) -> int | None:
    return None if number < 0 else number


def cancel(words: Iterator[str]) -> Cancel:
    session, first, count, moment, asked = (next(words) for _ in range(5))
    return Cancel(Caller(session, int(first), asked), int(moment), int(count))


def release(words: Iterator[str]) -> Release:
    session, first, count, asked = (next(words) for _ in range(4))
    return Release(Caller(session, int(first), asked), int(count))


def renew(words: Iterator[str]) -> Renew:
    session, number, asked = next(words).split(":", 2)
    return Renew(Caller(session, int(number), asked), int(next(words)), int(next(words)))


def rejoin(words: Iterator[str]) -> Rejoin:
    session, number, moment, fence, asked = (next(words) for _ in range(5))
    return Rejoin(Caller(session, int(number), asked), int(moment), int(fence))


def drain(words: Iterator[str]) -> Drain:
    unit, limit, left, since = (next(words) for _ in range(4))
    return Drain(unit, int(limit), int(left), int(since))


VERBS: dict[str, Callable[[Iterator[str]], Request]] = {
    "acquire": acquire,
    "amend": lambda words: Amend(int(next(words)), next(words), next(words)),
    "cancel": cancel,
    "release": release,
    "renew": renew,
    "quit": lambda words: Quit(next(words), next(words)),
    "settle": lambda words: Settle(int(next(words)), next(words)),
    "drain": drain,
    "pause": lambda words: Pause(int(next(words))),
    "whole": lambda words: PauseWhole(int(next(words))),
    "rejoin": rejoin,
    "resume": lambda words: Resume(),
    "reset": lambda words: Reset(),
    "declared": lambda words: Declared(),
    "status": lambda words: Status(next(words)),
    "update": lambda words: Update(next(words).replace(",", " ")),
}
