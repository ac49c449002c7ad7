"""What travels between a lane and the script: acquires, errands, the calls that carry them, and the words in which they do.

Here lives writing and reading them; when they are sent, and what is done about an answer, is the lane's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from headgate.errors import StoreError
from headgate.gate.gate import Grant
from headgate.request import Request

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from headgate.stores.redis.script import Script
    from headgate.waiting import Waiting

Answer = list[str] | StoreError
KNOWN, DECLARED, UPDATED = 0, 1, 2  # what a call says of the limits it names: they are known, declared, or declared come what may


class Command(NamedTuple):
    """A script and what it is told."""

    script: Script
    words: tuple[Any, ...]


class Ticket:
    """One acquire on its way: asked, waiting, or granted and sleeping until its moment."""

    __slots__ = ("believed", "cancel", "deadline", "due", "future", "lease", "number", "request", "session", "start", "t")

    def __init__(self, number: int, request: Request, future: Future[Any]) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.start = monotonic()
        self.session = ""  # once it is sent
        self.due = inf  # by the estimate, on the monotonic clock
        self.deadline: TimerHandle | None = None  # of one that waits, and may not for ever
        self.t = 0  # the moment granted, once there is one
        self.lease = 0  # for which it was granted, microseconds
        self.cancel: Errand | None = None  # by which it is given up: one and no more, or its grant would be undone twice
        self.believed: float | None = None  # until when the grant is held for certain, on the monotonic clock, if it is held

    @property
    def waited(self) -> float:
        return monotonic() - self.start

    @property
    def caller(self) -> str:
        return f"{self.session}:{self.number}:{self.request.text}"

    def tell(self, waiting: Waiting) -> None:
        """That it waits, once, if it wants to know: its task hears of that first, and of the outcome by another future."""
        request = self.request
        if request.on_wait is not None:
            self.request = Request(request.units, request.max_sleep, request.max_waiters)
            asked, self.future = self.future, self.future.get_loop().create_future()
            self.future.add_done_callback(seen)  # its task may be cancelled before it comes to that
            asked.set_result(waiting)

    def settle(self, outcome: Grant | BaseException) -> None:
        if not self.future.done():
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


@dataclass(slots=True, eq=False)
class Errand:
    """Any other request: its words, and who wants to know what came of it."""

    words: str
    told: Callable[[Answer], object]


class Sent(NamedTuple):
    """A call on its way: what is sent, again if need be, and who is answered by it."""

    command: Command
    session: str
    number: int
    program: str
    lease: int  # by that program
    at: float
    tickets: list[Ticket]
    errands: list[Errand]

    @property
    def declares(self) -> int:
        """What it says of its limits, if it is a whole call."""
        words = self.command.words
        return int(words[words[0] + 4])


def nobody(answer: Answer) -> None:
    """Nobody wants to know."""


def seen(future: Future[Any]) -> None:
    """Nobody has to hear that an error was never looked at."""
    if not future.cancelled():
        future.exception()


def answers_in(words: Iterator[str], program: str) -> Iterator[list[str]]:
    """One answer for each request, in order: runs of equal ones are told as one. A status says under which limits it was asked.

    Fences of grants follow one another, and so do positions of those who wait.
    """
    for word in words:
        if word == "status":
            yield [program, *islice(words, 3 + program.count(";"))]
            continue
        count, number, fence = islice(words, 3)
        step = 0 if word == "full" else 1  # of who is turned away nobody stands before the next one
        for index in range(int(count)):
            yield [word, number, str(int(fence) + index * step)]


def runs(tickets: list[Ticket]) -> Iterator[str]:
    """The acquires as the script reads them: neighbours that ask for the same are one line.

    Who wants to know when it has to wait begins a line: of each the script tells the estimate of the first.
    """
    index = 0
    while index < len(tickets):
        first, start = tickets[index], index
        asked = asked_of(first)
        index += 1
        while index < len(tickets) and follows(tickets[index], first.number + index - start, asked):
            index += 1
        yield f"acquire {first.number} {index - start} {asked}"


def lines(errands: list[Errand]) -> Iterator[str]:
    """The errands as the script reads them: releases of neighbours are one line, if nobody waits for the answers.

    Of many it is told how many were still held, not which.
    """
    index = 0
    while index < len(errands):
        first, start = errands[index], index
        index += 1
        if not first.words.startswith("release "):
            yield first.words
            continue
        session, number, asked = first.words[8:].split(":")
        while index < len(errands) and first.told is errands[index].told is nobody:
            if errands[index].words != f"release {session}:{int(number) + index - start}:{asked}":
                break
            index += 1
        yield f"release {session} {number} {index - start} {asked}"


def follows(ticket: Ticket, number: int, asked: str) -> bool:
    return ticket.number == number and ticket.request.on_wait is None and asked_of(ticket) == asked


def asked_of(ticket: Ticket) -> str:
    request = ticket.request
    max_sleep = -1 if request.max_sleep is None else request.max_sleep
    max_waiters = -1 if request.max_waiters is None else request.max_waiters
    return f"{max_sleep} {max_waiters} {request.text}"
