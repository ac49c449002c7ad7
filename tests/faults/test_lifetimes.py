"""How long keys live on the server: as long as any promise in them, and no longer (S8, T12, L6);
and limits that change.

The tests read the server's own TTLs after each kind of call. They shorten no constants: leases and
periods are the product's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic, time
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit, Quota, Rate, Window
from tests.clocks import ServerClock
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    Puppet,
    Slack,
    client_of_its_own,
    content_of,
    elsewhere,
    enter,
    eventually,
    has_listened,
    holders_of,
    keys_of,
    waiters_of,
)
from tests.world import at_rest, renew_now, soon, until, used, waiting

DAY = 86_400.0
LEASE = 4.5  # seconds: a renewal that a stall delays still comes before it ends
IDLE = 30.0  # seconds for which a session and its last answer are remembered at least

Story = Callable[[Limiter], Awaitable[None]]


def remembered(admin: Redis, name: str) -> dict[str, float]:
    """For how many seconds the server will know each key of `name`; -1: for ever."""
    return {key: admin.pttl(key) / 1000 for key in keys_of(admin, name)}


# Each kind of call, on a limiter of any kind


async def renewed(permit: Permit) -> None:
    """Go on when the server has answered a renewal that the process sends from now on: the permit
    is held for longer.
    """
    sent_before_now = monotonic() + LEASE
    await eventually(lambda: permit.lost or permit.certain_until > sent_before_now)


async def released(limiter: Limiter) -> None:
    await (await limiter.acquire()).arelease()


async def settled(limiter: Limiter) -> None:
    permit = await limiter.acquire()
    permit.settle(requests=2)
    await permit.arelease()


async def refused(limiter: Limiter) -> None:
    await released(limiter)
    while await limiter.atry_acquire():
        pass


async def queued(limiter: Limiter) -> None:
    await refused(limiter)
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    waiter.cancel()
    await waiting(limiter, 0)


STORIES: list[Story] = [released, settled, refused, queued]
LIMITS: list[tuple[Any, float]] = [
    (Rate(1, per=3600), 3600),
    (Rate(2, per=3600, capacity=5), 1800),
    (Rate(1, per=3600, steps=True), 3600),
    (Rate(1, per=60, initial=1, slack=30.0), 90),
    (Window(1, per=3600), 3600),
    (Window(3, per=7200), 7200),
    (Quota(1, per=DAY * 365), 0),
]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
@pytest.mark.parametrize(("limit", "seconds"), LIMITS, ids=[str(limit) for limit, _ in LIMITS])
async def test_the_server_remembers_a_limit_until_it_has_refilled(
    name: str, redis_url: str, admin: Redis, limit: Any, seconds: float, story: Story
) -> None:
    """S8, T12: every key that has a part in a limit of 1 an hour is remembered for an hour. No key
    is remembered for ever.
    """
    limiter = Limiter(name, limit, store=redis_url)

    await story(limiter)

    if isinstance(limit, Quota):
        seconds = limiter_resets_in(limit)
    left = remembered(admin, name)
    assert left[f"headgate:{{{name}}}"] >= seconds - 1
    assert all(each >= IDLE for each in left.values()), left
    assert max(left.values()) <= max(seconds * 5, DAY) + 120, left


def limiter_resets_in(quota: Quota) -> float:
    """Until the quota's next period, with a minute for the test."""
    return quota.per - (time() - quota.origin) % quota.per - 60


