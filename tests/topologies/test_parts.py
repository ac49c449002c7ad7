"""A Cluster of which a part is away: limiters that may go without the store do so for the names of
that part, and for no others (F40).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from headgate import Concurrency, Limiter, StoreError
from headgate.internals import queue_of, store_of
from headgate.stores import fallback
from headgate.stores.redis.transport import availability
from tests.clusters import Cluster, Node
from tests.faults import haste
from tests.faults.scene import eventually
from tests.world import at_rest, long, soon

pytestmark = pytest.mark.usefixtures("hurried")
AT_ONCE = haste.OUTAGE / 2  # seconds that suffice for a caller that looks for no server
PROMOTION = 10.0  # seconds until a replica is a master: about three


@pytest.fixture
def lonely(cluster: Cluster) -> Iterator[Node]:
    """A master without a replica that could take its place."""
    master = cluster.masters()[0]
    with cluster.without_successors(master):
        yield master
        cluster.heal()


def limiter_of(name: str, cluster: Cluster, **options: Any) -> Limiter:
    return Limiter(
        name,
        Concurrency(2),
        store=f"{cluster.user_url}?socket_connect_timeout={haste.GREETING}",
        **options,
    )


async def fence_of(limiter: Limiter) -> int:
    async with limiter.acquire() as permit:
        return permit.fence


async def limited(limiter: Limiter) -> None:
    """Go on when the limiter uses the store again. A node that has come back answers, but grants no
    caller for two seconds.
    """
    async with asyncio.timeout(long()):
        while True:
            if await fence_of(limiter):
                return
            await asyncio.sleep(0.001)


async def test_names_of_a_server_that_is_there_are_limited_while_another_one_is_away(
    name: str, cluster: Cluster, lonely: Node
) -> None:
    """L5, S1: given a master that is gone, when its names go without the store, then names of other
    masters are limited, and new ones as well. No answer of the others makes a process ask the dead
    one. When it is back, all are limited.
    """
    healthy = cluster.masters()[1]
    lost, served, new = [
        limiter_of(cluster.name_on(node, f"{name}-{number}"), cluster, on_store_error="open")
        for number, node in enumerate((lonely, healthy, healthy))
    ]
    for limiter in (lost, served):
        assert await soon(fence_of(limiter)) > 0

    lonely.kill()
    assert await soon(fence_of(lost)) == 0
    assert await soon(fence_of(served)) > 0
    assert await soon(fence_of(new)) > 0
    start = monotonic()
    for _ in range(3):
        assert await fence_of(lost) == 0
        assert await fence_of(served) > 0
    assert monotonic() - start <= AT_ONCE
    assert ["at present without it" in repr(limiter) for limiter in (lost, served, new)] == [
        True,
        False,
        False,
    ]

    lonely.start()
    await limited(lost)
    for limiter in (lost, served, new):
        await at_rest(limiter)


async def test_names_that_another_server_has_taken_over_are_limited_there(
    name: str, cluster: Cluster
) -> None:
    """L5, F40: given a master that is dead, when its replica is promoted, then its names are
    limited again, though the master is not back.

    The acquires do not look for the dead master: otherwise the first of them may find the replica.
    """
    dying = cluster.masters()[0]
    limiter = limiter_of(cluster.name_on(dying, name), cluster, on_store_error="open", retry_for=0)
    assert await soon(fence_of(limiter)) > 0
    cluster.copy(dying)

    dying.kill()
    assert await soon(fence_of(limiter)) == 0
    await eventually(
        lambda: cluster.serves(f"headgate:{{{limiter.name}}}", without=dying), PROMOTION
    )
    await limited(limiter)

    its = store_of(queue_of(limiter))._clients[asyncio.get_running_loop()]  # type: ignore[attr-defined]  # the store of a fallback line
    await eventually(lambda: not its.availability.unavailable)


async def test_names_of_a_dead_master_fail_at_once_and_names_of_another_wait_for_it(
    name: str, cluster: Cluster, lonely: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L5: given on_store_error="raise" and one master that is gone, when one caller has tried in
    vain, then new names of it are an error at once. A new name of another master that is away for a
    moment waits for it.
    """
    monkeypatch.setattr(availability, "LONGEST", 0.05)  # the pause before a first attempt
    there = cluster.masters()[1]
    names = [
        cluster.name_on(node, f"{name}-{number}")
        for number, node in enumerate((lonely, lonely, there, there))
    ]
    lost, new, served, hoping = [limiter_of(its, cluster) for its in names]
    for limiter in (lost, served):
        await soon(fence_of(limiter))
    lonely.kill()
    with pytest.raises(StoreError):
        await soon(lost.acquire())

    start = monotonic()
    with pytest.raises(StoreError):
        await soon(new.acquire())
    assert monotonic() - start <= AT_ONCE
    there.pause()
    asking = asyncio.create_task(fence_of(hoping))
    await asyncio.sleep(haste.PATIENCE + 0.1)  # a reply is overdue, and it connects again
    there.resume()
    assert await soon(asking) > 0


async def test_an_answer_of_one_server_does_not_log_that_another_is_back(
    name: str,
    cluster: Cluster,
    lonely: Node,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S9: given keys of one limiter at a server that is away and at another, then the log has one
    line. It has one more when all is well.
    """
    monkeypatch.setattr(fallback, "CALM", 0.0)
    caplog.set_level(logging.WARNING, "headgate")
    keyed = limiter_of(name, cluster, on_store_error="open")
    keys = {
        node: next(key for key in map(str, range(1000)) if kept_by(cluster, keyed[key]) is node)
        for node in cluster.masters()[:2]
    }
    lost, served = keyed[keys[lonely]], keyed[keys[cluster.masters()[1]]]
    for limiter in (lost, served):
        assert await soon(fence_of(limiter)) > 0

    lonely.kill()
    for _ in range(3):
        assert await soon(fence_of(lost)) == 0
        assert await soon(fence_of(served)) > 0
    assert len(logged_of(name, caplog)) == 1
    lonely.start()
    await limited(lost)
    assert await soon(fence_of(served)) > 0

    assert len(logged_of(name, caplog)) == 2
    assert "is back at its store" in logged_of(name, caplog)[1]


def logged_of(name: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines about the limiter `name`."""
    return [message for message in caplog.messages if name in message]


def kept_by(cluster: Cluster, limiter: Limiter) -> Node:
    return cluster.master_of(queue_of(queue_of(limiter)).key)  # type: ignore[attr-defined]  # the line behind the fallback
