"""The limits of a name that were replaced, as limits_history.lua writes them: their only parser in
Python.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# The text begins with this if a process declared the present limits, and no update holds.
AS_DECLARED = "0"
# The line of limits that only an update had set begins with "+".
LINE = re.compile(r"^(\+?)(\d+) \S+ (.+)$", re.MULTILINE)


class Replaced(NamedTuple):
    """`t`: the moment of the replacement, in microseconds of the server's clock."""

    t: int
    program: str


def last_replaced(former: str) -> Replaced | None:
    """The declaration that the present declaration has replaced. None: there is none."""
    entries = LINE.findall(former)
    if not former.startswith(AS_DECLARED) or not entries or entries[-1][0]:
        return None
    return Replaced(int(entries[-1][1]), entries[-1][2])
