"""A primary that is lost, and another one that Sentinel puts in its place: who holds still holds,
who waits keeps its place.

F37, F38. What replication did not carry over is lost, as docs/redis.md has it: then one capacity
and one burst more, and no holder that believes for long.
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
# Seconds from then until all goes on: back-off is 1 at most, who missed an announcement asks after
# 3, and a busy machine.
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


async def test_holders_and_waiters_live_through_the_death_of_the_primary(
    name: str, own_sentinels: Sentinels
) -> None:
    """S1, S5, S6, S7, L5: given two held places, eight who wait in two processes and a rate that
    runs, when the primary is killed, then all keep what they have: the places, the order, what was
    counted; and the rate is never exceeded. F37.
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


async def test_a_planned_failover_is_followed_at_once(name: str, own_sentinels: Sentinels) -> None:
    """F38, S1: given a former primary that answers for ten seconds more, until the Sentinels get
    round to it, when another one is promoted, then the former is asked no more: what is given back
    there would never be given back here.
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
async def test_the_former_primary_is_left_before_all_replicas_follow_the_new_one(
    name: str, sentinels_with_spare: Sentinels
) -> None:
    """F38, S1: given a replica that stands still, and a process that follows the Sentinel that
    leads a planned failover, when that names another primary, then the process leaves the former
    one. The leader publishes +switch-master only when each replica has followed, minutes later
    perhaps.
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


async def test_what_was_not_copied_is_lost_and_its_holder_learns_it(
    name: str, own_sentinels: Sentinels, slack: Slack
) -> None:
    """F37, S4, S5: given a permit and tokens that the replica never heard of, when the primary is
    killed, then one capacity and one burst more are granted; the holder knows within a third of its
    lease, and what it gives back is nobody's.
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


async def test_a_release_that_was_not_copied_leaves_its_place_taken_until_the_lease_ends(
    name: str, own_sentinels: Sentinels
) -> None:
    """F37, L1: given a process that has given its permit back and ended, when the replica never
    heard of the release and becomes the primary, then the next caller has the place when the lease
    has ended.
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


async def test_threads_live_through_a_failover(name: str, own_sentinels: Sentinels) -> None:
    """S1, S7: given a thread that comes and goes by its own connection, when the primary goes, then
    the thread follows.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    room = Room()

    def visit() -> None:
        with limiter, room:
            pass

    await asyncio.to_thread(visit)
    await asyncio.to_thread(visit)
    await failed_over(own_sentinels, Sentinels.fail_over)
    for _ in range(3):
        await soon(asyncio.to_thread(visit))

    assert (room.visits, room.most) == (5, 1)
    await at_rest(limiter)


def unaware(former: Copy) -> Watcher:
    """A Sentinel that takes `former` for the primary: the others tell it better sooner or later,
    every two seconds.
    """
    while True:
        behind = Watcher(former)
        behind.start()
        if behind.primary_port() == former.port:
            return behind
        behind.stop()


async def test_a_primary_that_has_become_a_replica_is_not_believed(
    name: str, own_sentinels: Sentinels
) -> None:
    """F35, F38: given a Sentinel that has not heard of it and still names the former primary, then
    the next one is asked.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    holder = await limiter.acquire()
    former = await failed_over(own_sentinels, Sentinels.fail_over)
    former.admin.replicaof(
        "127.0.0.1", own_sentinels.primary.port
    )  # as the Sentinels will tell it, some seconds later
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
    then the place goes round.
    """
    limit = Concurrency(1)
    one, two = [puppet(own_sentinels.user_url, limit) for _ in range(2)]
    watching = Limiter(name, limit, store=own_sentinels.user_url)
    await one.hears("acquire a", until="a asks")
    await one.says("a inside")
    for process, who in ((two, "b"), (one, "c"), (two, "d")):
        await process.hears(f"acquire {who}", until=f"{who} asks")
    await waiting(watching, 3)
    own_sentinels.copy()

    await failed_over(own_sentinels, Sentinels.kill_primary)
    assert await one.hears("lost a", until="a lost") == "False"
    for (process, who), (heir, its) in (
        ((one, "a"), (two, "b")),
        ((two, "b"), (one, "c")),
        ((one, "c"), (two, "d")),
    ):
        if heir is process:
            await process.hears(f"release {who}", until=f"{who} left True")
        else:
            process.process.tell(f"release {who}")
            await process.says(f"{who} left True")
        await heir.says(f"{its} inside")
    await two.hears("release d", until="d left True")

    await at_rest(watching)


async def test_a_sentinel_that_is_not_there_is_passed_over(name: str, sentinels: Sentinels) -> None:
    """Given a URL whose first Sentinel is gone, then the second one is asked."""
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
async def test_what_cannot_be_found_is_told_in_a_sentence(
    name: str, sentinels: Sentinels, wrong: Callable[[Sentinels], str], word: str
) -> None:
    """Given nobody to ask, or nothing to be told, then a StoreError says where it looked, at once,
    and no password.
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
async def test_a_single_server_that_turns_out_to_be_a_sentinel_says_so(
    name: str, sentinels: Sentinels, user: str, database: int
) -> None:
    """Given a redis:// URL that leads to a Sentinel, when a task or a thread asks for anything,
    then the StoreError names the URL that begins with redis+sentinel://.
    """
    url = f"redis://{user}127.0.0.1:{sentinels.watchers[0].port}/{database}"
    limiter = Limiter(name, Concurrency(1), store=url)
    by_thread = partial(asyncio.to_thread, limiter.acquire_sync)

    for ask in (limiter.acquire, limiter.atry_acquire, limiter.astatus, by_thread, by_thread):
        with pytest.raises(StoreError, match=r"is a Sentinel.* redis\+sentinel://") as told:
            await soon(ask())
        assert "password" not in str(told.value)


