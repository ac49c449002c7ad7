"""States of a server in which it cannot answer: a typed error or a short wait, and no half-done
call.

F28, F29, F32 to F36, F41, F42, F45, F46: scripts forgotten, restarts, loading, busy, read-only,
full, lost and foreign keys.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
import redis.exceptions
from redis import Redis

from headgate import Concurrency, Limiter, Rate, StoreError
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    Room,
    Slack,
    content_of,
    elsewhere,
    enter,
    eventually,
    once_back,
    visit,
)
from tests.machine import scaled
from tests.servers import Server, as_user, dead_port
from tests.world import at_rest, long, session_of, soon, until, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")

pytestmark = pytest.mark.usefixtures("hurried")


# Scripts and restarts -----------------------------------------------------------------------------


@pytest.fixture(params=["functions", "scripts"])
def place(request: pytest.FixtureRequest, name: str, redis_url: str, admin: Redis) -> Iterator[str]:
    """The URL of the shared server for a user that may call functions, or scripts only, as on a
    server older than functions.
    """
    commands = ["-fcall"] if request.param == "scripts" else []
    admin.acl_setuser(
        name,
        enabled=True,
        passwords=["+canary"],
        categories=["+@all"],
        commands=commands,
        keys=["*"],
        channels=["*"],
        reset=True,
    )
    yield as_user(redis_url, name)
    admin.acl_deluser(name)


def forget(admin: Redis) -> None:
    """The server loses all functions and scripts that were ever loaded there, as after a
    failover.
    """
    admin.function_flush()
    admin.script_flush()


async def test_processes_load_the_scripts_again_when_the_server_forgets_them(
    name: str, place: str, admin: Redis
) -> None:
    """F34, S1, T10: all is flushed again and again while fifty callers work. There is no error, no
    call is lost, and none runs twice.
    """
    limiters = [elsewhere(name, Concurrency(3), TOKENS, url=place) for _ in range(2)]
    room = Room()

    async def caller(limiter: Limiter) -> None:
        for _ in range(4):
            async with limiter.acquire(tokens=1):
                with room:
                    await asyncio.sleep(0)

    callers = [asyncio.create_task(caller(limiter)) for limiter in limiters for _ in range(25)]
    while not all(task.done() for task in callers):
        forget(admin)
        await asyncio.wait(callers, timeout=0.002)
    await asyncio.gather(*callers)

    assert (room.visits, room.most) == (200, 3)
    for limiter in limiters:
        assert used(await at_rest(limiter)) == [0, 200]


async def test_a_thread_gives_the_script_to_a_server_that_forgot_it(
    name: str, place: str, admin: Redis
) -> None:
    """F34 for blocking callers."""
    limiter = Limiter(name, Concurrency(3), TOKENS, store=place)

    def visits() -> None:
        for _ in range(3):
            with limiter.acquire(tokens=1):
                forget(admin)

    await asyncio.to_thread(visits)

    assert used(await at_rest(limiter)) == [0, 3]


async def test_a_holder_learns_of_its_lost_permit_when_the_server_restarts_empty(
    name: str, own_server: Server
) -> None:
    """F32, S4, S5: after kill -9 without persistence the holder learns that its permit is lost, and
    fences go on growing.
    """
    limiter = Limiter(name, Concurrency(1, lease=scaled(1.5)), store=own_server.url)
    holder = await limiter.acquire()

    own_server.kill()
    own_server.start()
    successor = await soon(limiter.acquire())
    await eventually(lambda: holder.lost)

    assert successor.fence > holder.fence
    assert not await holder.arelease()  # and takes nothing from the successor
    assert not successor.lost
    assert await successor.arelease()


async def test_waiters_queue_again_at_a_server_that_restarts_empty(
    name: str, own_server: Server
) -> None:
    """F32, L5: the server does not know their queue any more, and all of them get their turn."""
    limiters = [elsewhere(name, Concurrency(1, lease=3.0), url=own_server.url) for _ in range(2)]
    holder = await limiters[0].acquire()
    visits = [asyncio.create_task(visit(limiter)) for limiter in limiters for _ in range(5)]
    await waiting(limiters[0], 10)

    own_server.kill()
    own_server.start()
    async with asyncio.timeout(long()):
        results = await asyncio.gather(*visits, return_exceptions=True)

    assert {type(result) for result in results} <= {type(None), StoreError}
    for limiter in limiters:
        assert used(await at_rest(limiter)) == [0]
    assert not await holder.arelease()


async def test_holders_and_waiters_keep_their_places_when_a_server_restarts_with_its_data(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F32, S1: leases, the queue and the counts are in the data. The holder still holds, and the
    waiter is next.
    """
    limits = Concurrency(1), TOKENS
    limiter, other = [elsewhere(name, *limits, url=own_server.url) for _ in range(2)]
    holder = await limiter.acquire(tokens=10)
    waiter = asyncio.create_task(enter(other, tokens=1))
    await waiting(limiter, 1)

    own_admin.save()
    own_server.kill()
    own_server.start()

    assert not await once_back(lambda: limiter.atry_acquire(tokens=1))
    assert await holder.arelease()
    assert await (await soon(waiter)).arelease()
    assert used(await at_rest(limiter)) == [0, 11]


