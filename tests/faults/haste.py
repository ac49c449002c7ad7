"""Shorter constants: a wait of seconds in the product takes a fraction of a second in a test, in
about the same proportions.

A connection, a reply and an outage still take longer than a machine stands still, so no ordinary
call fails in a stall.

`hurry()` shortens them for this process; a program in another process calls `hurry()` alone. Every
process that shares a name must use the same constants, because the script that they call differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headgate.stores.redis import fast_path
from headgate.stores.redis.protocol import script
from headgate.stores.redis.session import deadlines, polls
from headgate.stores.redis.transport import availability, endpoint, node, reconnection, subscriber
from tests.machine import scaled

SESSION_LIFE = scaled(1.5)  # seconds of silence after which a waiter is dead: 10 in the product
HEARTBEAT = scaled(0.15)  # seconds between two signs of life: 3
GREETING = scaled(
    2.0
)  # seconds for a connection: 5; no process looks again for a store that it never reached
PATIENCE = scaled(1.5)  # seconds for a reply: 5; this is true of the first reply, too
OUTAGE = scaled(3.0)  # seconds for which a process looks for a store that it has reached before: 10
REVIVAL = scaled(
    0.5
)  # seconds at most until a process asks an unreachable store again, or sends its backlog: 5
HOLD = scaled(0.4)  # seconds until the server takes limits again that were replaced: 60
# Seconds after its last call for which a session without receivers counts as alive: 4.
UNHEARD = scaled(0.6)


def hurry(change: Callable[[Any, str, Any], object] = setattr) -> None:
    """Change them for good, or for one test with `monkeypatch.setattr`. The test makes its limiters
    afterwards.
    """
    change(polls, "HEARTBEAT", HEARTBEAT)
    change(deadlines, "REPLY_TIMEOUT", PATIENCE)
    change(reconnection, "OUTAGE", OUTAGE)
    change(availability, "REVIVAL", REVIVAL)
    change(reconnection, "REVIVAL", REVIVAL)
    change(node, "REPLY_TIMEOUT", PATIENCE)
    change(subscriber, "REPLY_TIMEOUT", PATIENCE)
    change(endpoint, "REPLY_TIMEOUT", PATIENCE)
    change(fast_path, "REPLY_TIMEOUT", PATIENCE)
    change(endpoint, "CONNECT_TIMEOUT", GREETING)
    sources = script.sources()
    prelude = sources["prelude"]
    for name, microseconds, seconds in (
        ("SESSION_LIFE", 10_000_000, SESSION_LIFE),
        ("KEEP", 30_000_000, 3 * SESSION_LIFE),
        ("HOLD", 60_000_000, HOLD),
        ("UNHEARD", 4_000_000, UNHEARD),
    ):
        line = f"local {name} = {microseconds}"
        assert line in prelude, f"prelude.lua has no line {line!r}"
        prelude = prelude.replace(line, f"local {name} = {round(seconds * 1_000_000)}")
    for form, its in vars(script.Library({**sources, "prelude": prelude})).items():
        change(script.library(), form, its)
