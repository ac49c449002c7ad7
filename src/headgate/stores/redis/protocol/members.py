"""The holders and waiters of a name, as its sorted set has them: their only parser in Python.

The scores are those of membership.lua. A waiter's score is its place, a holder's the end of its
lease, and a session's the end of its life. The server does not keep when an acquire joined the
queue, nor when it was granted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headgate.gate.compile import Declaration
from headgate.gate.gate import ONE_EACH

MOST = 2**52
HOLDERS = -MOST + 2**48  # the score of a holder whose lease ends at 0
# The scores of each kind, from the least to the greatest.
WAITING, HOLDING, SESSIONS = ("-inf", str(HOLDERS - 1)), (str(HOLDERS), "-1"), ("0", "+inf")


def pairs(reply: Sequence[bytes]) -> Iterator[tuple[str, int]]:
    """The members and scores of a reply WITHSCORES."""
    for member, score in zip(reply[::2], reply[1::2], strict=True):
        yield member.decode(), int(float(score))


def session_of(member: str) -> str:
    """The session of `session:number:asked`. A holder has a `+` before it."""
    return member.removeprefix("+").partition(":")[0]


def units_of(member: str, declared: Declaration) -> dict[str, int]:
    """The cost of an acquire, by unit."""
    asked = member.split(":", 2)[2]
    named = dict(each.split("=") for each in asked.split(",")) if asked != "-" else {}
    costs = {unit: int(named.get(unit, ONE_EACH.get(unit, 0))) for unit in declared.capacity}
    return {unit: cost for unit, cost in costs.items() if cost}
