"""A server that lacks the last writes takes the place of a real one that is lost: by Sentinel, and
in a Cluster.

F56. There, permits that were released are held again, and callers that were served wait again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headgate import Concurrency, Limiter
from tests.clusters import Cluster
from tests.faults.scene import eventually, visit
from tests.machine import scaled_now
from tests.sentinels import Sentinels
from tests.topologies.test_cluster import key_of
from tests.world import at_rest, used, waiting

LEASE = 30.0  # seconds, and for as long a caller would wait that is granted after a ghost
PROMOTION = 10.0  # seconds until the replica has taken over: about three
# Seconds from then until a newcomer is granted: the back-off is 1 at most, a process that missed a
# message asks after 3, and the machine may be busy.
BOUND = 6.0

Lose = Callable[[], Coroutine[Any, Any, None]]


async def assert_no_wait_for_ghosts(
    former: Limiter, newcomer: Limiter, ghosts: int, stop_copying: Callable[[], object], lose: Lose
) -> None:
    """Serve a holder and `ghosts` waiters behind the back of the replica, lose the primary, and
    acquire.
    """
    await newcomer.astatus()
    holder = await former.acquire()
    visits = [asyncio.create_task(visit(former)) for _ in range(ghosts)]
    await waiting(former, ghosts)
    stop_copying()
    assert await holder.arelease()
    await asyncio.gather(*visits)

    await lose()
    began = time.monotonic()
    permit = await newcomer.acquire()
    waited = time.monotonic() - began

    status = await newcomer.astatus()
    assert await permit.arelease()

    assert waited < min(scaled_now(BOUND), LEASE / 2)
    assert used(status) == [1]
    assert used(await at_rest(former)) == [0]


@pytest.mark.parametrize("ghosts", [0, 5])
async def test_no_newcomer_waits_for_callers_that_the_former_primary_of_sentinel_has_served(
    name: str, own_sentinels: Sentinels, ghosts: int
) -> None:
    """L5, S1, F56: given a holder and waiters that are all served, when a replica that missed it
    becomes the primary, then a newcomer waits for no lease.
    """
    former, newcomer = [
        Limiter(
            name,
            Concurrency(1, lease=LEASE),
            store=f"{own_sentinels.user_url}&socket_connect_timeout={5 + number}",
        )
        for number in range(2)
    ]

    async def lose() -> None:
        lost = own_sentinels.kill_primary()
        await eventually(lambda: own_sentinels.promoted(lost), scaled_now(PROMOTION))

    await assert_no_wait_for_ghosts(former, newcomer, ghosts, own_sentinels.stop_copying, lose)


@pytest.mark.parametrize("ghosts", [0, 5])
async def test_no_newcomer_waits_for_callers_that_the_former_master_of_a_cluster_has_served(
    name: str, cluster: Cluster, ghosts: int
) -> None:
    """L5, S1, F56: given a holder and waiters that are all served, when a replica that missed it
    takes over, then a newcomer waits for no lease.
    """
    lost = cluster.masters()[0]
    its = cluster.name_on(lost, name)
    replica = cluster.replica_of(lost)
    former, newcomer = [
        Limiter(
            its,
            Concurrency(1, lease=LEASE),
            store=f"{cluster.user_url}?socket_connect_timeout={5 + number}",
        )
        for number in range(2)
    ]

    async def lose() -> None:
        lost.kill()
        replica.resume()
        await eventually(lambda: cluster.serves(key_of(its), without=lost), scaled_now(PROMOTION))

    await assert_no_wait_for_ghosts(
        former, newcomer, ghosts, lambda: cluster.stop_copying(lost), lose
    )
