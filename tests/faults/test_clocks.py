"""The server's clock steps forward and back while callers hold permits and limits count, and a
machine is suspended (F15, F43, F44).

The server and the Lua are the real ones, except for the line that reads the time. A key says by how
much that time is wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest
from redis import Redis

from headgate import Concurrency, LeaseLostError, Limiter, Permit, Quota, Rate, Window
from headgate.limits import Limit
from headgate.stores.redis.protocol import script
from tests.faults.scene import elsewhere, enter, eventually, has_listened
from tests.machine import scaled
from tests.servers import Server
from tests.world import at_rest, soon, used, waiting

HOUR = 3600
LEASE = scaled(1.5)  # seconds: the holder renews after a third of it
Step = Callable[[float], object]


@pytest.fixture
def step(name: str, admin: Redis, monkeypatch: pytest.MonkeyPatch) -> Step:
    """Moves the server's clock by so many seconds, as this test's limiters see it."""
    key = f"{name}-is-wrong-by"
    read = f"""
        local function clock()
          local time = redis.call('TIME')
          return time[1] * 1000000 + time[2] + tonumber(redis.call('GET', '{key}') or 0)
        end
    """
    for form, its in vars(script.Library({**script.sources(), "clock": read})).items():
        monkeypatch.setattr(script.library(), form, its)
    return lambda seconds: admin.incrby(key, round(seconds * 1_000_000))


async def test_a_step_forward_ends_leases_and_their_holders_learn_of_it(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, S4, S5: given a step of an hour, then another caller gets the permit. The former holder
    learns it with the next renewal, and its fence is lower.
    """
    limiter, other = [elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url) for _ in range(2)]
    holder = await limiter.acquire()

    step(HOUR)
    successor = await soon(other.acquire())

    await eventually(lambda: holder.lost)
    assert not await holder.arelease()
    assert holder.fence < successor.fence
    assert used(await limiter.astatus()) == [1]
    await successor.arelease()


async def test_a_permit_granted_after_a_step_forward_is_valid_for_one_lease_at_most(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, S2: given a waiter, when the clock steps and a notification grants it, then it holds the
    permit for one lease at most.
    """
    limiter, other = [elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url) for _ in range(2)]
    await has_listened(limiter, other)
    holder = await other.acquire()
    caller = asyncio.create_task(enter(limiter))
    await waiting(other, 1)

    step(5)
    holder.release()
    permit = await soon(caller)

    assert permit.certain_until <= monotonic() + LEASE
    await permit.arelease()


async def test_a_step_forward_grants_one_extra_burst_at_most(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, T6: a step of a hundred hours refills the bucket to its capacity, and no further."""
    limiter = Limiter(name, Rate(5, per=HOUR, capacity=10), store=admin_url)
    assert await limiter.atry_acquire(10)

    step(100 * HOUR)

    assert await limiter.atry_acquire(10)
    assert not await limiter.atry_acquire()


async def test_a_step_back_grants_no_extra_tokens_and_takes_none(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, T6: given a step of two hours back, then used tokens stay used, before and after the
    clock has made up the time.
    """
    limiter = Limiter(name, Rate(10, per=HOUR), store=admin_url)
    assert await limiter.atry_acquire(10)

    step(-2 * HOUR)
    assert not await limiter.atry_acquire()
    assert used(await limiter.astatus()) == [10]

    step(2 * HOUR)
    assert not await limiter.atry_acquire()
    step(HOUR / 10)
    assert await limiter.atry_acquire()
    assert not await limiter.atry_acquire()


@pytest.mark.parametrize(
    "limit", [Rate(10, per=60), Window(10, per=60), Quota(10, per=60)], ids=str
)
async def test_after_a_step_back_a_rate_grants_nothing_until_its_keys_are_deleted(
    name: str, admin: Redis, admin_url: str, step: Step, limit: Limit
) -> None:
    """F43, T6: given a step of an hour back, then a used-up rate grants nothing for an hour, and a
    concurrency limit goes on. The way out of docs/redis.md makes the rate a new one.
    """
    rate, room = [
        Limiter(f"{name}-{kind}", its, store=admin_url)
        for kind, its in (("rate", limit), ("room", Concurrency(1)))
    ]
    assert await rate.atry_acquire(10)

    step(-HOUR)
    assert await (await room.acquire()).arelease()
    step(HOUR - 60)
    assert not await rate.atry_acquire()

    deleted = admin.delete(*admin.scan_iter(f"headgate:{{{rate.name}}}*"))
    assert deleted
    assert await rate.atry_acquire(10)
    assert not await rate.atry_acquire()
    step(60)
    assert await rate.atry_acquire(10)


async def test_after_a_step_back_the_permit_of_a_dead_holder_comes_back_later(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, S4: given a step of an hour back, then the lease of a dead holder ends by the server's
    clock.
    """
    other = elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url)

    async def hold_and_die() -> Permit:
        return await elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url).acquire()

    held = await asyncio.to_thread(asyncio.run, hold_and_die())
    step(-HOUR)
    step(HOUR - LEASE)
    assert not await other.atry_acquire()
    step(2 * LEASE)

    assert await (await soon(other.acquire())).arelease()
    assert not await held.arelease()


async def test_after_a_step_back_each_holder_keeps_its_permit_and_no_other_caller_gets_it(
    name: str, admin_url: str, step: Step
) -> None:
    """F43, S1, S2, L6: the server goes on answering renewals for longer than a lease. A release
    grants the next waiter at once.
    """
    limiter, other = [elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url) for _ in range(2)]
    holder = await limiter.acquire()
    waiter = asyncio.create_task(other.acquire().__aenter__())

    step(-2 * HOUR)
    loop = asyncio.get_running_loop()
    end = loop.time() + 1.2 * LEASE
    await eventually(lambda: loop.time() > end)

    assert not holder.lost
    assert not waiter.done()
    assert await holder.arelease()
    await (await soon(waiter)).arelease()
    assert used(await at_rest(limiter)) == [0]


async def test_the_server_reports_the_lost_lease_to_a_process_that_was_suspended(
    name: str, admin_url: str, step: Step
) -> None:
    """F15, S2, S5: monotonic clocks do not count a machine's sleep, so the server's clock has
    leapt. The next renewal reports the lost permit.
    """
    limiter = Limiter(name, Concurrency(1, lease=LEASE), store=admin_url, on_lost="cancel")
    other = elsewhere(name, Concurrency(1, lease=LEASE), url=admin_url)
    fences = []

    with pytest.raises(LeaseLostError):
        async with limiter.acquire() as permit:
            fences.append(permit.fence)
            step(60)
            successor = await soon(other.acquire())
            fences.append(successor.fence)
            await asyncio.Event().wait()

    assert fences == sorted(fences)
    assert await successor.arelease()


async def test_the_clock_is_read_once_in_each_call(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F44, T6: before Redis 7.2 TIME moves inside of a script, so each call reads it once."""
    limiter = Limiter(
        name, Concurrency(2), Rate(100, per=HOUR, unit="tokens"), store=own_server.url
    )

    async def visit() -> None:
        async with limiter.acquire(tokens=2) as permit:
            permit.settle(tokens=1)

    await asyncio.gather(*(visit() for _ in range(20)))
    await at_rest(limiter)

    ran = own_admin.info("commandstats")
    assert (
        ran["cmdstat_time"]["calls"]
        == ran["cmdstat_fcall"]["calls"] - ran["cmdstat_fcall"]["failed_calls"]
    )
