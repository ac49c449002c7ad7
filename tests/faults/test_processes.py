"""Processes that are killed, stopped or blocked, and processes that end: their permits and their
places in the queue come back.

F12, F13, F14, F54. Every process here is a real one; see programs/puppet.py.
"""

from __future__ import annotations

import asyncio
import gc
import textwrap
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Permit
from tests.faults.haste import HEARTBEAT, SESSION_LIFE
from tests.faults.scene import Puppet, Slack, commands_of, elsewhere, enter, eventually, holders_of
from tests.machine import scaled
from tests.processes import finished, running
from tests.world import LONG, at_rest, long, soon, until, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
LEASE = scaled(3.0)  # a living process keeps its permit, though the machine stalls

Puppets = Callable[..., Puppet]

pytestmark = pytest.mark.usefixtures("hurried")


async def took(work: asyncio.Task[Permit]) -> tuple[Permit, float]:
    start = time.monotonic()
    permit = await soon(work)
    return permit, time.monotonic() - start


# Killed -------------------------------------------------------------------------------------------


async def test_the_permits_of_a_killed_process_are_back_within_a_lease(
    name: str, redis_url: str, puppet: Puppets, slack: Slack
) -> None:
    """L1, S7, F14: given a process with two held permits and one waiter, when kill -9 ends it, then
    callers of other processes get all three.
    """
    limit = Concurrency(2, lease=LEASE)
    limiter, other = Limiter(name, limit, store=redis_url), puppet(limit)
    for caller_name in ("a", "b"):
        await other.hears(f"acquire {caller_name}", until=f"{caller_name} asks")
        await other.says(f"{caller_name} inside")
    await other.hears("acquire c", until="c asks")
    alive = [asyncio.create_task(enter(limiter)) for _ in range(3)]
    await waiting(limiter, 4)

    other.process.kill()
    start = time.monotonic()
    first, second = [await soon(task) for task in alive[:2]]

    # the dead waiter is granted a permit, too, unless its session was found dead before
    assert time.monotonic() - start <= 2 * LEASE + slack()
    assert await first.arelease()
    assert await second.arelease()
    assert await (await soon(alive[2])).arelease()
    assert used(await at_rest(limiter)) == [0]


@pytest.mark.proof
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "last"])
async def test_a_killed_waiter_is_passed_over(
    name: str, redis_url: str, puppet: Puppets, place: int, slack: Slack
) -> None:
    """L3, S6, F54: wherever it stood, the waiters behind it go on in order, once the process has
    been silent for long.
    """
    limit = Concurrency(1, lease=60.0)
    limiter, other, order = Limiter(name, limit, store=redis_url), puppet(limit), []
    holder = await limiter.acquire()

    async def caller(number: int) -> None:
        async with limiter:
            order.append(number)

    visits = []
    for number in range(3):
        if number == place:
            await other.hears("acquire dead", until="dead asks")
        else:
            visits.append(asyncio.create_task(caller(number)))
        await waiting(limiter, number + 1)

    other.process.kill()
    start = time.monotonic()
    await waiting(limiter, 2)
    assert (
        time.monotonic() - start <= (SESSION_LIFE if place == 0 else 2 * SESSION_LIFE) + slack()
    )  # behind the head it delays no caller
    holder.release()
    async with asyncio.timeout(long()):
        await asyncio.gather(*visits)

    assert order == [number for number in range(3) if number != place]
    assert used(await at_rest(limiter)) == [0]


async def test_a_permit_that_was_granted_to_a_dead_process_is_back_within_a_lease(
    name: str, redis_url: str, puppet: Puppets, slack: Slack
) -> None:
    """L1, L3, F54: the server does not know yet that the head of the queue is dead, and grants it.
    The next waiter waits a lease for that permit.
    """
    lease = 2.5  # seconds: the holder's outlasts a stall
    limit = Concurrency(1, lease=lease)
    limiter, other = Limiter(name, limit, store=redis_url), puppet(limit)
    holder = await limiter.acquire()
    await other.hears("acquire dead", until="dead asks")
    next_one = asyncio.create_task(enter(limiter))
    await waiting(limiter, 2)

    other.process.kill()
    await holder.arelease()
    permit, seconds = await took(next_one)

    assert seconds <= lease + HEARTBEAT + slack()
    assert await permit.arelease()


