"""A primary is cut off together with its clients, and its replica is promoted elsewhere (F39):
neither server knows of the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate import Concurrency, StoreError
from tests.faults.scene import elsewhere, eventually
from tests.machine import scaled
from tests.servers import Server
from tests.world import soon

ONE = Concurrency(1, lease=scaled(1.5))

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def replica(own_server: Server) -> Iterator[Server]:
    """A copy of the primary, as long as no test promotes it."""
    own_server.admin.config_set("repl-diskless-sync-delay", 0)
    server = Server().start()
    server.admin.replicaof("127.0.0.1", str(own_server.port))
    yield server
    server.kill()  # an orderly end would wait for its own replicas
    server.stop()


async def in_step(primary: Server, replica: Server) -> None:
    """Go on when both have all earlier writes."""
    await eventually(lambda: replica.admin.info("replication")["master_link_status"] == "up")
    await eventually(lambda: position(replica) >= position(primary))


def position(server: Server) -> int:
    replication = server.admin.info("replication")
    return int(replication.get("slave_repl_offset", replication["master_repl_offset"]))


def cut_off(primary: Server, replica: Server) -> None:
    replica.admin.replicaof("NO", "ONE")
    assert replica.admin.info("replication")["role"] == "master"
    assert primary.admin.info("replication")["role"] == "master"


async def test_with_required_replicas_no_caller_passes_at_the_side_that_was_cut_off(
    name: str, own_server: Server, replica: Server
) -> None:
    """F39, S1, S5: with min-replicas-to-write no renewal succeeds there, so its holder learns of
    the loss. No other caller enters there.
    """
    own_server.admin.config_set("min-replicas-to-write", 1)
    await in_step(own_server, replica)
    await eventually(lambda: own_server.admin.info("replication")["min_slaves_good_slaves"])
    there, here = elsewhere(name, ONE, url=own_server.url), elsewhere(name, ONE, url=replica.url)
    holder = await there.acquire()
    await in_step(own_server, replica)

    cut_off(own_server, replica)
    await eventually(lambda: own_server.admin.info("replication")["connected_slaves"] == 0)
    successor = await soon(here.acquire())

    await eventually(lambda: holder.lost)
    assert holder.fence < successor.fence
    with pytest.raises(StoreError, match="NOREPLICAS"):
        await there.acquire()
    await successor.arelease()


@pytest.mark.proof
async def test_without_required_replicas_each_side_keeps_to_the_limit_by_itself(
    name: str, own_server: Server, replica: Server
) -> None:
    """F39, S1, S5: the two sides exceed the limit by one capacity at most. When both are one again,
    the holder at the lost side learns it.
    """
    await in_step(own_server, replica)
    there, here = elsewhere(name, ONE, url=own_server.url), elsewhere(name, ONE, url=replica.url)
    cut_off(own_server, replica)

    holder, other = await there.acquire(), await here.acquire()
    assert not await there.atry_acquire()
    assert not await here.atry_acquire()

    own_server.admin.replicaof("127.0.0.1", str(replica.port))
    await eventually(lambda: holder.lost)
    assert not other.lost
    assert await other.arelease()
