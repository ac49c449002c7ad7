"""`python -m benchmarks.bookings`: both ways to move reservations, the same works, in one run of
about a minute and a half.

Here is the table. Exit status: 0 when both were right, 1 when a check failed, 2 when nothing could
be measured.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

from benchmarks import machine, server
from benchmarks.bookings.works import SESSIONS, WORKS, Outcome, measured

WAYS = {"a": "(a) booked, shifts", "b": "(b) queue, headgate"}
Figure = Callable[[Outcome], float]
ASKING: dict[str, Figure] = {
    "script time each until all have asked, us": lambda done: (
        done.asking.microseconds / done.work.callers
    ),
    "script time each until all are through, us": lambda done: (
        done.whole.microseconds / done.work.callers
    ),
    "server's CPU each until all are through, us": lambda done: (
        done.whole.cpu * 1_000_000 / done.work.callers
    ),
    "calls until all have asked": lambda done: done.asking.calls,
    "calls after that": lambda done: done.whole.calls - done.asking.calls,
    "commands inside the scripts, each": lambda done: done.whole.inside / done.work.callers,
    "announcements": lambda done: done.whole.announced,
    "worst between a moment and its caller's going, ms": lambda done: done.latest,
}
GIVING_UP: dict[str, Figure] = {
    "calls while some give up": lambda done: done.giving_up.calls,
    "announcements while some give up": lambda done: done.giving_up.announced,
    "script time while some give up, us": lambda done: done.giving_up.microseconds,
    "got through": lambda done: len(done.through),
    "seconds until the last is through": lambda done: done.seconds,
    "tokens lost meanwhile": lambda done: done.lost,
}


def main() -> int:
    # A kill must not leave a redis-server behind: it becomes an exit, which every `finally` sees.
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        with server.private_server() as url:
            say(machine.facts(server.server_version(url)))
            return run(url)
    except server.ServerMissingError as error:
        say(str(error))
        return 2


def run(url: str) -> int:
    say(
        f"one bucket, 100 tokens a second, empty at first; callers in {SESSIONS} processes, a "
        "session each"
    )
    say("an announcement of (a) is heard by every session, one of (b) by one")
    right = True
    for number, work in enumerate(WORKS):
        done = [measured(work, way, url, f"bookings{number}") for way in WAYS]
        show(done)
        for way, outcome in zip(WAYS.values(), done, strict=True):
            for failure in outcome.failures():
                right = False
                say(f"  !!! CHECK FAILED, {way}: {failure}")
    say(
        "\nall checks hold: never over, in order, never early, nobody lost"
        if right
        else "\n!!! A CHECK FAILED: see above"
    )
    return 0 if right else 1


def show(done: list[Outcome]) -> None:
    work = done[0].work
    say(f"\n{work.title:<52}{''.join(f'{way:>20}' for way in WAYS.values())}{'(b) / (a)':>12}")
    for title, figure in (ASKING if work.give_up < 0 else ASKING | GIVING_UP).items():
        a, b = (figure(outcome) for outcome in done)
        ratio = f"{b / a:.2f}" if a and b else ""
        say(f"  {title:<50}{shown(a):>20}{shown(b):>20}{ratio:>12}")


def shown(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 or figure == int(figure) else f"{figure:.2f}"


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