@pytest.mark.proof
async def test_the_capacity_holds_when_processes_die_at_work(
    name: str, redis_url: str, admin_url: str, admin: Redis, puppet: Puppets
) -> None:
    """S1, S7, L5, F14: three processes are at work, and two of them are killed in the midst of it.
    The last one's work gets done.
    """
    capacity, turns = 3, 20
    limit = Concurrency(capacity, lease=scaled(1.5))
    counter = f"{name}-inside"  # callers inside, by living process
    work = ("turns", redis_url, name, repr(limit), admin_url, counter)
    with (
        running(*work, "100000") as one,
        running(*work, "100000") as two,
        running(*work, turns) as last,
    ):
        pids = {process: await process.said() for process in (one, two, last)}
        for process in (one, two):
            await eventually(partial(has_visited, admin, counter, pids[process], 10))
            process.kill()
            admin.hdel(counter, pids[process])
        said = await last.said()

    assert said == f"visits {turns * 10}"
    assert int(admin.get(f"{counter}-most") or 0) <= capacity
    limiter = Limiter(name, limit, store=redis_url)
    assert used(
        await until(lambda status: used(status) == [0] and status.waiting == 0, limiter)
    ) == [0]
    admin.delete(counter, f"{counter}-visits", f"{counter}-most")


async def test_the_leases_of_a_thousand_dead_holders_end_a_hundred_at_a_time(
    name: str, redis_url: str, admin: Redis, slack: Slack
) -> None:
    """L1, S9, F55: all leases end at once. A caller that wants all their permits gets them, by
    calls of bounded work.
    """
    limit = Concurrency(1000, lease=LEASE, unit="w")
    limiter = Limiter(name, limit, store=redis_url)
    many = """
    import asyncio, sys
    from headgate import Concurrency, Limiter

    async def main():
        limits = Concurrency(1000, lease=float(sys.argv[3]), unit="w")
        limiter = Limiter(sys.argv[2], limits, store=sys.argv[1])
        acquires = [limiter.acquire(w=1) for _ in range(1000)]
        permits = await asyncio.gather(*(acquire.__aenter__() for acquire in acquires))
        print("holds", len(permits), flush=True)
        await asyncio.sleep(3600)

    asyncio.run(main())
    """
    with running(textwrap.dedent(many), redis_url, name, LEASE) as dead:
        assert await dead.said() == "holds 1000"
        waiter = asyncio.create_task(enter(limiter, w=1000))
        await waiting(limiter, 1)
        dead.kill()

    admin.config_resetstat()
    permit, seconds = await took(waiter)

    assert seconds <= LEASE + slack()
    commands = commands_of(admin)
    assert commands["zrem"] <= 101 * commands["fcall"], commands
    assert await permit.arelease()


def has_visited(admin: Redis, counter: str, pid: str, times: int) -> bool:
    return int(admin.hget(f"{counter}-visits", pid) or 0) >= times


# Stopped and blocked ------------------------------------------------------------------------------


async def test_a_process_that_was_stopped_past_its_lease_knows_that_its_permit_is_lost(
    name: str, redis_url: str, puppet: Puppets, slack: Slack
) -> None:
    """S2, S4, S5, F13: kill -STOP, another caller takes over, kill -CONT: the first finds its
    permit lost and its fence lower.
    """
    limit = Concurrency(1, lease=LEASE)
    limiter, other = Limiter(name, limit, store=redis_url), puppet(limit)
    await other.hears("acquire a", until="a asks")
    fence = int(await other.says("a inside"))

    other.stop()
    permit, seconds = await took(asyncio.create_task(enter(limiter)))
    other.resume()

    assert seconds <= LEASE + slack()
    assert await other.hears("lost a", until="a lost") == "True"
    assert permit.fence > fence
    assert await other.hears("release a", until="a left") == "False"
    assert not permit.lost
    assert await permit.arelease()


async def test_a_process_that_was_stopped_while_it_waited_queues_again(
    name: str, redis_url: str, puppet: Puppets
) -> None:
    """L3, L5, F13: the process lost its place by its silence. It asks again when it goes on, and
    gets its turn.
    """
    limit = Concurrency(1, lease=60.0)
    limiter, other = Limiter(name, limit, store=redis_url), puppet(limit)
    holder = await limiter.acquire()
    await other.hears("acquire a", until="a asks")
    other.stop()
    behind = asyncio.create_task(enter(limiter))
    await waiting(limiter, 2)
    await waiting(limiter, 1)  # the one that stood before it is gone

    holder.release()
    permit = await soon(behind)
    other.resume()
    await waiting(limiter, 1)
    await permit.arelease()

    await other.says("a inside")
    assert await other.hears("release a", until="a left") == "True"


async def test_a_loop_that_was_blocked_past_the_lease_knows_at_once_that_its_permit_is_lost(
    name: str, redis_url: str
) -> None:
    """S2, S4, F12: nothing has run in this loop, no renewal either. The first look at the permit
    says that it is lost.
    """
    lease = scaled(0.3)
    limit = Concurrency(1, lease=lease)
    limiter, other = Limiter(name, limit, store=redis_url), elsewhere(name, limit, url=redis_url)
    permit = await limiter.acquire()
    while permit.lost:  # the machine itself stood still for a whole lease
        permit = await limiter.acquire()

    time.sleep(2 * lease)  # noqa: ASYNC251 - that is the fault
    assert permit.lost
    successor = await soon(other.acquire())

    for _ in range(3):  # the heartbeat does not catch up
        await limiter.astatus()
        assert permit.lost
    assert not await permit.arelease()
    assert successor.fence > permit.fence
    await successor.arelease()


