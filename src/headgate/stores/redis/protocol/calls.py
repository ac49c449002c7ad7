"""The calls of a session, and their only encoder. docs/wire-format.md has the text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headgate.stores.redis.protocol.operations import KNOWN, GivingBack, Operation

if TYPE_CHECKING:
    from headgate.gate.compile import Declaration
    from headgate.request import Request
    from headgate.stores.redis.protocol.script import Script

# Microseconds. The script reserves no moment further ahead.
RESERVE_AHEAD = 50_000
# `Command.words` from `how` to the verb, for one acquire of a session without waiters.
AT_ONCE = str(KNOWN), "0", "0", str(RESERVE_AHEAD), "acquire"


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
    how: int  # the statement about the limits: KNOWN to OFFERED
    received: str  # the beginning of the last reply received, or "0"
    waits: bool
    notified: bool  # by this server
    requests: tuple[str, ...]
    # It may grant permits to other sessions. Their notifications should leave before the reply: see
    # `Node._ping_first`.
    for_others: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        return (
            *(str(len(self.keys)), *self.keys, self.program, self.session_id, str(self.number)),
            *(str(self.how), self.received, str(self.waits + 2 * self.notified)),
            *(str(RESERVE_AHEAD), *self.requests),
        )


def words_at_once(
    keys: tuple[str, ...], program: str, session_id: str, number: str, asked: str
) -> tuple[str, ...]:
    """For the hot path: the `Command.words` of an acquire and its call, with one `number`."""
    return (
        *(str(len(keys)), *keys, program, session_id, number, *AT_ONCE),
        *(number, "1", "-1", "-1", asked),
    )


def keys_of(key: str, declared: Declaration, how: int = KNOWN) -> tuple[str, ...]:
    """The keys of a call. Limits that a declaration replaces may have a log, too."""
    return keys_with(key, how != KNOWN or "window " in declared.program)


@lru_cache(maxsize=1024)
def keys_with(key: str, log: bool) -> tuple[str, ...]:
    return (key, f"{key}:who", f"{key}:log") if log else (key, f"{key}:who")


def write_requests(operations: Sequence[Operation], acquires: Sequence[Acquire]) -> tuple[str, ...]:
    words = write_acquires(acquires)
    return (*write_operations(operations), *words) if operations else tuple(words)


def write_operations(operations: Sequence[Operation]) -> list[str]:
    """Alike neighbours are one request."""
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
    """Whether both can be one. The script gives an estimate for `on_wait` only to the first.

    Mostly they are the same object.
    """
    return request.on_wait is None and (
        request is first or write_request(request) == write_request(first)
    )


def write_request(request: Request) -> tuple[str, str, str]:
    max_sleep = "-1" if request.max_sleep is None else str(request.max_sleep)
    max_waiters = "-1" if request.max_waiters is None else str(request.max_waiters)
    return max_sleep, max_waiters, request.text
