"""The index of names, for tests: a refresh at once, and the server's own view of it."""

from __future__ import annotations

import asyncio
from typing import Any

from redis import Redis

from headgate.stores.redis.index import Refresher
from headgate.stores.redis.protocol.index import LABELS, NAMES, Label, parse_label
from headgate.stores.registry import store_of
from tests.faults.scene import eventually


def refresher_of(store: Any) -> Refresher:
    """That of the running loop's client."""
    found: Refresher = store_of(store)._refreshers[asyncio.get_running_loop()]  # type: ignore[attr-defined]
    return found


async def refreshed(store: Any) -> None:
    """Refresh the index, as the timer does it after a minute, and go on when all is sent."""
    refresher = refresher_of(store)
    refresher.refresh()
    client = refresher._client
    await eventually(
        lambda: not (refresher._calls or client.sending.has_backlog or calls_of(client, refresher))
    )


def calls_of(client: Any, sender: object) -> int:
    """How many calls of `sender` have no answer yet."""
    lists = *client.reconnection.unrouted.values(), *(node.calls for node in client.nodes.values())
    return sum(getattr(call, "sender", None) is sender for calls in lists for call in calls)


def indexed(admin: Redis) -> dict[str, float]:
    """The encoded names, each with the seconds that it has left."""
    now = admin.time()[0]
    return {name: end - now for name, end in admin.zrange(NAMES, 0, -1, withscores=True)}


def labels(admin: Redis) -> dict[str, Label]:
    """The labels, by the beginnings of the clients' ids."""
    return dict(parse_label(each) for key in LABELS for each in admin.zrange(key, 0, -1))
