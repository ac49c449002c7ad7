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

Answer = list[str] | StoreError


class Command(NamedTuple):
    """A script and what it is told."""

    script: Script
    words: tuple[Any, ...]


class Ticket:
    """One acquire on its way: asked, waiting, or granted and sleeping until its moment."""

    __slots__ = ("believed", "cancel", "deadline", "due", "future", "lease", "number", "request", "session", "start", "t")

    def __init__(self, number: int, request: Request, future: Future[Grant]) -> None:
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


def nobody(answer: Answer) -> None:
    """Nobody wants to know."""


def answers_in(words: Iterator[str], program: str) -> Iterator[list[str]]:
    """One answer for each request, in order: runs of equal ones are told as one. A status says under which limits it was asked."""
    for word in words:
        if word == "status":
            yield [program, *islice(words, 3 + program.count(";"))]
            continue
        count, number, fence = islice(words, 3)
        for index in range(int(count)):
            yield [word, number, str(int(fence) + index)]


def runs(tickets: list[Ticket]) -> Iterator[str]:
    """The acquires as the script reads them: neighbours that ask for the same are one line."""
    index = 0
    while index < len(tickets):
        first, start = tickets[index], index
        asked = asked_of(first)
        while index < len(tickets) and tickets[index].number == first.number + index - start and asked_of(tickets[index]) == asked:
            index += 1
        yield f"acquire {first.number} {index - start} {asked}"


def asked_of(ticket: Ticket) -> str:
    request = ticket.request
    max_sleep = -1 if request.max_sleep is None else request.max_sleep
    max_waiters = -1 if request.max_waiters is None else request.max_waiters
    return f"{max_sleep} {max_waiters} {request.text}"
