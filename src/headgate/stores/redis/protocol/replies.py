"""The replies and notifications of the script, and their only parser."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count as counted
from itertools import islice, repeat
from typing import Any, NamedTuple

from headgate.errors import StoreError
from headgate.gate.gate import Grant


class Answer(NamedTuple):
    """To an acquire, `kind` is one of these, with its numbers:

    grant        the moment of the grant, its fence
    wait, full   microseconds until the turn, the position
    late         microseconds until the turn
    never        none

    To another operation, `number` is 1 or 0: for a release, whether the permit was held.
    """

    kind: str
    number: int
    fence: int


# Many answers stand in one reply: this is three times as fast as the constructor.
new_answer: Callable[[tuple[str, int, int]], Answer] = partial(tuple.__new__, Answer)


class StatusAnswer(NamedTuple):
    program: str
    waiting: int
    delay: int
    paused: int
    left: list[int]


class OutboxGrant(NamedTuple):
    number: int
    t: int  # below 0: it can never pass
    fence: int
    lease: int


new_grant: Callable[[tuple[int, int, int, int]], OutboxGrant] = partial(tuple.__new__, OutboxGrant)


class Outbox(NamedTuple):
    grants: list[OutboxGrant]
    pause: int | None  # for how long all callers are paused; None: no news


class Notification(NamedTuple):
    session_id: str
    now: int
    head: int | None  # as in `Done`
    outbox: Outbox


class Done(NamedTuple):
    """The call was carried out at `now`."""

    now: int
    # Microseconds after which this session has to call again, so that the head of the queue gets
    # its turn. None: another session calls.
    head: int | None
    answers: Sequence[Answer | StatusAnswer]
    outbox: Outbox


class GrantedAtOnce(NamedTuple):
    """One acquire was granted, and there is no other news."""

    session_id: str
    number: int
    now: int
    grant: Grant


new_grant_at_once: Callable[[tuple[str, int, int, Grant]], GrantedAtOnce] = partial(
    tuple.__new__, GrantedAtOnce
)


class Overruled(NamedTuple):
    """Nothing was done: other limits hold now."""

    program: str
    # Microseconds after which ours may be declared again. -1: an update overrules them. None: the
    # call did not declare them.
    wait: int | None


class Offered(NamedTuple):
    """Nothing was done: these limits are offered, and no process has declared any."""

    program: str


class Lapsed(NamedTuple):
    """Nothing was done: the session is over."""


class Unknown(NamedTuple):
    """Nothing was done: no process has declared limits of the name."""


Reply = Done | Overruled | Offered | Lapsed | Unknown
UNKNOWN = Answer("unknown", 0, 0)  # to each operation, after `Unknown`


class OtherReplyError(StoreError):
    """The reply is to another call."""


def parse_reply(reply: bytes, session_id: str, number: int, program: str) -> Reply:
    its_session, its_number, verdict, *words = reply.decode().split(" ")
    if (its_session, int(its_number)) != (session_id, number):
        raise OtherReplyError("it gave the reply to another call")
    if verdict == "ok":
        return parse_done(words, program)
    if verdict == "stale":
        return Overruled(" ".join(words), None)
    if verdict == "offer":
        return Offered(" ".join(words))
    if verdict == "held":
        return Overruled(" ".join(words[1:]), int(words[0]))
    return Unknown() if verdict == "unknown" else Lapsed()


def parse_done(words: list[str], program: str) -> Done:
    """Read the words after "ok": "now head mine answer... | outbox..."."""
    now, rest = int(words[0]), iter(words[3:])
    answers = list(read_answers(rest, program, now))
    return Done(now, int(words[1]) if words[2] == "1" else None, answers, read_outbox(rest, now))


def parse_grant(reply: bytes) -> GrantedAtOnce | None:
    """Read "session number ok now -1 0 grant 1 0 fence |", on the hot path. None: another reply."""
    words = reply.decode().split(" ")
    if len(words) != 11 or words[2] != "ok" or words[6] != "grant":
        return None
    now = int(words[3])
    grant = Grant(now + int(words[8]), now + int(words[9]))
    return new_grant_at_once((words[0], int(words[1]), now, grant))


def parse_notification(notification: str) -> Notification:
    """Read a notification: "session now head outbox..."."""
    session_id, now, head, *outbox = notification.split()
    return Notification(
        session_id, int(now), None if head == "-1" else int(head), read_outbox(outbox, int(now))
    )


def read_answers(words: Iterator[str], program: str, now: int) -> Iterator[Answer | StatusAnswer]:
    """Read one answer for each request, in order, up to "|".

    A run of equal answers is written as one. Their fences or positions follow one another. Moments
    and fences are written as their distance from `now`.
    """
    for word in words:
        if word == "|":
            return
        if word == "status":
            limits = program.count(";") + 1
            waiting, delay, paused, *left = map(int, islice(words, 3 + limits))
            yield StatusAnswer(program, waiting, delay, paused, left)
            continue
        count, number, fence = map(int, islice(words, 3))
        if word == "grant":
            number, fence = now + number, now + fence
        # Each of a run of refused acquires has the same number of waiters before it.
        fences = repeat(fence) if word == "full" else counted(fence)
        yield from map(new_answer, zip(repeat(word, count), repeat(number), fences, strict=False))


def read_outbox(words: Iterable[str], now: int) -> Outbox:
    """Read runs of grants, and at the end a pause, "!time".

    Moments and fences are distances from the last "@now", or from `now`.
    """
    grants: list[OutboxGrant] = []
    words = iter(words)
    for word in words:
        if word[0] == "!":
            return Outbox(grants, int(word[1:]))
        if word[0] == "@":
            now = int(word[1:])
            continue
        count, t, fence, lease = map(int, islice(words, 4))
        # In a run, the numbers and the fences follow one another.
        numbers, fences = counted(int(word)), counted(now + fence)
        moments, leases = repeat(t if t < 0 else now + t, count), repeat(lease)
        grants += map(new_grant, zip(numbers, moments, fences, leases, strict=False))
    return Outbox(grants, None)


def has_begun(refusal: Any) -> bool:
    """Whether an error came out of the script: then the server's text names the script.

    Otherwise the server refused the whole call: it may not write, or its memory is full. BUSY also
    names a script: then the acquires are cancelled in vain.
    """
    return "script" in str(refusal)
