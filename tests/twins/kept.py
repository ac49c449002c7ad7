"""What the model keeps of sessions and of limits that were replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tests.twins.wire import Reply

FORMER = 8  # declarations that are remembered


@dataclass
class Record:
    """What is kept of a session: the number of its last call, until when it counts as alive, and its last reply."""

    last: int
    alive_until: int
    reply: Reply
    listened: int = 0  # the moment of that call, if the server notifies the session


class Former(NamedTuple):
    """Limits that were replaced: when, by whose link, and whether only an update had set them."""

    t: int
    link: str
    program: str
    updated: bool


def shortened(entries: list[Former]) -> list[Former]:
    """The last few that were declared; what was only updated makes room for them, but for the very last."""
    if not entries:
        return []
    *earlier, last = entries
    room = FORMER - (not last.updated)
    excess = max(0, len(earlier) - room)
    spare = [former for former in earlier if former.updated][:excess]
    earlier = [former for former in earlier if former not in spare]
    return [*earlier[max(0, len(earlier) - room) :], last]
