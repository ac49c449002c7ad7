"""A waiter whose process is killed: the server finds no receiver for its notification, and does not
wait long for it.

F59. A session that lives but whose subscription breaks calls in time, and keeps its place.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack

import pytest
from redis import Redis

from headgate import Concurrency, Limiter
from tests.faults.scene import (
    Puppet,
    Slack,
    commands_of,
    elsewhere,
    enter,
    eventually,
    has_listened,
)
from tests.processes import running
from tests.records import records
from tests.servers import Server
from tests.world import at_rest, long, soon, used, waiting

UNHEARD = 4.0  # seconds after its last call for which a session without receivers counts as alive
LIMIT = Concurrency(1, lease=30.0)


def listening(server: Server, name: str) -> int:
    """How many sessions of a name have asked the server for notifications (reply_cache.lua)."""
    with Redis(port=server.port) as raw:
        return sum(each.is_notified for each in records(raw, f"headgate:{{{name}}}").values())


@pytest.mark.parametrize("dead", [1, pytest.param(3, marks=pytest.mark.proof)])
async def test_a_killed_waiter_holds_the_queue_back_for_four_seconds(
    name: str, own_server: Server, own_admin: Redis, dead: int, slack: Slack
) -> None:
    """L3, S6, F59: when so many waiters at the head are killed and the holder leaves, then the next
    one is granted soon.
    """
    holding, limiter = (elsewhere(name, LIMIT, url=own_server.url) for _ in range(2))
    holder = await holding.acquire()
    with ExitStack() as stack:
        others = [
            Puppet(
                stack.enter_context(running("puppet", own_server.url, name, "calm", repr(LIMIT)))
            )
            for _ in range(dead)
        ]
        for number, other in enumerate(others, 1):
            assert other.process.line() == "ready"
            await other.hears("acquire dead", until="dead asks")
            await waiting(holding, number)
        alive = asyncio.create_task(enter(limiter))
        await waiting(holding, dead + 1)
        await eventually(lambda: listening(own_server, name) == dead + 1)

        killed = time.monotonic()
        for other in others:
            other.process.kill()
        await eventually(lambda: len(own_admin.client_list(_type="pubsub")) == 1)
        await holder.arelease()
        async with asyncio.timeout(2 * long()):
            permit = await alive

    assert time.monotonic() - killed < UNHEARD + slack()
    assert await permit.arelease()
    assert used(await at_rest(holding)) == [0]


@pytest.mark.usefixtures("hurried")
async def test_a_waiter_that_lives_without_its_subscription_keeps_its_place(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F59, S6: its subscription breaks, and it cannot subscribe again.

    It is granted first, though no connection receives the notification.
    """
    holding, first, second = (elsewhere(name, LIMIT, url=own_server.url) for _ in range(3))
    order: list[str] = []

    async def caller(number: str, limiter: Limiter) -> None:
        permit = await enter(limiter)
        order.append(number)
        await permit.arelease()

    for limiter in (first, second):
        await has_listened(limiter, holding)
    holder = await holding.acquire()
    visits = [asyncio.create_task(caller("first", first))]
    await waiting(holding, 1)
    visits.append(asyncio.create_task(caller("second", second)))
    await waiting(holding, 2)

    own_admin.acl_setuser("default", enabled=True, nopass=True, reset_channels=True)
    own_admin.client_kill_filter(_type="pubsub")
    calls = commands_of(own_admin).get("fcall", 0)
    await eventually(
        lambda: commands_of(own_admin).get("fcall", 0) >= calls + 20
    )  # longer than the server waits for a dead session
    await holder.arelease()
    await soon(asyncio.gather(*visits))

    assert order == ["first", "second"]
    assert used(await at_rest(holding)) == [0]
