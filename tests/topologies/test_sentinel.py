"""A primary that is lost, and another one that Sentinel puts in its place: holders keep their
permits, and waiters keep their places.

F37, F38. Writes that replication did not carry over are lost, as docs/redis.md says: then there is
one capacity and one burst more, and no holder that relies on its permit for long.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from headgate import Concurrency, Limiter, Rate, StoreError
from tests.faults import haste
from tests.faults.scene import Puppet, Room, Slack, enter, eventually, once_back
from tests.rights import PASSWORD, USER
from tests.sentinels import GUEST, GUESTS_PASSWORD, Copy, Sentinels, Watcher
from tests.servers import connections_of
from tests.world import at_rest, long, soon, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
PROMOTION = 10.0  # seconds for the Sentinels to agree: about two
# Seconds from then until all goes on: back-off is 1 at most, a process that missed a message asks
# after 3, and the machine may be busy.
BOUND = 6.0

Breaks = Callable[[Sentinels], Copy]
Puppets = Callable[..., Puppet]


def apart(url: str, number: int) -> str:
    """The same place for a limiter as of another process."""
    return f"{url}&socket_connect_timeout={5 + number}"


async def failed_over(sentinels: Sentinels, breaks: Breaks) -> Copy:
    """The former primary, as soon as there is another one."""
    former = breaks(sentinels)
    await eventually(lambda: sentinels.promoted(former), PROMOTION)
    return former


async def test_holders_and_waiters_survive_the_death_of_the_primary(
    name: str, own_sentinels: Sentinels
) -> None:
    """S1, S5, S6, S7, L5: given two holders, eight waiters in two processes and a rate, when the
    primary is killed, then all keep permits, order and counts. The rate is never exceeded. F37.
    """
    limits = Concurrency(2), Rate(100, per=AGES, unit="tokens")
    limiters = [
        Limiter(name, *limits, store=apart(own_sentinels.user_url, number)) for number in range(2)
    ]
    rate = Limiter(f"{name}-rate", Rate(50, per=1, capacity=5), store=own_sentinels.user_url)
    holders = [await limiter.acquire(tokens=1) for limiter in limiters]
    order: dict[int, int] = {}  # by fence
    room, passed = Room(), 0

    async def visit(number: int) -> None:
        async with limiters[number % 2].acquire(tokens=1) as permit:
            with room:
                order[permit.fence] = number
                await asyncio.sleep(0.001)

    async def pass_by() -> None:
        nonlocal passed
        async with rate:
            passed += 1

    visits = []
    for number in range(8):
        visits.append(asyncio.create_task(visit(number)))
        await waiting(limiters[0], number + 1)
    start = time.monotonic()
    passers = [asyncio.create_task(pass_by()) for _ in range(200)]
    await eventually(lambda: passed > 5)
    own_sentinels.copy()

    await failed_over(own_sentinels, Sentinels.kill_primary)
    assert not order
    assert not any(holder.lost for holder in holders)
    assert [await soon(holder.arelease()) for holder in holders] == [True, True]
    async with asyncio.timeout(BOUND):
        await asyncio.gather(*visits)
    async with asyncio.timeout(2 * long()):
        await asyncio.gather(*passers)

    assert [order[fence] for fence in sorted(order)] == list(range(8))
    assert min(order) > max(holder.fence for holder in holders)
    assert room.most == 2
    assert used(await at_rest(limiters[0])) == [0, 10]
    assert time.monotonic() - start >= (200 - 5) / 50


async def test_a_process_follows_a_planned_failover_at_once(
    name: str, own_sentinels: Sentinels
) -> None:
    """F38, S1: given a former primary that answers for ten seconds more, when another one is
    promoted, then no process asks the former one. The Sentinels reach it only then. A release there
    would never arrive at the new one.
    """
    limiter, newcomer = [
        Limiter(name, Concurrency(1), store=apart(own_sentinels.user_url, number))
        for number in range(2)
    ]
    holder = await limiter.acquire()

    former = await failed_over(own_sentinels, Sentinels.fail_over)
    waiter = asyncio.create_task(enter(newcomer))
    await waiting(newcomer, 1)
    await eventually(lambda: connections_of(former.admin, "normal") == 0, BOUND)

    assert await soon(holder.arelease())
    assert await (await soon(waiter)).arelease()
    await at_rest(limiter)


@pytest.fixture
def sentinels_with_spare() -> Iterator[Sentinels]:
    """With a replica that never becomes the primary, and has to follow the one that does."""
    place = Sentinels(spares=1).start()
    yield place
    place.stop()


@pytest.mark.proof("needs Sentinels")
async def test_a_process_leaves_the_former_primary_before_all_replicas_follow_the_new_one(
    name: str, sentinels_with_spare: Sentinels
) -> None:
    """F38, S1: given a process that follows the leader of a planned failover, when that Sentinel
    names another primary, then the process leaves the former one. A replica stands still meanwhile.

    The leader publishes +switch-master only when each replica has followed, minutes later perhaps.
    """
    limiter = Limiter(
        name, Concurrency(1), store=sentinels_with_spare.url_by(sentinels_with_spare.watchers[0])
    )
    holder = await limiter.acquire()
    sentinels_with_spare.copy()
    sentinels_with_spare.copies[-1].pause()

    former = await failed_over(sentinels_with_spare, Sentinels.fail_over)
    await eventually(lambda: connections_of(former.admin, "normal") == 0, BOUND)

    assert await soon(holder.arelease())
    await at_rest(limiter)


async def test_a_permit_that_was_not_replicated_is_lost_and_its_holder_learns_it(
    name: str, own_sentinels: Sentinels, slack: Slack
) -> None:
    """F37, S4, S5: given a permit and tokens that the replica has not received, when the primary is
    killed, then one capacity and one burst more are granted. The holder knows within a third of its
    lease, and its release frees no permit of others.
    """
    limits = Concurrency(1, lease=3.0), Rate(5, per=AGES, unit="tokens")
    limiter, other = [
        Limiter(name, *limits, store=apart(own_sentinels.user_url, number)) for number in range(2)
    ]
    (await limiter.acquire(tokens=1)).release()
    await at_rest(limiter)
    own_sentinels.stop_copying()
    holder = await limiter.acquire(tokens=3)

    await failed_over(own_sentinels, Sentinels.kill_primary)
    successor = await soon(other.acquire(tokens=4))
    promoted = time.monotonic()
    assert not await other.atry_acquire(tokens=1)
    await eventually(lambda: holder.lost)

    assert time.monotonic() - promoted <= 1.0 + slack()  # a third of the lease
    assert successor.fence > holder.fence
    assert not await holder.arelease()
    assert not successor.lost
    assert await successor.arelease()
    assert used(await at_rest(limiter)) == [0, 5]


async def test_a_permit_with_a_release_that_was_not_replicated_is_free_when_its_lease_ends(
    name: str, own_sentinels: Sentinels
) -> None:
    """F37, L1: given a process that released and ended, when a replica without that release becomes
    the primary, then the permit is free when its lease ends.
    """
    lease = 12.0  # seconds: longer than a failover on a busy machine
    limit = Concurrency(1, lease=lease)

    async def hold_and_give_back() -> None:
        holder = await Limiter(name, limit, store=apart(own_sentinels.user_url, 0)).acquire()
        own_sentinels.stop_copying()
        assert await holder.arelease()

    await asyncio.to_thread(asyncio.run, hold_and_give_back())
    await failed_over(own_sentinels, Sentinels.kill_primary)
    newcomer = Limiter(name, limit, store=apart(own_sentinels.user_url, 1))

    assert not await soon(newcomer.atry_acquire())
    async with asyncio.timeout(lease + long()):
        assert await (await newcomer.acquire()).arelease()


async def test_a_thread_goes_on_after_a_failover(name: str, own_sentinels: Sentinels) -> None:
    """S1, S7: given a thread that enters and leaves by its own connection, when the primary goes,
    then the thread follows, with the name that it knows and with new ones.
    """
    limiter, *new = [
        Limiter(its, Concurrency(1), store=own_sentinels.user_url)
        for its in (name, *(f"{name}-{number}" for number in range(4)))
    ]
    room = Room()

    def visit(limiter: Limiter) -> None:
        with limiter, room:
            pass

    for each in (limiter, limiter, new[0]):
        await asyncio.to_thread(visit, each)
    await failed_over(own_sentinels, Sentinels.fail_over)
    for each in (new[1], limiter, limiter, new[2], new[3]):
        await soon(asyncio.to_thread(visit, each))

    assert (room.visits, room.most) == (8, 1)
    for each in (limiter, *new[1:]):
        await at_rest(each)


def unaware(former: Copy) -> Watcher:
    """A Sentinel that takes `former` for the primary. The others correct it sooner or later, every
    two seconds.
    """
    while True:
        behind = Watcher(former)
        behind.start()
        if behind.primary_port() == former.port:
            return behind
        behind.stop()


async def test_a_process_asks_the_next_sentinel_when_one_names_a_replica(
    name: str, own_sentinels: Sentinels
) -> None:
    """F35, F38: given a Sentinel that does not know of it and still names the former primary, then
    the process asks the next one.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    holder = await limiter.acquire()
    former = await failed_over(own_sentinels, Sentinels.fail_over)
    former.admin.replicaof(
        "127.0.0.1", own_sentinels.primary.port
    )  # as the Sentinels will do, some seconds later
    behind = unaware(former)
    try:
        other = Limiter(
            name, Concurrency(1), store=own_sentinels.url_by(behind, *own_sentinels.watchers)
        )
        assert not await soon(other.atry_acquire())
        assert await soon(holder.arelease())
        assert await (await soon(other.acquire())).arelease()
    finally:
        behind.stop()
    await at_rest(limiter)


