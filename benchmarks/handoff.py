"""From the release in one process to the grant in another: a permit of capacity 1 goes to and fro
between two real processes.

Both read the same monotonic clock, which Linux shares between processes. The unit is the bare round
trip, measured in the same processes between the hand-offs: an EVALSHA. The goal is judged by
headgate's own connection; redis-py is slower.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

from benchmarks import table
from benchmarks.entrants import OURS, SEMAPHORES, Entrant
from benchmarks.goals import Line
from benchmarks.peers import alone, bare, wire
from benchmarks.shapes import describe
from benchmarks.stage import Role, Stage

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KEY = "hand-off"
TIMES, QUICK_TIMES = 300, 20
MOST = 3.0  # the goal: bare round trips
# Seconds: the caller that asks has joined the queue, and all are as idle before a round trip as
# before a hand-off.
PAUSE = 0.01
TOO_LONG = 20.0  # seconds for one answer of a side
WIRE, REDIS_PY = "EVALSHA by headgate's wire", "by redis-py"
BARE = {WIRE: wire.evalsha, REDIS_PY: bare.evalsha}
FLOOR = "a bare notification"
ENTRANTS = (*SEMAPHORES, Entrant(FLOOR, alone.baton))


class SideError(Exception):
    """A side could not follow its order; the text is its reason."""


@dataclass
class Handed:
    """One contestant's hand-offs, in seconds, or why there are none; and the bare round trips
    between them.
    """

    name: str
    seconds: list[float] = field(default_factory=list)
    bare: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in BARE})
    failure: str = ""

    def trips(self, percent: int, unit: str = WIRE) -> float:
        """A percentile in bare round trips: their median."""
        return percentile(self.seconds, percent) / median(self.bare[unit])


def measured(url: str, mark: str, quick: bool) -> Line:
    times = QUICK_TIMES if quick else TIMES
    handed = [
        handed_over(entrant, url, f"{mark}h{number}", times)
        for number, entrant in enumerate(ENTRANTS)
    ]
    show(handed, times)
    return line(handed)


def handed_over(entrant: Entrant, url: str, name: str, times: int) -> Handed:
    handed = Handed(entrant.name)
    with ExitStack() as stack:
        try:
            giver, taker = (stack.enter_context(side(entrant.name, url, name)) for _ in range(2))
            told(giver, "enter")
            for number in range(times + 1):  # the first turn sets up everything that is set up once
                one(giver, taker, handed, counts=number > 0)
                giver, taker = taker, giver
        except (SideError, EOFError) as error:
            handed.failure = describe(error)
    return handed


def one(giver: Connection, taker: Connection, handed: Handed, counts: bool) -> None:
    for unit in BARE:
        sleep(PAUSE)
        seconds = told(taker, unit)
        if counts:
            handed.bare[unit].append(seconds)
    taker.send("enter")
    sleep(PAUSE)
    released = told(giver, "leave")
    granted = answer(taker)
    if counts:
        handed.seconds.append(granted - released)


def told(pipe: Connection, word: str) -> float:
    pipe.send(word)
    return answer(pipe)


def answer(pipe: Connection) -> float:
    if not pipe.poll(TOO_LONG):
        raise SideError(f"no answer within {TOO_LONG:.0f} s")
    said = pipe.recv()
    if isinstance(said, str):
        raise SideError(said)
    return float(said)


# The two processes --------------------------------------------------------------------------------


@contextmanager
def side(entrant: str, url: str, name: str) -> Iterator[Connection]:
    """A process that enters and leaves on order, and says at which moment it did."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=play, args=(theirs, entrant, url, name), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()  # its input ends, and so does it
        process.join(TOO_LONG)
        if process.is_alive():
            process.kill()
            process.join()


def play(pipe: Connection, entrant: str, url: str, name: str) -> None:
    opening = next(each.opening for each in ENTRANTS if each.name == entrant)
    with asyncio.Runner() as runner, ExitStack() as stack:
        stage = Stage(url, runner, name)
        try:
            entry = stack.enter_context(opening(stage))(name)
            calls = {
                unit: stack.enter_context(bare_opening(stage))(f"{name}bare")
                for unit, bare_opening in BARE.items()
            }
            stage.run(answering(pipe, entry, calls))
        except EOFError:
            pass  # we are not needed any more
        except Exception as error:
            pipe.send(describe(error))


async def answering(pipe: Connection, entry: Any, calls: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        word = await loop.run_in_executor(None, pipe.recv)
        if word == "enter":
            await entry.__aenter__()
            pipe.send(perf_counter())
        elif word == "leave":
            moment = perf_counter()
            await entry.__aexit__(None, None, None)
            pipe.send(moment)
        else:
            start = perf_counter()
            await calls[word]()
            pipe.send(perf_counter() - start)


# Output -------------------------------------------------------------------------------------------


def percentile(seconds: Sequence[float], percent: int) -> float:
    return (
        quantiles(seconds, n=100, method="inclusive")[percent - 1]
        if len(seconds) > 1
        else seconds[0]
    )


def show(handed: Sequence[Handed], times: int) -> None:
    table.say(
        "semaphore on Redis, capacity 1: from the release in one process to the grant in another, "
        f"{times} times  [{KEY}]"
    )
    heads = (
        "",
        "p50, us",
        "p99, us",
        "p50, round trips",
        "p99, round trips",
        "p50, redis-py's",
        "",
    )
    table.columns(heads, [cells(each) for each in handed])
    for each in handed:
        if each.failure:
            table.say(f"  {each.name} fails: {each.failure}")
    for unit in BARE:
        seconds = [one for each in handed for one in each.bare[unit]]
        if seconds:
            p50, p99 = (table.figure(percentile(seconds, percent) * 1e6) for percent in (50, 99))
            table.say(
                f"  a bare round trip, {unit}, in the same processes: p50 {p50} us, p99 {p99} us"
            )
    table.say("")


def cells(each: Handed) -> table.Cells:
    if each.failure or not each.seconds:
        return each.name, "fails", "", "", "", "", ""
    figures = (table.figure(percentile(each.seconds, percent) * 1e6) for percent in (50, 99))
    trips = (f"{each.trips(percent):,.1f}" for percent in (50, 99))
    note = table.NOTES[Role.FLOOR] if each.name == FLOOR else ""
    return each.name, *figures, *trips, f"{each.trips(50, REDIS_PY):,.1f}", note


def line(handed: Sequence[Handed]) -> Line:
    ours = next(each for each in handed if each.name == OURS)
    others = [each for each in handed if each.name not in (OURS, FLOOR) and not each.failure]
    bottom = [each for each in handed if each.name == FLOOR and not each.failure]
    work, goal = (
        "hand-off to another process, p50 (p99)",
        f"at most {MOST:.0f} bare round trips (p50)",
    )
    best = min(others, key=lambda each: each.trips(50), default=None)
    peer = f"{best.name} {trips(best)}" if best else "all fail"
    if ours.failure:
        return Line(work, peer, "-", "fails", goal, None)
    units = (
        f"{unit} {table.figure(median(seconds) * 1e6)} us" for unit, seconds in ours.bare.items()
    )
    floor = ", ".join((*(f"{FLOOR} {trips(each)}" for each in bottom), *units))
    return Line(work, peer, floor, trips(ours), goal, ours.trips(50) <= MOST)


def trips(each: Handed) -> str:
    return f"{each.trips(50):,.1f} ({each.trips(99):,.1f}) trips"
