"""Bad values, the form of a good answer to them, and a listener that shows each connection."""

from __future__ import annotations

import math
import re
import socket
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

from headgate import validation
from tests.world import LONG

NAN, INF = math.nan, math.inf
CANARY = "k4naryb1rd"  # a password that must never be seen, nor any half of it
A_WAY_OUT = re.compile(r"(;|[.:]) \w[^;]+ [^;]+\.$")  # the last clause, of some words: the way out


class Hostile:
    """A value whose repr fails: a message must be possible all the same."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


NO_NUMBER = [
    True,
    False,
    "5",
    "",
    b"5",
    Decimal(5),
    Fraction(5),
    5j,
    [5],
    timedelta(seconds=5),
    Hostile(),
    "5" * 10**6,
]
NO_INT = [*NO_NUMBER, 5.0, 1.5, NAN, INF, -INF, -0.0, 1e-320]
NO_COUNT = [0, -1, -(2**63), 2**53, 2**63, 10**5_000]
NO_TIME = [-1, -0.5, NAN, INF, -INF, 2**63, 315_360_000, 1e300, 10**400]
NO_NAME = [None, 5, True, NAN, b"api", ["api"], Hostile()]
BAD_NAME = ["", "x" * 257, "ü" * 129, "x" * 10**7, "a\ud800b"]


def assert_sentence(error: BaseException, *words: str) -> None:
    """One line for a person to read: it has these words and a way out at its end, and no secret."""
    text = str(error)
    assert [word for word in words if word not in text] == [], text
    assert A_WAY_OUT.search(text), text
    assert len(text) < 400
    assert "\n" not in text
    assert CANARY not in text
    text.encode()  # it can be logged


def shown(value: object) -> str:
    """`value` as messages show it, and as the name of a test."""
    return validation.show(value)


class Listener:
    """A port of this machine, and whether a client has connected to it."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._address = self._socket.getsockname()
        self.port = int(self._address[1])
        self.url = f"redis://user:{CANARY}@127.0.0.1:{self.port}/0"

    def opened(self) -> bool:
        """Whether a client came before us: connections are accepted in their order."""
        with socket.create_connection(self._address) as ours:
            first, address = self._socket.accept()
            first.close()
            return bool(address != ours.getsockname())

    def wait_for_client(self) -> None:
        """Wait for a client to come."""
        self._socket.settimeout(LONG)
        self._socket.accept()[0].close()

    def close(self) -> None:
        self._socket.close()