async def test_two_processes_share_a_limiter_through_a_failover(
    name: str, own_sentinels: Sentinels, puppet: Puppets
) -> None:
    """S1, S6, S7: given a process that holds and three tasks that wait, when the primary is killed,
    then all get the permit in turn.
    """
    limit = Concurrency(1)
    one, two = [puppet(own_sentinels.user_url, limit) for _ in range(2)]
    watching = Limiter(name, limit, store=own_sentinels.user_url)
    await one.hears("acquire a", until="a asks")
    await one.says("a inside")
    for process, caller in ((two, "b"), (one, "c"), (two, "d")):
        await process.hears(f"acquire {caller}", until=f"{caller} asks")
    await waiting(watching, 3)
    own_sentinels.copy()

    await failed_over(own_sentinels, Sentinels.kill_primary)
    assert await one.hears("lost a", until="a lost") == "False"
    for (process, caller), (next_process, its) in (
        ((one, "a"), (two, "b")),
        ((two, "b"), (one, "c")),
        ((one, "c"), (two, "d")),
    ):
        if next_process is process:
            await process.hears(f"release {caller}", until=f"{caller} left True")
        else:
            process.process.tell(f"release {caller}")
            await process.says(f"{caller} left True")
        await next_process.says(f"{its} inside")
    await two.hears("release d", until="d left True")

    await at_rest(watching)


