"""Shorter constants: what takes the product seconds takes a story a fraction of one, in about the
same proportions.

A connection, a reply and an outage take longer than a machine stands still: no ordinary call fails
in a stall.

Here lives what is shortened, for this process or, by `hurry()` alone, for a program in another one.
Every process that shares a name must be in the same hurry: the script that they call is another
one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.stores.redis import fast_path
from headgate.stores.redis.protocol import script
from headgate.stores.redis.session import reply_timeouts, session
from headgate.stores.redis.transport import endpoint, node, reconnection, subscriber
from tests.machine import scaled

WAITER = scaled(1.5)  # seconds of silence after which a waiter is taken for dead: 10 in the product
HEARTBEAT = scaled(0.15)  # seconds between two signs of life: 3
GREETING = scaled(
    2.0
)  # seconds for a connection: 5; a store that was never reached is not looked for again
PATIENCE = scaled(1.5)  # seconds for a reply: 5; the same is true of the first
OUTAGE = scaled(3.0)  # seconds for which a store that was there is looked for again: 10
REVIVAL = scaled(
    0.5
)  # seconds, at most, until one that is away is asked again, or offered what is owed: 5
HOLD = scaled(0.4)  # seconds for which what another process has replaced is not taken again: 60
KEPT = "WAITER, KEEP, CLEANUP = 10000000, 30000000, 100"
HELD = "HOLD, FORMER, DAY = 60000000,"
DOUBTED = "UNHEARD = 4000000"
UNHEARD = (
    0.6  # seconds after its last call for which a session without receivers counts as alive: 4
)


def hurry(change: Callable[[Any, str, Any], object] = setattr) -> None:
    """Change them for good, or for one test with `monkeypatch.setattr`; limiters are made
    afterwards.
    """
    change(session, "HEARTBEAT", HEARTBEAT)
    change(reply_timeouts, "REPLY_TIMEOUT", PATIENCE)
    change(reconnection, "OUTAGE", OUTAGE)
    change(reconnection, "REVIVAL", REVIVAL)
    change(node, "REPLY_TIMEOUT", PATIENCE)
    change(subscriber, "REPLY_TIMEOUT", PATIENCE)
    change(endpoint, "REPLY_TIMEOUT", PATIENCE)
    change(fast_path, "REPLY_TIMEOUT", PATIENCE)
    change(endpoint, "CONNECT_TIMEOUT", GREETING)
    microseconds = round(WAITER * 1_000_000)
    sources = script.sources()
    assert all(words in sources["prelude"] for words in (KEPT, HELD, DOUBTED)), (
        "prelude.lua says it in other words now"
    )
    shorter = KEPT.replace("10000000, 30000000", f"{microseconds}, {3 * microseconds}")
    held = HELD.replace("60000000", f"{round(HOLD * 1_000_000)}")
    doubted = DOUBTED.replace("4000000", f"{round(UNHEARD * 1_000_000)}")
    prelude = (
        sources["prelude"].replace(KEPT, shorter).replace(HELD, held).replace(DOUBTED, doubted)
    )
    for form, its in vars(script.Library({**sources, "prelude": prelude})).items():
        change(script.library(), form, its)