async def test_a_process_with_a_blocked_loop_loses_its_permit(
    name: str, redis_url: str, puppet: Puppets
) -> None:
    """S2, F12 seen from outside: another caller gets its permit. The process reports the loss
    itself, and then works again.
    """
    limit = Concurrency(1, lease=LEASE)
    limiter, other = Limiter(name, limit, store=redis_url), puppet(limit)
    await other.hears("acquire a", until="a asks")
    await other.says("a inside")

    other.process.tell(f"block {2 * LEASE}")
    permit = await soon(limiter.acquire())
    await other.says("blocked")

    assert await other.hears("lost a", until="a lost") == "True"
    assert await other.hears("release a", until="a left") == "False"
    await other.hears("acquire b", until="b asks")
    assert await permit.arelease()
    await other.says("b inside")
    assert await other.hears("release b", until="b left") == "True"


# Ended --------------------------------------------------------------------------------------------

HEAD = """
import asyncio, sys
from headgate import Concurrency, Limiter
limiter = Limiter(sys.argv[2], Concurrency(3), store=sys.argv[1])

async def once():
    async with limiter:
        pass
"""


@pytest.mark.parametrize(
    "before",
    ["pass", "asyncio.run(once())", "once_in_a_thread()"],
    ids=["nothing", "asyncio", "thread"],
)
def test_a_script_that_ends_after_a_with_block_has_released(
    name: str, redis_url: str, admin: Redis, before: str
) -> None:
    """L6, review R11: the last line of the script posts the release, and it arrives."""
    thread = "def once_in_a_thread():\n    with limiter:\n        pass\n"

    finished(f"{HEAD}\n{thread}\n{before}\nwith limiter:\n    pass\n", redis_url, name)

    assert holders_of(admin, name) == 0


def test_a_script_that_ends_while_it_holds_a_permit_ends(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L1, review R6: the interpreter ends with a permit in a global name. It ends at once, and
    leaves the permit to its lease.
    """
    start = time.monotonic()
    with running(
        f"{HEAD}\npermit = limiter.acquire_sync()\nprint('last line', flush=True)", redis_url, name
    ) as script:
        assert script.lines() == ["last line"]

    assert time.monotonic() - start <= LONG
    assert holders_of(admin, name) == 1


def test_a_task_that_acquires_when_its_loop_ends_is_granted(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6, F7, review f1: `asyncio.run` cancels the task, its `finally` enters the limiter, and the
    script ends without output on stderr.
    """
    late = """
    async def late(asks):
        try:
            await asyncio.sleep(3600)
        finally:
            await asks()
            print("in")

    async def main():
        await once()
        task = asyncio.create_task(late(once))
        await asyncio.sleep(0)

    asyncio.run(main())
    """

    assert finished(HEAD + textwrap.dedent(late), redis_url, name) == "in\n"

    assert holders_of(admin, name) == 0


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # the warning that this test wants
async def test_a_permit_that_is_dropped_where_warnings_are_errors_goes_back(
    name: str, redis_url: str
) -> None:
    """S7, review f6: the ResourceWarning is raised, and the permit still comes back."""
    limiter = Limiter(name, Concurrency(1), store=redis_url)
    permit = await limiter.acquire()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del permit
        gc.collect()

    await at_rest(limiter)


def test_a_release_after_its_loop_was_closed_goes_by_the_portal(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S7, review f2: no `asyncio.run` ended its tasks. A later release does not raise, and
    arrives.
    """
    closed = """
    loop = asyncio.new_event_loop()
    permit = loop.run_until_complete(limiter.acquire().__aenter__())
    loop.close()
    permit.release()
    print("released", flush=True)
    """

    with running(HEAD + textwrap.dedent(closed), redis_url, name) as script:
        assert script.lines() == ["released"]

    assert holders_of(admin, name) == 0


async def test_loops_that_have_ended_leave_nothing_in_the_process(
    name: str, redis_url: str, admin: Redis
) -> None:
    """L6, S9, review f3: fifty loops run one after another, each with a connection of its own. The
    process keeps none of them.
    """
    limiter = Limiter(name, Concurrency(2), store=redis_url)

    def loops() -> weakref.WeakSet[asyncio.AbstractEventLoop]:
        seen: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()

        async def once() -> None:
            seen.add(asyncio.get_running_loop())
            async with limiter:
                pass

        for _ in range(50):
            asyncio.run(once())
        return seen

    connections = len(admin.client_list())
    seen = await asyncio.to_thread(loops)
    gc.collect()

    assert len(seen) <= 2
    await eventually(lambda: len(admin.client_list()) <= connections + 1)
    assert used(await limiter.astatus()) == [0]