async def test_a_process_asks_the_next_sentinel_when_the_first_is_gone(
    name: str, sentinels: Sentinels
) -> None:
    """Given a URL whose first Sentinel is gone, then the process asks the second one."""
    url = sentinels.url_at(
        "127.0.0.1:1", *(f"127.0.0.1:{watcher.port}" for watcher in sentinels.watchers)
    )
    limiter = Limiter(name, Concurrency(1), store=url)

    assert await (await soon(limiter.acquire())).arelease()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (
            lambda sentinels: sentinels.url_at("127.0.0.1:1", "127.0.0.1:2"),
            "127.0.0.1:1, 127.0.0.1:2",
        ),
        (lambda sentinels: sentinels.user_url.replace("/main/", "/nobody/"), "nobody"),
        (
            lambda sentinels: sentinels.user_url.replace("the-sentinels-password", "wrong-canary"),
            "main by Sentinel",
        ),
        (
            lambda sentinels: sentinels.user_url.replace("the-tests-password", "wrong-canary"),
            "main by Sentinel",
        ),
    ],
    ids=["no Sentinel", "no such service", "the Sentinels' password", "the servers' password"],
)
async def test_the_error_for_a_service_that_cannot_be_found_says_where_it_was_looked_for(
    name: str, sentinels: Sentinels, wrong: Callable[[Sentinels], str], word: str
) -> None:
    """Given no Sentinel to ask, or none that answers, then a StoreError says at once where the
    process looked, and shows no password.
    """
    limiter = Limiter(name, Concurrency(1), store=wrong(sentinels))

    with pytest.raises(StoreError, match=word) as told:
        await soon(limiter.acquire())

    assert str(told.value).endswith("accepts the login.")
    assert (
        "canary"
        not in f"{told.value!r} {told.value.__cause__!r} {told.value.__context__!r} {limiter!r}"
    )


@pytest.mark.parametrize("database", [0, 1])
@pytest.mark.parametrize(
    "user",
    ["", f"{GUEST}:{GUESTS_PASSWORD}@", f":{PASSWORD}@", f"{USER}:{PASSWORD}@"],
    ids=["no user", "its user", "a password of the servers", "a user of the servers"],
)
async def test_the_error_for_the_url_of_a_sentinel_names_the_url_of_sentinels(
    name: str, sentinels: Sentinels, user: str, database: int
) -> None:
    """Given a redis:// URL that leads to a Sentinel, when a task or a thread makes any call, then
    the StoreError names a redis+sentinel:// URL.
    """
    url = f"redis://{user}127.0.0.1:{sentinels.watchers[0].port}/{database}"
    limiter = Limiter(name, Concurrency(1), store=url)
    by_thread = partial(asyncio.to_thread, limiter.acquire_sync)

    for ask in (limiter.acquire, limiter.atry_acquire, limiter.astatus, by_thread, by_thread):
        with pytest.raises(StoreError, match=r"is a Sentinel.* redis\+sentinel://") as told:
            await soon(ask())
        assert "password" not in str(told.value)