async def test_a_lease_that_comes_back_with_old_data_ends_in_time(
    name: str, own_server: Server, own_admin: Redis, slack: Slack
) -> None:
    """F33, L1: the data is from before the release. The permit is free again when that lease ends,
    and no later.
    """
    lease = 0.9
    limiter = Limiter(name, Concurrency(1, lease=lease), store=own_server.url)
    former = await limiter.acquire()
    own_admin.save()
    await former.arelease()

    own_server.kill()
    own_server.start()
    loop = asyncio.get_running_loop()
    start = loop.time()
    permit = await soon(limiter.acquire())

    assert loop.time() - start <= lease + slack()
    assert permit.fence > former.fence
    assert await permit.arelease()


# Refusals -----------------------------------------------------------------------------------------


async def test_a_call_is_sent_again_when_a_loading_server_hangs_up(name: str, proxy: Proxy) -> None:
    """F35, review R10: LOADING says that no call was run, and then the connection ends. The process
    sends the call on the next one.
    """
    limiter = Limiter(name, Concurrency(1), TOKENS, store=proxy.url)
    await (await soon(limiter.acquire())).arelease()

    def loading(reply: bytes) -> bytes:
        proxy.replies.alter = None
        asyncio.get_running_loop().call_later(0.005, proxy.reset)
        return b"-LOADING Redis is loading the dataset in memory\r\n"

    proxy.requests.alter = lambda request: b"PING\r\n" if proxy.replies.alter else request
    proxy.replies.alter = loading
    permit = await soon(limiter.acquire(tokens=1))

    assert used(await limiter.astatus()) == [1, 1]
    assert await permit.arelease()


