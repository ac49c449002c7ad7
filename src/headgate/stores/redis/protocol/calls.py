"""The calls of a session, and their only encoder. docs/wire-format.md has the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headgate.stores.redis.protocol.operations import GivingBack, Operation
from headgate.stores.redis.protocol.script import library

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.request import Request
    from headgate.stores.redis.protocol.script import Script

# Microseconds. The script reserves no moment further ahead.
RESERVE_AHEAD = 50_000
# The flags of a call: its session has waiters, its server notifies the session, and that server is
# one of a Cluster.
WAITS, NOTIFIED, CLUSTERED = 1, 2, 4
FLAGS_AT = 6  # the sum of the flags is the sixth word behind the keys


class Acquire(Protocol):
    @property
    def number(self) -> int: ...
    @property
    def request(self) -> Request: ...


class Command(NamedTuple):
    """A call. Its words are texts: hiredis crashes when a signal handler raises while it converts a
    number.
    """

    script: Script
    keys: tuple[str, ...]
    program: str
    session_id: str
    number: int
    declares: int  # the statement about the limits: KNOWN to OFFERED
    words: tuple[str, ...]
    # It may grant permits to other sessions. Their notifications should leave before the reply: see
    # `Node._ping_first`.
    for_others: bool

    def unnotified(self) -> Command:
        """The same call to another server, which does not notify its session."""
        at = len(self.keys) + FLAGS_AT
        flags = str(int(self.words[at]) & ~NOTIFIED)
        return self._replace(words=(*self.words[:at], flags, *self.words[at + 1 :]))


def write_call(
    key: str,
    declared: Declaration,
    declares: int,
    session_id: str,
    number: int,
    received: str,
    flags: int,
    operations: Sequence[Operation],
    acquires: Sequence[Acquire],
    *,
    for_others: bool = False,
) -> Command:
    """`received`: the beginning of the last reply received, or "0"."""
    keys, program = keys_of(key), declared.program
    words = (
        *(str(len(keys)), *keys, program, session_id, str(number)),
        *(str(declares), received, str(flags), str(RESERVE_AHEAD)),
        *(write_operations(operations) if operations else ()),
        *write_acquires(acquires),
    )
    script = library().whole if acquires else library().without_acquires
    return Command(script, keys, program, session_id, number, declares, words, for_others)


def words_at_once(
    keys: tuple[str, ...],
    program: str,
    session_id: str,
    number: str,
    declares: int,
    flags: int,
    asked: str,
) -> tuple[str, ...]:
    """For the hot path: the words of a call with one acquire that may not wait.

    The call and the acquire have the same `number`.
    """
    return (
        *(str(len(keys)), *keys, program, session_id, number, str(declares), "0", str(flags)),
        *(str(RESERVE_AHEAD), "acquire", number, "1", "0", "-1", asked),
    )


@lru_cache(maxsize=1024)
def keys_of(key: str) -> tuple[str, str]:
    """The keys of a name, from the first of them."""
    return key, f"{key}:who"


def write_operations(operations: Sequence[Operation]) -> list[str]:
    """Neighbours that are alike are written as one request."""
    words: list[Any] = []
    index = 0
    while index < len(operations):
        first, count = operations[index], 1
        if isinstance(first, GivingBack):
            count = first.count_alike(operations, index)
            words += first.write(count)
        else:
            words += first.words
        index += count
    return [str(word) if type(word) is int else word for word in words]


def write_acquires(acquires: Sequence[Acquire]) -> list[str]:
    words: list[str] = []
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
        count = str(index - start)
        words += ("acquire", str(first.number), count, *write_request(first.request))
    return words


def asks_alike(request: Request, first: Request) -> bool:
    """Whether `request` can be in one operation with `first`, which is mostly the same object.

    One with `on_wait` begins an operation: the script estimates only the wait of the first.
    """
    return request.on_wait is None and (
        request is first or write_request(request) == write_request(first)
    )


def write_request(request: Request) -> tuple[str, str, str]:
    max_sleep = "-1" if request.max_sleep is None else str(request.max_sleep)
    max_waiters = "-1" if request.max_waiters is None else str(request.max_waiters)
    return max_sleep, max_waiters, request.text
