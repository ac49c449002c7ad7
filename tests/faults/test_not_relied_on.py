"""Features that headgate does not rely on: blocking commands, events of the keyspace, and the
settings of a client (F31, F50, F52).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio
from redis import Redis

from headgate import Concurrency, Limiter
from tests.faults.scene import enter, eventually, visit
from tests.servers import Server
from tests.world import at_rest, soon, used, waiting

BLOCKING = {
    "blpop",
    "brpop",
    "blmove",
    "blmpop",
    "brpoplpush",
    "bzpopmin",
    "bzpopmax",
    "bzmpop",
    "xread",
    "xreadgroup",
    "wait",
}
SETTINGS: list[dict[str, Any]] = [
    {"protocol": 2},
    {"protocol": 3},
    {"protocol": 3, "decode_responses": True},
    {"decode_responses": True, "encoding": "latin-1"},
    {"socket_timeout": 0.001, "health_check_interval": 1},
]


async def test_no_connection_blocks_at_the_server(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F52, F27: while twenty callers wait, no connection is blocked. No grant comes from a pop,
    which could be lost on its way.
    """
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    holder = await limiter.acquire()
    waiters = [asyncio.create_task(visit(limiter)) for _ in range(20)]
    await waiting(limiter, 20)

    assert own_admin.info("clients")["blocked_clients"] == 0
    await holder.arelease()
    await soon(asyncio.gather(*waiters))

    ran = {command.removeprefix("cmdstat_") for command in own_admin.info("commandstats")}
    assert not ran & BLOCKING


async def test_no_process_subscribes_to_expiring_keys(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F50: events of the keyspace are switched off, as they are by default. No process subscribes
    to them, and there is one channel, headgate's.
    """
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    await eventually(own_admin.pubsub_channels)
    assert own_admin.config_get("notify-keyspace-events") == {"notify-keyspace-events": ""}
    assert own_admin.pubsub_numpat() == 0
    assert [str(channel).startswith("headgate:") for channel in own_admin.pubsub_channels()] == [
        True
    ]
    await holder.arelease()
    await (await soon(waiter)).arelease()


@pytest.mark.parametrize("kind", [redis.Redis, redis.asyncio.Redis], ids=["threads", "asyncio"])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings))
async def test_a_clients_settings_change_nothing(
    name: str, redis_server: Server, kind: Any, settings: dict[str, Any]
) -> None:
    """F31, S1: RESP 2 or 3, decoded or not, impatient or not: headgate reads its replies alike
    under all settings of a client.
    """
    limiter = Limiter(name, Concurrency(1), store=kind(port=redis_server.port, **settings))

    await soon(asyncio.gather(*(visit(limiter) for _ in range(10))))
    permit = await soon(asyncio.to_thread(limiter.acquire_sync))
    assert used(await limiter.astatus()) == [1]
    permit.release()

    assert used(await at_rest(limiter)) == [0]