async def test_a_caller_waits_for_a_busy_server(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F35: another client's endless script makes the server BUSY, and the caller waits until it
    ends.
    """
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    await (await soon(limiter.acquire())).arelease()
    own_admin.config_set("lua-time-limit", 1)
    endless = asyncio.create_task(asyncio.to_thread(_endless, own_server.port))
    await eventually(lambda: _is_busy(own_admin))

    caller = asyncio.create_task(enter(limiter))
    await asyncio.sleep(0.02)
    assert not caller.done()
    own_admin.script_kill()

    assert await (await soon(caller)).arelease()
    await endless


def _endless(port: int) -> None:
    with (
        Redis(port=port, socket_timeout=None) as client,
        contextlib.suppress(redis.exceptions.ResponseError),
    ):
        client.eval("while true do end", 0)


def _is_busy(admin: Redis) -> bool:
    try:
        admin.ping()
    except redis.exceptions.ResponseError as error:
        return "BUSY" in str(error)
    return False


@pytest.mark.parametrize("refusal", ["READONLY", "NOREPLICAS"])
async def test_a_server_that_may_not_write_is_an_error_that_changes_nothing(
    name: str, own_server: Server, own_admin: Redis, refusal: str
) -> None:
    """F35, S7: a server that is demoted to a replica, or without enough replicas, means a
    StoreError. Afterwards all is as it was.
    """
    limiter = Limiter(name, Concurrency(1), TOKENS, store=own_server.url, retry_for=1)
    holder = await soon(limiter.acquire(tokens=1))
    before = content_of(own_admin, name)

    own_admin.config_set("min-replicas-to-write", int(refusal == "NOREPLICAS"))
    if refusal == "READONLY":
        own_admin.replicaof("127.0.0.1", dead_port())  # a primary that is not there
    with pytest.raises(StoreError, match=refusal):
        await soon(limiter.acquire(tokens=1))
    assert content_of(own_admin, name) == before
    own_admin.replicaof("NO", "ONE")
    own_admin.config_set("min-replicas-to-write", 0)

    await once_back(limiter.astatus)
    assert await holder.arelease()
    assert used(await at_rest(limiter)) == [0, 1]


async def test_acquires_that_the_server_refuses_leave_no_work_behind(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S9, F35: given a server that refuses all calls, when a caller tries again and again, then no
    work piles up here.
    """
    limiter = Limiter(name, TOKENS, store=own_server.url)
    await soon(limiter.acquire(tokens=1))
    own_admin.config_set("min-replicas-to-write", 1)
    for _ in range(20):
        with pytest.raises(StoreError, match="NOREPLICAS"):
            await soon(limiter.acquire(tokens=1))
    own_admin.config_set("min-replicas-to-write", 0)

    session = session_of(limiter)
    assert (session.traffic.operations, session.traffic.abandoned) == ([], {})


@pytest.mark.usefixtures("hurried")
async def test_a_release_that_the_server_refused_arrives_later(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """S7, F35: given a release that is awaited and refused, when the server accepts it again, then
    the permit is free.
    """
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    holder = await soon(limiter.acquire())
    own_admin.config_set("min-replicas-to-write", 1)
    with pytest.raises(StoreError, match="NOREPLICAS"):
        await soon(holder.arelease())
    own_admin.config_set("min-replicas-to-write", 0)

    assert used(await once_back(lambda: at_rest(limiter))) == [0]


async def test_a_full_server_still_takes_releases(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F42: with `noeviction` and no memory left an acquire is a StoreError. A release frees its
    permit, even in the same call as an acquire.
    """
    limits = Concurrency(3), TOKENS
    limiter, other = [elsewhere(name, *limits, url=own_server.url) for _ in range(2)]
    first, second, third = [await soon(limiter.acquire(tokens=1)) for _ in range(3)]
    await soon(other.astatus())

    own_admin.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="OOM"):
        await soon(other.acquire(tokens=1))
    assert await soon(first.arelease())
    second.release()
    with pytest.raises(StoreError, match="OOM"):
        await soon(limiter.acquire(tokens=1))
    await until(lambda status: used(status) == [1, 3], limiter)
    own_admin.config_set("maxmemory", 0)

    assert await third.arelease()
    for each in (limiter, other):
        assert used(await at_rest(each)) == [0, 3]


async def test_a_full_server_runs_a_script_that_begins_with_a_release(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F42, S1: given scripts, an acquire by itself is a StoreError. One that travels with a release
    passes, within the limits.
    """
    own_admin.acl_setuser("default", enabled=True, nopass=True, commands=["-fcall"])
    limiter = Limiter(name, Concurrency(2), store=own_server.url)
    first, second = [await soon(limiter.acquire()) for _ in range(2)]
    await soon(first.arelease())

    own_admin.config_set("maxmemory", 1)
    with pytest.raises(StoreError, match="OOM"):
        await soon(limiter.acquire())
    await soon(limiter.astatus())  # a grant that the refused one may have left is taken back
    with pytest.raises(StoreError, match="OOM"):
        await soon(limiter.acquire())
    await soon(limiter.astatus())
    second.release()
    third = await soon(limiter.acquire())
    own_admin.config_set("maxmemory", 0)

    assert used(await soon(limiter.astatus())) == [1]
    assert await third.arelease()
    assert used(await at_rest(limiter)) == [0]


async def test_a_server_with_too_many_clients_is_an_error(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F28: the error is typed, and ends as soon as there is room."""
    own_admin.config_set("maxclients", len(own_admin.client_list()))
    limiter = Limiter(name, Concurrency(1), store=own_server.url)
    with pytest.raises(StoreError):
        await soon(limiter.acquire())

    own_admin.config_set("maxclients", 100)

    assert await (await once_back(limiter.acquire)).arelease()


async def test_credentials_that_are_revoked_are_an_error_without_secrets(
    name: str, own_server: Server, own_admin: Redis
) -> None:
    """F29: the user is switched off and its connections end. The error names no password, and the
    user may come back.
    """
    own_admin.acl_setuser(
        "guest",
        enabled=True,
        passwords=["+canary"],
        categories=["+@all"],
        keys=["*"],
        channels=["*"],
    )
    limiter = Limiter(name, Concurrency(1), store=as_user(own_server.url, "guest"))
    await (await soon(limiter.acquire())).arelease()

    own_admin.acl_setuser("guest", enabled=False)
    own_admin.client_kill_filter(_type="normal", skipme=True)
    with pytest.raises(StoreError) as refused:
        await soon(limiter.acquire())
    assert "canary" not in str(refused.value)
    own_admin.acl_setuser("guest", enabled=True)

    assert await (await once_back(limiter.acquire)).arelease()
    await at_rest(limiter)


@pytest.mark.parametrize(
    "command", ["hmget", "hset", "zadd", "zrem", "zcard", "zcount", "pexpire", "time"]
)
async def test_no_permit_is_lost_when_a_command_is_forbidden_for_a_while(
    name: str, redis_url: str, admin: Redis, command: str
) -> None:
    """F35, fact 10, S1, S7: the script breaks in the middle, at one of its commands. Once the
    command may run again, all is well.
    """
    admin.acl_setuser(
        name,
        enabled=True,
        passwords=["+canary"],
        categories=["+@all"],
        keys=["*"],
        channels=["*"],
        reset=True,
    )
    limits = Concurrency(3), TOKENS
    user = as_user(redis_url, name)
    limiter, holding = Limiter(name, *limits, store=user), elsewhere(name, *limits, url=redis_url)
    holders = [await holding.acquire() for _ in range(2)]
    mine = await limiter.acquire()

    admin.acl_setuser(name, enabled=True, commands=[f"-{command}"])
    mine.release()
    for _ in range(3):
        with contextlib.suppress(StoreError):
            (await soon(limiter.acquire(tokens=1))).release()
    admin.acl_setuser(name, enabled=True, commands=[f"+{command}"])

    await until(lambda status: status.limits[0].used == 2 and status.waiting == 0, holding)
    permit = await once_back(limiter.acquire)
    assert not await limiter.atry_acquire()
    for held in (permit, *holders):
        assert await held.arelease()
    await at_rest(holding)
    admin.acl_deluser(name)


# Keys that are lost or foreign --------------------------------------------------------------------


@pytest.mark.parametrize("part", ["", ":who", "*", "state"], ids=["hash", "who", "all", "state"])
async def test_each_waiter_gets_its_turn_though_a_key_is_lost(
    name: str, redis_url: str, admin: Redis, part: str
) -> None:
    """F41, F45, L5, S7, review R12: after DEL or eviction of any key waiters go on, and no capacity
    is lost for good.
    """
    limits = Concurrency(1, lease=3.0), TOKENS
    limiter, other = [elsewhere(name, *limits, url=redis_url) for _ in range(2)]
    holder = await limiter.acquire(tokens=1)
    visits = [asyncio.create_task(visit(limiter)) for limiter in (limiter, other, other, limiter)]
    await waiting(limiter, 4)

    key = f"headgate:{{{name}}}"
    if part == "state":  # the records of the sessions stay
        assert admin.hdel(key, "state")
    else:
        assert admin.delete(*(admin.keys(key + "*") if part == "*" else [key + part]))
    await asyncio.sleep(0.01)
    holder.release()

    async with asyncio.timeout(long()):
        await asyncio.gather(*visits)
    for one in (limiter, other):
        await until(lambda status: status.waiting == 0 and status.limits[0].used == 0, one)
    assert await (await soon(limiter.acquire())).arelease()


async def test_a_holder_whose_key_is_lost_learns_of_it(
    name: str, redis_url: str, admin: Redis, slack: Slack
) -> None:
    """F45, S4: FLUSHALL takes the permit away. The holder knows at its next renewal, a third of its
    lease later at most.
    """
    lease = 3.0
    limiter = Limiter(name, Concurrency(1, lease=lease), store=redis_url)
    holder = await limiter.acquire()
    loop = asyncio.get_running_loop()

    admin.delete(*admin.keys(f"headgate:{{{name}}}*"))
    start = loop.time()
    await eventually(lambda: holder.lost)

    assert loop.time() - start <= lease / 3 + slack()
    assert not await holder.arelease()


@pytest.mark.parametrize("part", ["", ":who"], ids=["hash", "who"])
async def test_a_foreign_key_of_our_name_is_an_error_and_is_left_alone(
    name: str, redis_url: str, admin: Redis, part: str
) -> None:
    """F46, fact 10: WRONGTYPE is a StoreError. The script writes nothing, the foreign key stays,
    and without it all is well.
    """
    former, limiter = [elsewhere(name, Concurrency(1), TOKENS, url=redis_url) for _ in range(2)]
    await (await soon(former.acquire(tokens=1))).arelease()
    key = f"headgate:{{{name}}}{part}"
    admin.delete(key)
    admin.set(key, "somebody else's")
    before = content_of(admin, name)

    with pytest.raises(StoreError, match="WRONGTYPE"):
        await soon(limiter.acquire(tokens=1))
    assert content_of(admin, name) == before

    admin.delete(key)
    assert await (await soon(limiter.acquire(tokens=1))).arelease()
    assert used(await at_rest(limiter))[0] == 0
