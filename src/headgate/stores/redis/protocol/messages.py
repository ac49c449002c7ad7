"""What travels between a lane and the script: acquires, errands, the calls that carry them, and the words in which they do.

Here lives writing and reading them; when they are sent, and what is done about an answer, is the lane's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from headgate.errors import StoreError
from headgate.forks import forked
from headgate.gate.gate import Grant
from headgate.request import Request
from headgate.stores.redis.protocol.script import library
from headgate.waiting import OnWait, Waiting, queued_at

if TYPE_CHECKING:
    from asyncio import Future, TimerHandle

    from headgate.gate.compile import Declaration
    from headgate.permit import Permit
    from headgate.stores.redis.protocol.script import Script

MOST = 1000  # callers in one call (S9)
Answer = Sequence[Any] | StoreError
TOGETHER = (
    "release",
    "cancel 0",
)  # errands of which many can be told as one; the moment of a grant is each one's own
KNOWN, DECLARED, UPDATED = (
    0,
    1,
    2,
)  # what a call says of the limits it names: they are known, declared, or declared come what may
ASKED, OFFERED = (
    3,
    4,
)  # it declares nothing: it makes no name; or one whose limits hold until a process declares some
LOOKS = {
    "status",
    "declared",
    "resume",
    "reset",
}  # errands that say nothing to a name that is not there
OFFERS = {*LOOKS, "pause", "drain"}  # these do: whoever acquires first is to find them
UNKNOWN = ("unknown", 0, 0)  # the answer to a look at a name whose limits no process has declared


class Command(NamedTuple):
    """A script and what it is told."""

    script: Script
    words: tuple[Any, ...]
    for_others: bool = False  # it may give back what others wait for: they are to hear of that before we hear of anything


def keys_of(key: str, declared: Declaration, declares: int = KNOWN) -> tuple[str, ...]:
    """The keys that the script works on: all share one hash tag.

    What is replaced by a declaration may have had windows.
    """
    return keys_with(key, declares != KNOWN or "window " in declared.program)


@lru_cache(maxsize=1024)
def keys_with(key: str, log: bool) -> tuple[str, ...]:
    return (key, f"{key}:who", f"{key}:log") if log else (key, f"{key}:who")


def without_claim(command: Command) -> Command:
    """The same for another server, without the statement that the server notifies the session (main.lua)."""
    words, stands = command.words, command.words[0] + 6
    if command.script is library().quick or words[stands] < 2:
        return command
    return command._replace(words=(*words[:stands], words[stands] - 2, *words[stands + 1 :]))


class PendingAcquire:
    """One acquire on its way: asked, waiting, or granted and sleeping until its moment."""

    __slots__ = (
        *(
            "__weakref__",
            "believed",
            "cancel",
            "deadline",
            "due",
            "enters",
            "fence",
            "future",
            "hope",
            "last",
            "lease",
            "number",
        ),
        *("permit", "request", "session_id", "start", "t"),
    )

    def __init__(self, number: int, request: Request, future: Future[Any], enters: bool) -> None:
        self.number = number
        self.request = request
        self.future = future
        self.enters = enters
        self.start = monotonic()
        self.session_id = ""  # once it is sent
        self.last = 0  # the last number of the call that it is sent with
        self.due = inf  # by the estimate, on the monotonic clock
        self.hope = inf  # until when an answer is waited for, on the loop's clock
        self.deadline: TimerHandle | None = None  # of one that waits, and may not for ever
        self.t = 0  # the moment granted, once there is one
        self.fence = 0  # of the last grant that was taken back
        self.lease = 0  # for which it was granted, microseconds
        self.cancel: Operation | None = (
            None  # by which it is given up: one and no more, or its grant would be undone twice
        )
        self.permit: Permit | None = None  # that another left to it
        self.believed: float | None = (
            None  # until when the grant is held for certain, on the monotonic clock, if it is held
        )

    @property
    def waited(self) -> float:
        return monotonic() - self.start

    @property
    def caller(self) -> str:
        return f"{self.session_id}:{self.number}:{self.request.text}"

    def tell(self, position: int, delay: int) -> None:
        """That it waits, once, if it wants to know: its task hears of that first, and of the outcome by another future."""
        request = self.request
        if request.on_wait is not None:
            self.request = told_by(request, None)
            asked, self.future = self.future, self.future.get_loop().create_future()
            self.future.add_done_callback(seen)  # its task may be cancelled before it comes to that
            asked.set_result(queued_at(position, delay))

    def settle(self, outcome: Grant | BaseException) -> None:
        settle(self.future, outcome)

    def refuse(self, error: Exception) -> None:
        """From any thread: it waits in vain, unless it has its grant already."""
        with suppress(RuntimeError):  # its loop is closed
            self.future.get_loop().call_soon_threadsafe(self.settle, error)


@dataclass(slots=True, eq=False)
class Operation:
    """Any other request: its words, and who wants to know what came of it."""

    words: str
    told: Callable[[Answer], object]

    def forget(self) -> None:
        """The loop in which the answer is awaited has ended."""
        if isinstance(self.told, partial) and self.told.func is settle:
            abandon(self.told.args[0])
            self.told = ignore_reply

    @property
    def owed(self) -> bool:
        """What gives back must arrive, even when whoever waited for the answer has been told that the server is away."""
        return self.words.startswith(("release ", "rejoin ")) or self.told is ignore_reply


@dataclass(slots=True, eq=False)
class Statement(Operation):
    """A pause, its end, a reset, a drain: it says something of this moment, and is worth nothing some time later."""

    until: float  # on the monotonic clock

    @property
    def owed(self) -> bool:
        return monotonic() < self.until


class Sent(NamedTuple):
    """A call on its way: what is sent, again if need be, and who is answered by it."""

    command: Command
    session_id: str
    number: int
    program: str
    lease: int  # by that program
    at: float
    acquires: list[PendingAcquire]
    operations: list[Operation]
    ahead: int  # how many stand before its tickets, if they were the first of the whole queue and none was granted since
    letters: int  # how many grants had been heard of when it was sent

    def tell_unknown(self) -> None:
        """Nobody has declared the limits of the name: the call has looked, and done nothing."""
        for operation in self.operations:
            operation.told(UNKNOWN)

    @property
    def how(self) -> int:
        """What it says of its limits, if it is a whole call."""
        words = self.command.words
        return int(words[words[0] + 4])

    @property
    def declares(self) -> bool:
        return self.how in (DECLARED, UPDATED)


def how_said(declares: int, asks: bool, operations: list[Operation]) -> int:
    """What a call says of its limits. Only a session that acquires declares them; a look or a pause declares nothing."""
    if asks or declares in (DECLARED, UPDATED):
        return DECLARED if declares == ASKED else declares
    verbs = {operation.words.partition(" ")[0] for operation in operations}
    return ASKED if verbs <= LOOKS else OFFERED if verbs <= OFFERS else KNOWN


def told_by(request: Request, on_wait: OnWait | None) -> Request:
    """The same, told by another `on_wait`, or by none."""
    rest = request.retry_for, request.raises, request.closing
    return Request(request.units, request.max_sleep, request.max_waiters, on_wait, *rest)


async def heard(pending: PendingAcquire, on_wait: OnWait, name: str) -> Grant:
    """The grant of a ticket whose task wants to know that it has to wait. RuntimeError in the child if `on_wait` forks."""
    outcome = await pending.future
    if isinstance(outcome, Waiting):
        if not (pending.t or pending.future.done()):  # its turn has not come since
            process = os.getpid()
            on_wait(outcome)
            if os.getpid() != process:
                raise forked(name)
        outcome = await pending.future
    return cast(Grant, outcome)


def settle(future: Future[Any], outcome: Grant | Answer | BaseException) -> None:
    """Whoever waits for `future` hears of it, if that is not over."""
    if not future.done():
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def abandon(future: Future[Any]) -> None:
    """Cancel a future that may belong to a loop that is closed."""
    with suppress(RuntimeError):
        future.cancel()


def ignore_reply(answer: Answer) -> None:
    """Nobody wants to know."""


def seen(future: Future[Any]) -> None:
    """Nobody has to hear that an error was never looked at."""
    if not future.cancelled():
        future.exception()


def answers_in(words: Iterator[str], program: str, now: int) -> Iterator[Sequence[Any]]:
    """One answer for each request, in order: runs of equal ones are told as one. A status says under which limits it was asked.

    Fences of grants follow one another, and so do positions of those who wait. A grant is told as what it is beyond `now`.
    """
    for word in words:
        if word == "status":
            yield [program, *map(int, islice(words, 4 + program.count(";")))]
            continue
        count, number, fence = map(int, islice(words, 3))
        if word == "grant":
            number, fence = now + number, now + fence
        step = 0 if word == "full" else 1  # of who is turned away nobody stands before the next one
        for index in range(count):
            yield word, number, fence + index * step


def letters_in(words: Iterable[str], now: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, moment, fence and lease of each grant in mail; its moment is below 0 if it can never pass.

    Told like answers: as runs, and as what they are beyond `now`, or the "@now" that stands before them.
    """
    words = iter(words)
    for word in words:
        if word[0] == "@":
            now = int(word[1:])
            continue
        count, t, fence, lease = map(int, islice(words, 4))
        for index in range(count):
            yield int(word) + index, t if t < 0 else now + t, now + fence + index, lease