async def test_a_process_that_starts_without_a_primary_finds_the_next_one(
    name: str, own_sentinels: Sentinels
) -> None:
    """L5: given a process that begins while the primary is dead, when another is promoted, then the
    process finds it.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    former = own_sentinels.kill_primary()
    with pytest.raises(StoreError):
        await soon(limiter.acquire())

    await eventually(lambda: own_sentinels.promoted(former), PROMOTION)

    permit = await once_back(limiter.acquire)
    assert await permit.arelease()


async def test_a_process_that_starts_when_no_sentinel_names_a_primary_finds_the_first(
    name: str, own_sentinels: Sentinels
) -> None:
    """L5: given Sentinels that all know of no primary, then a StoreError says so at once. When
    there is one, the process finds it.
    """
    primary = own_sentinels.primary
    own_sentinels.forget()
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)

    for ask in (
        limiter.acquire,
        limiter.atry_acquire,
        partial(asyncio.to_thread, limiter.acquire_sync),
    ):
        with pytest.raises(
            StoreError, match=r"main by Sentinel at .* \(no Sentinel knows a service named 'main'\)"
        ):
            await soon(
                ask()
            )  # it does not retry, which would take longer: the service may be misspelt
    own_sentinels.watch(primary)

    assert await (await soon(limiter.acquire())).arelease()
    (await soon(asyncio.to_thread(limiter.acquire_sync))).release()
    await at_rest(limiter)


async def test_waiters_have_an_error_when_no_server_can_be_promoted(
    name: str, own_sentinels: Sentinels, hurried: None
) -> None:
    """L5: given servers that all are gone, when the process looks for them in vain, then holders
    and waiters learn it in time.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    for server in (*own_sentinels.watchers, *own_sentinels.copies):
        server.kill()

    with pytest.raises(StoreError):
        await soon(waiter)
    holder.release()  # no server receives it


async def test_waiters_have_an_error_in_time_when_all_servers_are_silent(
    name: str, own_sentinels: Sentinels, hurried: None, slack: Slack
) -> None:
    """L5, F36: given Sentinels and servers that all stand still, then waiters have an error after
    one outage, however many servers there are. A connection may take as long as an outage.
    """
    limiter = Limiter(
        name,
        Concurrency(1),
        store=f"{own_sentinels.user_url}&socket_connect_timeout={haste.OUTAGE}",
    )
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    start = time.monotonic()
    for server in (*own_sentinels.watchers, *own_sentinels.copies):
        server.pause()
    with pytest.raises(StoreError):
        await soon(waiter)

    assert time.monotonic() - start <= haste.HEARTBEAT + haste.OUTAGE + slack()
    holder.release()  # no server receives it


async def test_a_silent_sentinel_delays_no_caller(name: str, own_sentinels: Sentinels) -> None:
    """L5, F22: given Sentinels of which all but the last stand still, then the process asks the
    last one, however long a connection may take.
    """
    silent = own_sentinels.watchers[:2]
    for watcher in silent:
        watcher.pause()
    limiter = Limiter(
        name, Concurrency(1), store=f"{own_sentinels.user_url}&socket_connect_timeout=60"
    )

    assert await (await soon(limiter.acquire())).arelease()


async def test_the_error_names_the_sentinels_that_could_not_be_asked(
    name: str, own_sentinels: Sentinels
) -> None:
    """Given some Sentinels that are gone and one that knows nothing, or none at all, then the error
    says which, how many, and why.
    """
    own_sentinels.forget()
    gone = own_sentinels.watchers[:2]
    for watcher in gone:
        watcher.kill()
    places = [
        re.escape(f"127.0.0.1:{watcher.port} (ConnectionError: nothing listens there)")
        for watcher in own_sentinels.watchers
    ]
    told = "2 of 3 Sentinels could not be asked"
    with pytest.raises(
        StoreError, match=rf"no Sentinel knows .*'main'; {told}, {', '.join(places[:2])}\)"
    ):
        await soon(Limiter(name, Concurrency(1), store=own_sentinels.user_url).acquire())

    own_sentinels.watchers[2].kill()
    with pytest.raises(
        StoreError, match=rf"\(3 of 3 Sentinels could not be asked, {', '.join(places)}\)"
    ):
        await soon(Limiter(name, Concurrency(1), store=own_sentinels.user_url).acquire())
