"""The events of a history, and the way they are kept: a line of JSON for each event.

Commits stand in the order in which the store has run them. The clients' events stand in the order
of one clock, their own. No code compares the two clocks: the order comes from calls that were
answered before others were made.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

Op = tuple[str, str, int]  # the key of the name, the session, the number of its call


class Commit(NamedTuple):
    """The store has run a call: as number `seq`, when its clock said `t` (microseconds)."""

    seq: int
    t: int
    key: str
    args: tuple[str, ...]
    reply: str
    unheard: tuple[str, ...] = ()  # the clients that received no notification of it
    # Of the server: a new number when it was started again, or another server has the name; 0: by a
    # script.
    run: int = 0

    @property
    def op(self) -> Op:
        return self.key, self.args[1], int(self.args[2])


class Lost(NamedTuple):
    """A key is gone: it has expired, an operator has deleted it, or the server came back without
    it. `part`: empty or `who`.
    """

    key: str
    part: str


class Copied(NamedTuple):
    """The server has written its state down, as number `copy`."""

    copy: int


class Restored(NamedTuple):
    """The server has started again from a copy, or empty without one.

    With a key: only that name is as it was.
    """

    copy: int | None
    key: str | None = None


class Invoked(NamedTuple):
    """A client has sent a call, or sent it again."""

    op: Op


class Returned(NamedTuple):
    """A client has read the answer to a call. A call that never returns is of unknown outcome."""

    op: Op
    reply: str


Event = Commit | Lost | Copied | Restored | Invoked | Returned
History = list[Event]
KINDS: dict[str, Any] = {
    kind.__name__: kind for kind in (Commit, Lost, Copied, Restored, Invoked, Returned)
}


def kept(history: Iterable[Event], path: Path) -> None:
    path.write_text("".join(json.dumps([type(event).__name__, *event]) + "\n" for event in history))


def read(path: Path) -> History:
    return [event_of(*json.loads(line)) for line in path.read_text().splitlines()]


def event_of(kind: str, *fields: Any) -> Event:
    event: Event = KINDS[kind](
        *(tuple(field) if isinstance(field, list) else field for field in fields)
    )
    return event
