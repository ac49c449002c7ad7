"""The messages between a session and the script: acquires, other operations, and the calls that
carry them.

This module writes requests and reads answers. The session decides when a call is sent, and acts on
the answers.
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

MOST = 1000  # callers in one call (S9, bounds)
Answer = Sequence[Any] | StoreError
# Operations that are written together, many as one. A cancel of a grant is written alone, because
# it names the grant's own moment.
TOGETHER = ("release", "cancel 0")
# The statement of a call about the limits that it names. The store knows them; or the call declares
# them; or it declares them and overrules all others.
KNOWN, DECLARED, UPDATED = 0, 1, 2
# The call declares nothing. With ASKED it creates no state for the name. With OFFERED it creates
# a state, and these limits hold until a process declares some.
ASKED, OFFERED = 3, 4
# Operations that change nothing if the name has no state.
LOOKS = {"status", "declared", "resume", "reset"}
# Operations that need no declared limits. The last two create a state for the name: the first
# caller that acquires must find them.
OFFERS = {*LOOKS, "pause", "drain"}
UNKNOWN = ("unknown", 0, 0)  # the answer if no process has declared limits of the name


class Command(NamedTuple):
    """A script and its arguments."""

    script: Script
    words: tuple[Any, ...]
    # It may free capacity for which others wait. Then their notifications arrive before this reply.
    for_others: bool = False


def keys_of(key: str, declared: Declaration, declares: int = KNOWN) -> tuple[str, ...]:
    """The keys that the script works on. All share one hash tag.

    Limits that a declaration replaces may have had windows, so such a call names the log, too.
    """
    return keys_with(key, declares != KNOWN or "window " in declared.program)


@lru_cache(maxsize=1024)
def keys_with(key: str, log: bool) -> tuple[str, ...]:
    return (key, f"{key}:who", f"{key}:log") if log else (key, f"{key}:who")


def without_claim(command: Command) -> Command:
    """The same command for another server.

    It does not claim that the server notifies the session (argument 6 of a whole call).
    """
    words, stands = command.words, command.words[0] + 6
    if command.script is library().quick or words[stands] < 2:
        return command
    return command._replace(words=(*words[:stands], words[stands] - 2, *words[stands + 1 :]))


class PendingAcquire:
    """An acquire until it ends: sent, waiting, or granted and sleeping until its moment."""

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
            "answer_by",
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
        self.session_id = ""  # the session that sent it; empty before that
        self.last = 0  # the number of the last acquire in the same call
        self.due = inf  # when it should be granted, by the estimate, on the monotonic clock
        self.answer_by = inf  # the end of the wait for a first answer, on the loop's clock
        self.deadline: TimerHandle | None = None  # the timer for `max_sleep`, while it waits
        self.t = 0  # the moment of the grant, by the server's clock; 0 before the grant
        self.fence = 0  # the fence of the last grant that the server took back
        self.lease = 0  # the lease of the grant, in microseconds
        # The operation that gives it up. There is at most one, or the grant would be undone twice.
        self.cancel: Operation | None = None
        self.permit: Permit | None = None  # the permit that another caller left to it
        # The end of the time for which the grant is held for certain, on the monotonic clock.
        # None: the grant holds nothing.
        self.believed: float | None = None

    @property
    def waited(self) -> float:
        return monotonic() - self.start

    @property
    def caller(self) -> str:
        return f"{self.session_id}:{self.number}:{self.request.text}"

    def report_wait(self, position: int, delay: int) -> None:
        """Tell the task once that it waits, if the request has an `on_wait`.

        The future gives the task its position first. Another future gives it the outcome.
        """
        request = self.request
        if request.on_wait is not None:
            self.request = with_on_wait(request, None)
            asked, self.future = self.future, self.future.get_loop().create_future()
            # The task may be cancelled before it awaits this future.
            self.future.add_done_callback(retrieve_error)
            asked.set_result(queued_at(position, delay))

    def settle(self, outcome: Grant | BaseException) -> None:
        settle(self.future, outcome)

    def refuse(self, error: Exception) -> None:
        """Fail from any thread, unless the grant is already there."""
        with suppress(RuntimeError):  # its loop is closed
            self.future.get_loop().call_soon_threadsafe(self.settle, error)


@dataclass(slots=True, eq=False)
class Operation:
    """Any request but an acquire: its words, and the function that gets the answer."""

    words: str
    on_reply: Callable[[Answer], object]

    def forget(self) -> None:
        """The loop that awaits the answer has ended."""
        if isinstance(self.on_reply, partial) and self.on_reply.func is settle:
            abandon(self.on_reply.args[0])
            self.on_reply = ignore_reply

    @property
    def owed(self) -> bool:
        """Whether it must be delivered, even after a caller got the error that the server is away.

        That is so for operations that give something back.
        """
        return self.words.startswith(("release ", "rejoin ")) or self.on_reply is ignore_reply


@dataclass(slots=True, eq=False)
class Statement(Operation):
    """A pause, its end, a reset or a drain. It is about this moment, and soon worth nothing."""

    until: float  # the end of its worth, on the monotonic clock

    @property
    def owed(self) -> bool:
        return monotonic() < self.until


class Sent(NamedTuple):
    """A call in flight: the bytes to send again if need be, and the requests that its reply
    answers.
    """

    command: Command
    session_id: str
    number: int
    program: str
    lease: int  # of that program, in microseconds
    at: float
    acquires: list[PendingAcquire]
    operations: list[Operation]
    # The position of its first acquire, if the waiters here head the whole queue and no grant is
    # made before it. -1: other sessions' waiters are there already.
    ahead: int
    outbox_grants: int  # the hand-off's count of grants when it was sent

    def answer_unknown(self) -> None:
        """No process has declared limits of the name: the call changed nothing."""
        for operation in self.operations:
            operation.on_reply(UNKNOWN)

    @property
    def how(self) -> int:
        """The statement of a whole call about its limits: KNOWN, DECLARED and so on."""
        words = self.command.words
        return int(words[words[0] + 4])

    @property
    def declares(self) -> bool:
        return self.how in (DECLARED, UPDATED)


def how_said(declares: int, asks: bool, operations: list[Operation]) -> int:
    """Choose the statement that a call makes about its limits.

    Only a session that acquires declares them. A look or a pause declares nothing.
    """
    if asks or declares in (DECLARED, UPDATED):
        return DECLARED if declares == ASKED else declares
    verbs = {operation.words.partition(" ")[0] for operation in operations}
    return ASKED if verbs <= LOOKS else OFFERED if verbs <= OFFERS else KNOWN


def with_on_wait(request: Request, on_wait: OnWait | None) -> Request:
    """The same request with another `on_wait`, or with none."""
    rest = request.retry_for, request.raises, request.closing
    return Request(request.units, request.max_sleep, request.max_waiters, on_wait, *rest)


async def await_grant(pending: PendingAcquire, on_wait: OnWait, name: str) -> Grant:
    """The grant of an acquire whose request has an `on_wait`.

    Raises RuntimeError in the child if `on_wait` forks the process.
    """
    outcome = await pending.future
    if isinstance(outcome, Waiting):
        if not (pending.t or pending.future.done()):  # no outcome has arrived since
            process = os.getpid()
            on_wait(outcome)
            if os.getpid() != process:
                raise forked(name)
        outcome = await pending.future
    return cast(Grant, outcome)


def settle(future: Future[Any], outcome: Grant | Answer | BaseException) -> None:
    """Set the outcome of `future`, unless it is done."""
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
    """Ignore the answer: no caller asked for it."""


def retrieve_error(future: Future[Any]) -> None:
    """Retrieve the error of `future`, so that asyncio does not log it as never retrieved."""
    if not future.cancelled():
        future.exception()


def read_answers(words: Iterator[str], program: str, now: int) -> Iterator[Sequence[Any]]:
    """Read one answer for each request, in order. The script writes a run of equal answers as one.

    The fences in a run of grants follow one another, and so do the positions in a run of waiters.
    Moments and fences are written as their distance from `now`. The answer to a status begins with
    the limits of the call.
    """
    for word in words:
        if word == "status":
            yield [program, *map(int, islice(words, 4 + program.count(";")))]
            continue
        count, number, fence = map(int, islice(words, 3))
        if word == "grant":
            number, fence = now + number, now + fence
        # Of a run of refused acquires, each has the same number of waiters before it.
        step = 0 if word == "full" else 1
        for index in range(count):
            yield word, number, fence + index * step


def read_grants(words: Iterable[str], now: int) -> Iterator[tuple[int, int, int, int]]:
    """Read an outbox: number, moment, fence and lease of each grant. A moment below 0: it can never
    pass.

    The outbox is written like answers: as runs, and as distances from `now`, or from the "@now"
    before them.
    """
    words = iter(words)
    for word in words:
        if word[0] == "@":
            now = int(word[1:])
            continue
        count, t, fence, lease = map(int, islice(words, 4))
        for index in range(count):
            yield int(word) + index, t if t < 0 else now + t, now + fence + index, lease


def write_acquires(acquires: list[PendingAcquire]) -> Iterator[Any]:
    """Write the acquires word by word, as the script reads them.

    Neighbours that ask for the same are one request. One with an `on_wait` begins a new request,
    because the script gives an estimate only for the first of each.
    """
    index = 0
    while index < len(acquires):
        first, start = acquires[index], index
        offset = first.number - index
        index += 1
        while (
            index < len(acquires)
            and acquires[index].number == offset + index
            and asks_alike(acquires[index].request, first.request)
        ):
            index += 1
        yield from ("acquire", first.number, index - start, *write_request(first.request))


def write_operations(operations: list[Operation]) -> Iterator[Any]:
    """Write the other operations word by word, as the script reads them.

    Neighbours that give something back are one request, if no caller waits for the answers. The
    script then says how many of them were held or waited, and not which.
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
        offset, together = int(number) - start, first.on_reply is ignore_reply and what in TOGETHER
        while together and index < len(operations) and operations[index].on_reply is ignore_reply:
            if operations[index].words != f"{what} {session_id}:{offset + index}:{asked}":
                break
            index += 1
        verb, *moment = what.split(" ")
        yield from (verb, session_id, number, index - start, *moment, asked)


def write_rejoin(pending: PendingAcquire, grant: Grant) -> str:
    """The operation that undoes a grant in a pause, so that its caller waits again."""
    session_id, number, asked = pending.caller.split(":")
    return f"rejoin {session_id} {number} {grant.t} {grant.fence} {asked}"


def asks_alike(request: Request, first: Request) -> bool:
    """Whether two requests can be written as one. Mostly both are the limiter's own object."""
    return request.on_wait is None and (
        request is first or write_request(request) == write_request(first)
    )


def write_request(request: Request) -> tuple[Any, ...]:
    max_sleep = -1 if request.max_sleep is None else request.max_sleep
    max_waiters = -1 if request.max_waiters is None else request.max_waiters
    return max_sleep, max_waiters, request.text