async def test_who_starts_when_there_is_no_primary_finds_the_next(
    name: str, own_sentinels: Sentinels
) -> None:
    """L5: given a process that begins while the primary is dead, when another is promoted, then
    that is found.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    former = own_sentinels.kill_primary()
    with pytest.raises(StoreError):
        await soon(limiter.acquire())

    await eventually(lambda: own_sentinels.promoted(former), PROMOTION)

    permit = await once_back(limiter.acquire)
    assert await permit.arelease()


async def test_who_starts_when_no_sentinel_names_a_primary_is_told_so_and_finds_the_first(
    name: str, own_sentinels: Sentinels
) -> None:
    """L5: given Sentinels that all say that there is none, then a StoreError says so at once; when
    there is one, it is found.
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
            )  # it is not hoped for, which would take longer: the service may be misspelt
    own_sentinels.watch(primary)

    assert await (await soon(limiter.acquire())).arelease()
    (await soon(asyncio.to_thread(limiter.acquire_sync))).release()
    await at_rest(limiter)


async def test_tasks_that_wait_are_told_when_nobody_can_be_promoted(
    name: str, own_sentinels: Sentinels, hurried: None
) -> None:
    """L5: given servers that all are gone, when they are looked for in vain, then holders and
    waiters learn it in time.
    """
    limiter = Limiter(name, Concurrency(1), store=own_sentinels.user_url)
    holder = await limiter.acquire()
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    for server in (*own_sentinels.watchers, *own_sentinels.copies):
        server.kill()

    with pytest.raises(StoreError):
        await soon(waiter)
    holder.release()  # nobody hears it


async def test_silence_on_all_sides_is_told_in_time(
    name: str, own_sentinels: Sentinels, hurried: None, slack: Slack
) -> None:
    """L5, F36: given Sentinels and servers that all stand still, when a connection may take as long
    as an outage, then who waits is told when the outage has lasted long enough, however many there
    are to be asked.
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
    holder.release()  # nobody hears it


async def test_a_sentinel_that_says_nothing_delays_nobody(
    name: str, own_sentinels: Sentinels
) -> None:
    """L5, F22: given Sentinels of which all but the last stand still, then that one is asked,
    however long one may take.
    """
    silent = own_sentinels.watchers[:2]
    for watcher in silent:
        watcher.pause()
    limiter = Limiter(
        name, Concurrency(1), store=f"{own_sentinels.user_url}&socket_connect_timeout=60"
    )

    assert await (await soon(limiter.acquire())).arelease()


async def test_sentinels_that_could_not_be_asked_are_named(
    name: str, own_sentinels: Sentinels
) -> None:
    """Given some that are gone and one that knows nothing, or none at all, then the error says who,
    how many, and why.
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