def runs(acquires: list[PendingAcquire]) -> Iterator[Any]:
    """The acquires as the script reads them, word by word: neighbours that ask for the same are one request.

    Who wants to know when it has to wait begins one: of each the script tells the estimate of the first.
    """
    index = 0
    while index < len(acquires):
        first, start = acquires[index], index
        offset = first.number - index
        index += 1
        while (
            index < len(acquires)
            and acquires[index].number == offset + index
            and alike(acquires[index].request, first.request)
        ):
            index += 1
        yield from ("acquire", first.number, index - start, *asked_of(first.request))


def chores(operations: list[Operation]) -> Iterator[Any]:
    """The errands as the script reads them, word by word: neighbours that give back are one, if nobody waits for the answers.

    Of many it is told how many were still held, or waited, not which.
    """
    index = 0
    while index < len(operations):
        first, start = operations[index], index
        index += 1
        if not first.words.startswith(("release ", "cancel ")):
            yield from first.words.split(" ")
            continue
        what, caller = first.words.rsplit(" ", 1)
        session_id, number, asked = caller.split(":")
        offset, together = int(number) - start, first.told is ignore_reply and what in TOGETHER
        while together and index < len(operations) and operations[index].told is ignore_reply:
            if operations[index].words != f"{what} {session_id}:{offset + index}:{asked}":
                break
            index += 1
        verb, *moment = what.split(" ")
        yield from (verb, session_id, number, index - start, *moment, asked)


def back(pending: PendingAcquire, grant: Grant) -> str:
    """The errand by which a grant is undone in a pause, and its caller waits again."""
    session_id, number, asked = pending.caller.split(":")
    return f"rejoin {session_id} {number} {grant.t} {grant.fence} {asked}"


def alike(request: Request, first: Request) -> bool:
    """Whether a request may be told with the first one: mostly both are the limiter's own."""
    return request.on_wait is None and (request is first or asked_of(request) == asked_of(first))


def asked_of(request: Request) -> tuple[Any, ...]:
    max_sleep = -1 if request.max_sleep is None else request.max_sleep
    max_waiters = -1 if request.max_waiters is None else request.max_waiters
    return max_sleep, max_waiters, request.text
