"""The holders and waiters of a name, as its sorted set has them: their only parser in Python.

The scores are those of membership.lua. A waiter's score is its place, a holder's the end of its
lease, and a session's the end of its life. The first two also say since when it waits or holds. All
moments are microseconds of the server's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil

from headgate.gate.compile import Declaration
from headgate.gate.gate import ONE_EACH

MOST = 2**52
HOLDERS = -MOST + 2**48  # the score of a holder whose lease ends at 0
# The scores of each kind, from the least to the greatest. Those of sessions begin at 0.
WAITING, HOLDING = ("-inf", str(HOLDERS - 1)), (str(HOLDERS), "-1")


PLACE = 16  # microseconds for each place. Twin: PLACE in prelude.lua
# Twins: STEP and COUNT in membership.lua.
STEP, COUNT = 32_768, 4096
# Older versions counted places from 1. A place before this moment is one of theirs.
FIRST = 2**50
# A living session renews its permits at a third of the lease. This is the most that it is late.
LATE = 1_000_000


def pairs(reply: Sequence[bytes]) -> Iterator[tuple[str, float]]:
    """The members and scores of a reply WITHSCORES."""
    for member, score in zip(reply[::2], reply[1::2], strict=True):
        yield member.decode(), float(score)


def waits_since(score: float) -> int | None:
    """Since when a waiter waits. None: an older version of headgate does not say."""
    place = int(score) + MOST
    # It waits again, because a pause delayed its grant (membership.lua). Its place is the fence of
    # that grant, which is a moment, less MOST.
    if place < 0:
        return place + MOST
    return place * PLACE if place * PLACE >= FIRST else None


def lease_end(score: float) -> int:
    return ceil(score - HOLDERS)


def held_since(score: float, lease: int, now: int) -> int | None:
    """Since when a holder holds, if the limits have that lease.

    None: its score does not show that. Twin: score_since() in membership.lua.
    """
    end = lease_end(score)
    if score == int(score):  # neither renewed nor shortened
        since = end - lease
        return since if lease and -LATE <= now - since <= lease // 3 + LATE else None
    # Of the last 15 bits of `end`, 3 say the unit, and 12 the moment of the grant in that unit,
    # modulo COUNT. The grant was at the last such moment before `end`.
    scale, rest = divmod(end % STEP, COUNT)
    unit = 20_000 << 3 * scale
    last = end // unit
    return (last - (last - rest) % COUNT) * unit


def session_of(member: str) -> str:
    """The session of `session:number:asked`. A holder has a `+` before it."""
    return member.removeprefix("+").partition(":")[0]


def units_of(member: str, declared: Declaration) -> dict[str, int]:
    """The cost of an acquire, by unit."""
    asked = member.split(":", 2)[2]
    named = dict(each.split("=") for each in asked.split(",")) if asked != "-" else {}
    costs = {unit: int(named.get(unit, ONE_EACH.get(unit, 0))) for unit in declared.capacity}
    return {unit: cost for unit, cost in costs.items() if cost}