async def test_the_largest_possible_debt_is_counted_and_delays_no_release(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S7, review f4: the largest possible settlement travels in one call with a release. Both
    arrive, and the state is sound.
    """
    limits = Concurrency(1), Rate(5000, per=3600)
    limiter = Limiter(name, *limits, store=redis_url)
    permit = await limiter.acquire()

    permit.settle(requests=2**53 - 1)
    permit.release()
    held, rate = (await limiter.astatus()).limits

    assert held.used == 0
    assert rate.left < -(2**30)
    assert not await limiter.atry_acquire()
    assert holders_of(admin, name) == 0


async def test_a_debt_is_remembered_until_it_is_paid(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S8, T12: a hundred tokens more than an hour brings are a debt of a hundred hours."""
    limiter = Limiter(name, Rate(1, per=3600), store=redis_url)
    permit = await limiter.acquire()

    permit.settle(requests=100)
    await until(lambda status: used(status) == [100], limiter)

    assert remembered(admin, name)[f"headgate:{{{name}}}"] >= 100 * 3600 - 1


@pytest.mark.parametrize("lease", [60.0, 7200.0])
async def test_a_held_permit_is_remembered_for_its_lease(
    name: str, redis_url: str, admin: Redis, lease: float
) -> None:
    """S8: the key of the holders and the state that counts them live on. A release does not shorten
    the leases of others.
    """
    limiter = Limiter(name, Concurrency(2, lease=lease), store=redis_url)
    first, second = await limiter.acquire(), await limiter.acquire()
    await first.arelease()

    left = remembered(admin, name)

    assert left[f"headgate:{{{name}}}"] >= lease
    assert left[f"headgate:{{{name}}}:who"] >= lease - 1
    await second.arelease()


async def test_a_renewed_permit_is_remembered_for_longer(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: given a permit held for ten minutes under a lease of one, then the keys outlive each
    renewal, as they have outlived the first lease.
    """
    clock = ServerClock(monkeypatch)
    limiter = Limiter(name, Concurrency(1, lease=60.0), Rate(10, per=1), store=redis_url)
    permit = await limiter.acquire()

    for _ in range(12):
        clock.forward(50)
        for key, left in remembered(admin, name).items():
            admin.pexpire(key, round((left - 50) * 1000))
        renew_now(permit.home)
        assert used(await limiter.astatus()) == [1, 0]

    assert await permit.arelease()


async def test_limits_that_last_longer_than_before_are_remembered_for_longer(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S8, T12: a new declaration with a slower rate and a longer lease holds for earlier permits
    and tokens, too.
    """
    short = Limiter(name, Concurrency(2, lease=60.0), Rate(1, per=1000), store=redis_url)
    permit = await short.acquire()

    long = elsewhere(name, Concurrency(2, lease=500.0), Rate(1, per=50_000), url=redis_url)
    await long.atry_acquire()

    left = remembered(admin, name)
    assert (
        left[f"headgate:{{{name}}}"] >= 45_000
    )  # the bucket has got back a part of its token meanwhile
    assert left[f"headgate:{{{name}}}:who"] >= 30
    assert await permit.arelease()


async def test_when_all_callers_have_left_only_keys_that_expire_stay(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6: all permits are free, the queue is empty, only the two tasks of the connection run, and
    each key has a TTL.
    """
    before = asyncio.all_tasks()
    limits = Concurrency(3, lease=5.0), Rate(1000, per=0.1), Window(1000, per=0.1)
    limiters = [elsewhere(name, *limits, url=redis_url) for _ in range(2)]

    async def visit(limiter: Limiter) -> None:
        async with limiter.acquire() as permit:
            permit.settle(requests=1)

    visits = [asyncio.create_task(visit(limiter)) for limiter in limiters for _ in range(50)]
    for task in visits[::7]:
        task.cancel()
    await asyncio.gather(*visits, return_exceptions=True)

    for limiter in limiters:
        assert (await at_rest(limiter)).waiting == 0
    assert [
        task.get_name()
        for task in asyncio.all_tasks() - before
        if not task.get_name().startswith("headgate-")
    ] == []
    assert len(asyncio.all_tasks() - before) <= 2 * len(limiters)
    left = remembered(admin, name)
    assert left
    assert all(0 < each <= 200 for each in left.values()), left
    assert holders_of(admin, name) == waiters_of(admin, name) == 0


async def test_a_limiter_whose_keys_have_expired_is_as_good_as_new(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S8: given a limiter whose keys have expired, then a session that knew the former state uses
    it like a new one.
    """
    limits = Concurrency(1, lease=0.3), Rate(1, per=0.01), Window(1, per=0.01)
    limiter = Limiter(name, *limits, store=redis_url)
    former = await soon(limiter.acquire())
    await former.arelease()
    assert content_of(admin, name)

    for key in keys_of(admin, name):
        admin.pexpire(key, 1)
    await eventually(lambda: not keys_of(admin, name))

    permit = await soon(limiter.acquire())
    assert permit.fence > former.fence
    assert await permit.arelease()


# Limits that change -------------------------------------------------------------------------------


@pytest.mark.proof
async def test_a_lease_shortened_by_another_process_does_not_shorten_the_leases_of_holders(
    name: str, proxy: Proxy, redis_url: str
) -> None:
    """S1, S2, review R3: A holds under a long lease, B declares a short one. A renews, and the
    reply is held up.

    A can rely only on replies that it received, so the server must not grant A's permit to C before
    that lease ends.
    """
    long, short = Concurrency(1, lease=1.8), Concurrency(1, lease=0.6)
    a = await Limiter(name, long, store=proxy.url).acquire()
    assert not await elsewhere(name, short, url=redis_url).atry_acquire()

    def after_the_declaration(piece: bytes) -> bytes:
        if b" stale " in piece:
            proxy.replies.hold()
        return piece

    proxy.replies.alter = after_the_declaration
    renew_now(a.home)
    c = await soon(elsewhere(name, short, url=redis_url).acquire())

    assert a.lost
    assert any(b" stale " in piece for piece in proxy.replies.seen)
    proxy.replies.resume()
    assert await c.arelease()
    a.release()


async def test_a_lease_made_longer_keeps_no_dead_holder_for_longer(
    name: str, redis_url: str, puppet: Callable[..., Puppet], slack: Slack
) -> None:
    """L1: a promise under the short lease ends at its time, though a long lease is declared now."""
    short = Concurrency(1, lease=0.4)
    dead = puppet(short, pace="calm")
    await dead.hears("acquire a", until="a asks")
    await dead.says("a inside")
    dead.process.kill()

    start = monotonic()
    permit = await soon(Limiter(name, Concurrency(1, lease=30.0), store=redis_url).acquire())

    assert monotonic() - start <= short.lease + slack()
    assert await permit.arelease()


async def test_no_caller_has_an_error_when_a_held_concurrency_limit_is_dropped(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L5, review R4: the holder goes on to renew at its pace. No caller has an error, and no loop
    is busy.
    """
    rate = Rate(10_000, per=1)
    limiter = Limiter(name, Concurrency(5, lease=0.06), rate, store=redis_url)
    permit = await limiter.acquire()
    other = elsewhere(name, rate, url=redis_url)
    await other.acquire()

    admin.config_resetstat()
    start = monotonic()
    acquires = 0
    while monotonic() - start < 0.3:  # five leases
        await limiter.acquire()
        acquires += 1
        await asyncio.sleep(0.005)

    beside = admin.info("commandstats")["cmdstat_fcall"]["calls"] - acquires
    leases = (
        monotonic() - start
    ) / 0.06  # three renewals in each, and an acquire that looks whether it has ended
    assert beside <= (3 * leases + 1) + (leases + 1)
    permit.release()
    assert (await other.astatus()).limits[0].kind == "Rate"


@pytest.mark.parametrize("by_itself", [True, pytest.param(False, marks=pytest.mark.proof)])
async def test_a_holder_of_a_dropped_concurrency_limit_renews_and_counts_when_the_limit_is_back(
    name: str, redis_url: str, admin: Redis, by_itself: bool
) -> None:
    """S1, S2: a permit keeps its lease while no limit counts it, so its holder still has it when a
    limit counts it again.
    """
    one = Concurrency(1, lease=LEASE)
    limiter, other = (elsewhere(name, one, url=redis_url) for _ in range(2))
    permit = await limiter.acquire()
    await other.astatus()
    changing = limiter if by_itself else other

    await changing.aupdate("1000/second")
    await renewed(permit)
    assert not permit.lost
    assert holders_of(admin, name) == 1
    await changing.aupdate(one)

    assert used(await other.astatus()) == [1]
    assert not await other.atry_acquire()
    await renewed(permit)
    assert not await other.atry_acquire()
    assert await permit.arelease()
    assert await (await soon(other.acquire())).arelease()


async def test_a_permit_that_no_limit_counts_is_remembered_for_its_lease(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8: given a permit under a lease of ten minutes, when the limit is dropped, then the keys
    outlive each renewal.
    """
    clock = ServerClock(monkeypatch)
    limiter = Limiter(name, Concurrency(1, lease=600.0), store=redis_url)
    permit = await limiter.acquire()
    await elsewhere(name, Rate(10, per=1), url=redis_url).astatus()

    for _ in range(5):
        clock.forward(500)
        for key, left in remembered(admin, name).items():
            admin.pexpire(key, round((left - 500) * 1000))
        renew_now(permit.home)
        await limiter.astatus()
        assert min(remembered(admin, name).values()) >= 590

    assert await permit.arelease()


async def test_a_permit_of_a_limit_that_its_process_does_not_know_is_renewed(
    name: str, redis_url: str
) -> None:
    """S1, S2: given a waiter under a rate, when another process adds a concurrency limit, then its
    permit is renewed.
    """
    slow, one = Rate(1, per=1000), Concurrency(1, lease=LEASE)
    client = client_of_its_own(redis_url)
    limiter, other = Limiter(name, slow, store=client), elsewhere(name, slow, url=redis_url)
    await has_listened(
        Limiter(f"{name}-other", one, store=client), elsewhere(f"{name}-other", one, url=redis_url)
    )
    await other.acquire()
    caller = asyncio.create_task(enter(limiter))
    await waiting(other, 1)

    await other.aupdate(Rate(1000, per=1), one)
    permit = await soon(caller)
    await renewed(permit)

    assert permit.held
    assert not permit.lost
    assert not await other.atry_acquire()
    assert await permit.arelease()


async def test_limits_declared_while_a_call_is_in_flight_reach_the_server(
    name: str, proxy: Proxy
) -> None:
    """Configuration travels, review R5: the last declaration wins, also over a call in flight."""
    await Limiter(
        f"{name}-other", Concurrency(1), store=proxy.url
    ).astatus()  # now the connection is there
    limiter = Limiter(name, Concurrency(1), store=proxy.url)
    proxy.replies.hold()
    seen = len(proxy.replies.seen)
    caller = asyncio.create_task(enter(limiter))
    await eventually(lambda: len(proxy.replies.seen) > seen)

    changed = Limiter(name, Concurrency(7), store=proxy.url)
    other = asyncio.create_task(enter(changed))
    await asyncio.sleep(0)
    proxy.replies.resume()
    permits: list[Permit] = [await soon(caller), await soon(other)]

    assert (await changed.astatus()).limits[0].capacity == 7
    assert [await permit.arelease() for permit in permits] == [True, True]


async def test_a_caller_that_leaves_releases_only_the_permit_that_it_entered_with(
    name: str, redis_url: str
) -> None:
    """S1, S4, review f8: a caller entered when there was no permit to hold. Its leaving takes no
    permit from a later caller.
    """
    rate = Rate(10_000, per=1)
    early, late = Limiter(name, rate, store=redis_url), []
    async with early:
        limiter = Limiter(name, rate, Concurrency(1), store=redis_url)
        inside, leave = asyncio.Event(), asyncio.Event()

        async def stay() -> None:
            async with limiter:
                late.append(await limiter.astatus())
                inside.set()
                await leave.wait()

        stayed = asyncio.create_task(stay())
        await soon(inside.wait())

    assert used(late[0])[1] == 1
    assert used(await limiter.astatus())[1] == 1
    leave.set()
    await soon(stayed)
    await at_rest(limiter)
