"""The holders and waiters of one name on Redis, as an operator sees them.

To read them changes nothing. So leases and sessions that have ended may still be listed, until a
call of any session removes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headgate.errors import StoreError
from headgate.gate.compile import NO_LIMITS, Declaration, read_program
from headgate.stores.members import MOST, Holder, Label, Members, Waiter
from headgate.stores.redis.protocol.index import ID_LENGTH, LABELS, living, parse_label
from headgate.stores.redis.protocol.members import (
    HOLDING,
    WAITING,
    held_since,
    lease_end,
    pairs,
    session_of,
    units_of,
    waits_since,
)
from headgate.stores.redis.transport.questions import replies_to

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headgate.stores.redis.transport.topology import Topology


async def read_members(topology: Topology, name: str) -> Members:
    """The members of an encoded name, or of an encoded `name:key`.

    Raises StoreError when the store cannot be asked. A name without state has no members.
    """
    call, key = "read_members()", f"headgate:{{{name}}}"
    who = f"{key}:who"

    def members_with(scores: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
        limit = "WITHSCORES", "LIMIT", "0", str(MOST)
        return key, ("ZRANGEBYSCORE", who, *scores, *limit)

    time, program, holding, waiting, holders, waiters = await replies_to(
        topology,
        call,
        [
            (key, ("TIME",)),
            (key, ("HMGET", key, "limits", "offer")),
            (key, ("ZCOUNT", who, *HOLDING)),
            (key, ("ZCOUNT", who, *WAITING)),
            members_with(HOLDING),
            members_with(WAITING),
        ],
    )
    now = moment(time)
    labels = await read_labels(topology, int(time[0])) if holders or waiters else {}
    sessions = {session_of(member) for member, _ in pairs(waiters)}
    questions = [(who, ("ZSCORE", who, session)) for session in sessions]
    scores = await replies_to(topology, call, questions) if questions else []
    # A session without a score is unknown by now.
    ends = {session: float(score or 0) for session, score in zip(sessions, scores, strict=True)}
    reader = MemberReader(declared_in(program), labels, now)
    return Members(
        reader.holders(pairs(holders)),
        reader.waiters(pairs(waiters), ends),
        holding,
        waiting,
    )


async def read_oldest_waits(topology: Topology, names: Sequence[str]) -> list[float | None]:
    """For how many seconds the first waiter of each of these encoded names waits."""
    questions: list[tuple[str, tuple[str, ...]]] = []
    first = *WAITING, "WITHSCORES", "LIMIT", "0", "1"
    for who in (f"headgate:{{{name}}}:who" for name in names):
        questions += [(who, ("TIME",)), (who, ("ZRANGEBYSCORE", who, *first))]
    replies = await replies_to(topology, "read_oldest_waits()", questions)
    waits: list[float | None] = []
    for time, reply in zip(replies[::2], replies[1::2], strict=True):
        found = [seconds_since(waits_since(score), moment(time)) for _, score in pairs(reply)]
        waits.append(found[0] if found else None)
    return waits


def moment(time: Sequence[bytes]) -> int:
    """The reply to TIME in microseconds."""
    return int(time[0]) * 1_000_000 + int(time[1])


def seconds_since(t: int | None, now: int) -> float | None:
    return None if t is None else max(0, now - t) / 1_000_000


def declared_in(fields: list[bytes | None]) -> Declaration:
    """The limits in the fields `limits` and `offer`: a name has at most one of them."""
    program = fields[0] or fields[1]
    try:
        return NO_LIMITS if program is None else read_program(program.decode())
    except ValueError:  # an operator has damaged the text
        raise StoreError(f"The store has damaged limits: {program!r}.") from None


async def read_labels(topology: Topology, now: int) -> dict[str, Label]:
    """The labels of all clients at `now`, in seconds, by the beginnings of the ids of their
    sessions. If the user may not read the index, there are none.
    """
    every = "-inf", "+inf", "WITHSCORES"
    try:
        questions = [(key, ("ZRANGEBYSCORE", key, *every)) for key in LABELS]
        replies: list[Any] = await replies_to(topology, "read_members()", questions)
    except StoreError:
        return {}
    found = (parse_label(member) for reply in replies for member in living(reply, now))
    return dict(label for label in found if label is not None)


class MemberReader:
    """Makes holders and waiters of members and their scores. All times are relative to `now`."""

    def __init__(self, declared: Declaration, labels: dict[str, Label], now: int) -> None:
        self._declared, self._labels, self._now = declared, labels, now

    def _common(self, member: str) -> tuple[str, Label | None, dict[str, int]]:
        session_id = session_of(member)
        units = units_of(member, self._declared)
        return session_id, self._labels.get(session_id[:ID_LENGTH]), units

    def holders(self, found: Iterable[tuple[str, float]]) -> tuple[Holder, ...]:
        now, lease = self._now, self._declared.lease
        return tuple(
            Holder(
                *self._common(member),
                self._seconds_until(lease_end(score)),
                seconds_since(held_since(score, lease, now), now),
            )
            for member, score in found
        )

    def waiters(
        self, found: Iterable[tuple[str, float]], ends: dict[str, float]
    ) -> tuple[Waiter, ...]:
        return tuple(
            Waiter(
                *self._common(member),
                position,
                self._alive_for(ends[session_of(member)]),
                seconds_since(waits_since(score), self._now),
            )
            for position, (member, score) in enumerate(found)
        )

    def _alive_for(self, end: float) -> float | None:
        return self._seconds_until(end) if end > self._now else None

    def _seconds_until(self, t: float) -> float:
        return (t - self._now) / 1_000_000
