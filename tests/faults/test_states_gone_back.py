"""A state that goes back: after a failover, or from an older copy, the server lacks the last
writes.

F56. Permits that were released are held again there, and callers that were served wait again. The
live sessions report their permits, so no caller waits for a lease without a holder.
"""

from __future__ import annotations

import asyncio
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit
from tests.faults.scene import Slack, elsewhere, eventually, holders_of, keys_of, visit, waiters_of
from tests.servers import Server
from tests.world import at_rest, soon, used

LEASE = 6.0


class Copy:
    """The keys of a name as they were. `restore` brings them back on a server whose connections all
    break.
    """

    def __init__(self, admin: Redis, name: str) -> None:
        self._admin = admin
        self._kept = [(key, admin.pttl(key), admin.dump(key)) for key in keys_of(admin, name)]

    def restore(self, connections: bool = False) -> None:
        """Bring them back. With `connections` the connections stay."""
        for key, left, content in self._kept:
            assert content is not None, "the key was there"
            self._admin.restore(key, left, content, replace=True)
        for kind in () if connections else ("normal", "pubsub"):
            self._admin.client_kill_filter(_type=kind, skipme=True)


async def holder_and_waiters(
    limiter: Limiter, admin: Redis, name: str, ghosts: int
) -> tuple[Permit, list[asyncio.Task[None]]]:
    """One caller that holds, and so many that wait."""
    holder = await limiter.acquire()
    visits = [asyncio.create_task(visit(limiter)) for _ in range(ghosts)]
    await eventually(lambda: waiters_of(admin, name) == ghosts)
    return holder, visits


@pytest.mark.parametrize("ghosts", [0, 1, 3, 8])
@pytest.mark.parametrize("ways", ["one process", "two processes"])
async def test_no_newcomer_waits_for_callers_that_were_served(
    name: str, own_server: Server, own_admin: Redis, ghosts: int, ways: str, slack: Slack
) -> None:
    """L5, S1, F56: given a holder and waiters that are all served, when the state goes back to
    before that, then a newcomer is granted at once.
    """
    limit = Concurrency(1, lease=LEASE)
    former = elsewhere(name, limit, url=own_server.url)
    newcomer = former if ways == "one process" else elsewhere(name, limit, url=own_server.url)
    await newcomer.astatus()
    holder, visits = await holder_and_waiters(former, own_admin, name, ghosts)
    copy = Copy(own_admin, name)
    await holder.arelease()
    await asyncio.gather(*visits)

    copy.restore()
    began = monotonic()
    permit = await soon(newcomer.acquire())

    assert monotonic() - began < slack()
    assert holders_of(own_admin, name) == 1
    assert await permit.arelease()
    assert used(await at_rest(former)) == [0]


async def test_a_caller_that_was_served_is_granted_nothing_again(
    name: str, own_server: Server, own_admin: Redis, slack: Slack
) -> None:
    """L5, F56: the state goes back and no connection breaks, so no process knows. A newcomer waits
    for the lease that came back.

    The callers that wait again are granted nothing: the first grant shows their session that its
    places are of the past.
    """
    lease = 1.5
    former, newcomer = (
        elsewhere(name, Concurrency(1, lease=lease), url=own_server.url) for _ in range(2)
    )
    await newcomer.astatus()
    holder, visits = await holder_and_waiters(former, own_admin, name, ghosts=6)
    copy = Copy(own_admin, name)
    await holder.arelease()
    await asyncio.gather(*visits)

    copy.restore(connections=True)
    began = monotonic()
    permit = await soon(newcomer.acquire())

    assert monotonic() - began < lease + slack()
    assert holders_of(own_admin, name) == 1
    assert await permit.arelease()


async def test_a_permit_that_is_held_is_held_after_the_state_went_back(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S1, S2, F56: one of two permits was released since; only that one is free again."""
    limit = Concurrency(2, lease=LEASE)
    holding, newcomer = (elsewhere(name, limit, url=own_server.url) for _ in range(2))
    await newcomer.astatus()
    kept, released = await holding.acquire(), await holding.acquire()
    copy = Copy(own_admin, name)
    await released.arelease()

    copy.restore()
    second = await soon(newcomer.acquire())

    assert not await newcomer.atry_acquire()
    assert not kept.lost
    assert await kept.arelease()
    assert await second.arelease()
    assert used(await at_rest(holding)) == [0]
