"""What an acquire does while its store cannot be asked: `on_store_error`, with servers that are killed, stopped, full or strict.

A limiter of `elsewhere` has a connection of its own and a share of its own, as in another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from redis import Redis

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    Permit,
    QueueFullError,
    Quota,
    Rate,
    StoreError,
    Window,
)
from headgate.gate.rules import Declaration, rules_of
from headgate.limits import Limit
from headgate.stores import fallback
from headgate.stores.redis.line import RedisLine
from headgate.stores.redis.store import RedisStore
from tests.faults.scene import Room, elsewhere, enter, eventually
from tests.servers import Server
from tests.world import at_rest, held, soon, used, waiting

AGES = 10_000_000  # seconds: no token comes back within a test
TOKENS = Rate(1000, per=AGES, unit="tokens")

pytestmark = pytest.mark.usefixtures("hurried")
Doors = Callable[[Limiter], Any]


def opened(name: str, server: Server, *limits: Limit | str, **options: Any) -> Limiter:
    return elsewhere(name, *limits, url=server.url, on_store_error="open", **options)


def local(name: str, server: Server, *limits: Limit | str, processes: int = 2, **options: Any) -> Limiter:
    return elsewhere(name, *limits, url=server.url, on_store_error="local", processes=processes, **options)


@pytest.fixture
def gone(own_server: Server) -> Server:
    """A server that is not there."""
    own_server.kill()
    return own_server


async def by_task(limiter: Limiter) -> Permit:
    return await limiter.acquire()


async def by_trying(limiter: Limiter) -> Permit | bool:
    return await limiter.atry_acquire() or False


async def by_thread(limiter: Limiter) -> Permit:
    return await asyncio.to_thread(limiter.acquire_sync)


async def by_trying_thread(limiter: Limiter) -> Permit | bool:
    return await asyncio.to_thread(limiter.try_acquire) or False


WAYS = [by_task, by_trying, by_thread, by_trying_thread]


async def inside(limiter: Limiter, door: asyncio.Event, room: Room) -> None:
    """Enter, and stay until the door opens."""
    async with limiter:
        with room:
            await door.wait()


# "open" ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", WAYS)
async def test_without_a_server_everybody_passes_and_holds_nothing(name: str, gone: Server, ask: Doors) -> None:
    """Given no server, when calls may pass without it, then all do at once, and what they do with their permits is harmless."""
    limiter = opened(name, gone, Concurrency(1), TOKENS)

    permits = [await soon(ask(limiter)) for _ in range(3)]

    for permit in permits:
        assert (permit.held, permit.lost, permit.fence) == (False, False, 0)
        permit.settle(tokens=5)
        permit.release()
        permit.release()
        assert not await permit.arelease()


async def test_without_a_server_blocks_are_entered_by_tasks_and_threads(name: str, gone: Server) -> None:
    """S1 ends here: no limit holds, and nobody waits; each task and thread comes out again."""
    limiter, room, door = opened(name, gone, Concurrency(1)), Room(), asyncio.Event()

    def thread() -> None:
        with limiter, limiter.acquire():
            pass

    visits = [asyncio.create_task(inside(limiter, door, room)) for _ in range(5)]
    await eventually(lambda: room.inside == 5)
    await soon(asyncio.to_thread(thread))
    door.set()

    await soon(asyncio.gather(*visits))


async def test_what_is_refused_before_asking_is_refused_without_a_server_too(name: str, gone: Server) -> None:
    """T7: a cost that can never pass does not pass because nobody can be asked."""
    limiter = opened(name, gone, Concurrency(1), TOKENS)
    with pytest.raises(CostExceedsCapacityError):
        await limiter.acquire(tokens=1001)


async def test_a_server_that_is_back_is_asked_again(name: str, own_server: Server) -> None:
    """S1, S7: given permits of before, when the server is back, then its limits hold again, for all, and none is forgotten."""
    limiter, other = opened(name, own_server, Concurrency(1)), elsewhere(name, Concurrency(1), url=own_server.url)
    own_server.kill()
    passed = await soon(limiter.acquire())
    own_server.start()

    permit = await soon(limiter.acquire())
    passed.release()

    assert (permit.held, permit.fence > 0) == (True, True)
    assert not await soon(other.atry_acquire())
    assert await permit.arelease()
    await at_rest(other)


async def test_a_status_that_nobody_knows_is_an_error(name: str, gone: Server) -> None:
    """`status` and `astatus` say that the store cannot be asked, and so does the limiter's own line."""
    limiter = opened(name, gone, Concurrency(1))
    for ask in (limiter.astatus, lambda: asyncio.to_thread(limiter.status)):
        with pytest.raises(StoreError, match="no status"):
            await soon(ask())
    await soon(limiter.acquire())
    assert "at present without it: calls pass without limits" in repr(limiter)


# "local" -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", WAYS)
async def test_without_a_server_each_process_keeps_to_its_share(name: str, gone: Server, ask: Doors) -> None:
    """S1: given 5 among 2 processes, when there is no server, then each holds 2 at once, and what is released goes on."""
    processes = [local(name, gone, Concurrency(5)) for _ in range(2)]
    for limiter in processes:
        permits = [await soon(ask(limiter)) for _ in range(2)]
        assert [(permit.held, permit.fence) for permit in permits] == [(True, 0)] * 2
        assert not await soon(limiter.atry_acquire())

        permits[0].release()
        permits.append(await soon(ask(limiter)))
        assert not await soon(limiter.atry_acquire())

        assert [await permit.arelease() for permit in permits] == [False, True, True]
        assert used(await soon(limiter.astatus())) == [0]


@pytest.mark.parametrize("limit", [Rate(10, per=AGES), Window(10, per=AGES), Quota(10, per=1_000_000)], ids=str)
async def test_without_a_server_each_process_counts_its_share(name: str, gone: Server, limit: Limit) -> None:
    """T1, T2: given 10 in a long time among 3 processes, then each passes 3, and knows when it could pass more."""
    limiter = local(name, gone, limit, processes=3)

    found = [await soon(limiter.atry_acquire()) for _ in range(4)]

    assert [bool(one) for one in found] == [True, True, True, False]
    with pytest.raises(MaxSleepExceededError) as refused:
        await soon(limiter.acquire(max_sleep=0.01))
    assert refused.value.retry_after > 1


async def test_a_bucket_that_starts_with_less_does_so_without_a_server(name: str, gone: Server) -> None:
    """`initial` is divided too."""
    limiter = local(name, gone, Rate(10, per=AGES, initial=5), processes=2)
    found = [await soon(limiter.atry_acquire()) for _ in range(3)]
    assert [bool(one) for one in found] == [True, True, False]


async def test_limiters_of_one_name_and_store_have_one_share(name: str, gone: Server) -> None:
    """S1: a limiter that is made for every call is limited too."""
    client = Redis.from_url(gone.url)
    options: dict[str, Any] = {"store": client, "on_store_error": "local", "processes": 2}

    permit = await soon(Limiter(name, Concurrency(2), **options).acquire())

    assert not await soon(Limiter(name, Concurrency(2), **options).atry_acquire())
    permit.release()


async def test_a_share_is_nobody_elses_in_memory(name: str, gone: Server) -> None:
    """S1: a limiter of the same name in the memory store is another one."""
    mine, memory = local(name, gone, Concurrency(2)), Limiter(name, Concurrency(2))
    async with mine, memory, memory:
        assert not await memory.atry_acquire()


async def test_each_key_has_a_share_of_its_own(name: str, gone: Server) -> None:
    """S1: whichever object asks for the key."""
    limiter = local(name, gone, Concurrency(2))
    async with limiter["a"], limiter["b"]:
        assert not await soon(limiter["a"].atry_acquire())
        assert held(await soon(limiter["b"].astatus())) == 1
        assert held(await soon(limiter["c"].astatus())) == 0


async def test_a_status_without_a_server_is_that_of_the_share(name: str, gone: Server) -> None:
    limiter = local(name, gone, Concurrency(5), TOKENS)
    async with limiter.acquire(tokens=100):
        status = await soon(limiter.astatus())

        assert [limit.capacity for limit in status.limits] == [2, 500]
        assert used(status) == [1, 100]
        assert "at present without it: one of 2 processes" in repr(limiter)
        assert await soon(asyncio.to_thread(limiter.status)) == status


async def test_what_is_settled_without_a_server_is_settled_in_the_share(name: str, gone: Server) -> None:
    limiter = local(name, gone, TOKENS)
    async with limiter.acquire(tokens=400) as permit:
        permit.settle(tokens=30)
    assert used(await soon(limiter.astatus())) == [30]


@pytest.mark.parametrize("ask", ["acquire", "atry_acquire"])
async def test_a_cost_beyond_the_share_is_told_from_one_beyond_the_limit(name: str, gone: Server, ask: str) -> None:
    """Promise 8: not without the server, but with it: a StoreError that says so, and why the store could not be asked."""
    limiter = local(name, gone, Concurrency(5), TOKENS)

    with pytest.raises(StoreError, match=r"asks for 501 tokens.* may take 500 at most") as refused:
        await soon(getattr(limiter, ask)(tokens=501))

    assert isinstance(refused.value.__cause__, StoreError)
    assert "cannot be asked" in str(refused.value.__cause__)
    (await soon(limiter.acquire(tokens=500))).release()


# Waiting -----------------------------------------------------------------------------------------------------------------------


async def test_who_waited_at_the_server_goes_on_in_the_order_of_arrival(name: str, own_server: Server) -> None:
    """S1, S6: given a queue at the server, when it dies, then all pass through the share, as they came and no more at once."""
    limiter, other = local(name, own_server, Concurrency(2)), elsewhere(name, Concurrency(2), url=own_server.url)
    holders = [await other.acquire() for _ in range(2)]
    room, order = Room(), []

    async def visit(number: int) -> None:
        async with limiter:
            with room:
                order.append(number)
                await asyncio.sleep(0)

    visits = [asyncio.create_task(visit(number)) for number in range(20)]
    await waiting(other, 20)
    own_server.kill()
    await soon(asyncio.gather(*visits))

    assert order == list(range(20))
    assert room.most == 1
    for holder in holders:
        holder.release()


async def test_threads_that_waited_at_the_server_go_on_in_the_order_of_arrival(name: str, own_server: Server) -> None:
    """S1, S6: the same for threads: they pass one after the other, as they came."""
    limiter, other = local(name, own_server, Concurrency(2)), elsewhere(name, Concurrency(2), url=own_server.url)
    holders = [await other.acquire() for _ in range(2)]
    room, order, door = Room(), [], threading.Event()

    def visit(number: int) -> None:
        with limiter.acquire(), room:
            order.append(number)
            door.wait(0.01)

    visits = []
    for number in range(5):
        visits.append(asyncio.create_task(asyncio.to_thread(visit, number)))
        await waiting(other, number + 1)
    own_server.kill()
    await soon(asyncio.gather(*visits))

    assert order == list(range(5))
    assert room.most == 1
    for holder in holders:
        holder.release()


async def test_who_gives_up_waiting_for_the_share_leaves_nothing(name: str, gone: Server) -> None:
    """S7, L4: cancelled among others, they are out at once, and those behind them move forward."""
    limiter = local(name, gone, Concurrency(2))
    holder = await soon(limiter.acquire())
    waiters = [asyncio.create_task(enter(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    for waiter in waiters[:2]:
        waiter.cancel()
    results = await soon(asyncio.gather(*waiters[:2], return_exceptions=True))
    assert [type(result) for result in results] == [asyncio.CancelledError] * 2
    await waiting(limiter, 1)
    holder.release()

    assert await (await soon(waiters[2])).arelease()
    await at_rest(limiter)


async def test_a_cancelled_call_does_not_go_on_without_the_server(name: str, own_server: Server) -> None:
    """L4, S7: cancelled while it asks a server that stands still, it is out, here and there."""
    limiter = local(name, own_server, Concurrency(2))
    await (await soon(limiter.acquire())).arelease()
    own_server.pause()
    asked = asyncio.create_task(enter(limiter))
    await asyncio.sleep(0.01)

    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(asked)
    own_server.resume()

    await at_rest(limiter)
    assert "at present" not in repr(limiter)


async def test_no_more_wait_for_the_share_than_may_wait(name: str, gone: Server) -> None:
    """S9: `max_waiters` bounds the queue of the share, too."""
    limiter = local(name, gone, Concurrency(2), max_waiters=1)
    async with limiter:
        waiter = asyncio.create_task(enter(limiter))
        await waiting(limiter, 1)
        with pytest.raises(QueueFullError):
            await soon(limiter.acquire())
    (await soon(waiter)).release()


async def test_nobody_waits_longer_because_the_server_was_asked_first(name: str, own_server: Server) -> None:
    """Given a wait at a server that dies, when the share has no room either, then both waits together are `max_sleep`."""
    limiter, other = local(name, own_server, Concurrency(2)), elsewhere(name, Concurrency(2), url=own_server.url)
    holders = [await other.acquire() for _ in range(2)]
    loop = asyncio.get_running_loop()
    start = loop.time()
    patient, hurried = [asyncio.create_task(waited(limiter, seconds)) for seconds in (None, 1.0)]
    await waiting(other, 2)
    await asyncio.sleep(0.3)
    own_server.kill()

    with pytest.raises(MaxSleepExceededError):
        await soon(hurried)

    assert 1.0 <= loop.time() - start <= 1.25
    permit = await patient
    assert permit.waited >= 0.3
    for each in (permit, *holders):
        each.release()


async def waited(limiter: Limiter, max_sleep: float | None) -> Permit:
    return await limiter.acquire(max_sleep=max_sleep)


async def test_a_refusal_is_an_answer(name: str, own_server: Server) -> None:
    """T8: given a server that refuses, then nobody goes past it."""
    limiter = local(name, own_server, Concurrency(2), max_waiters=0)
    holders = [await soon(limiter.acquire()) for _ in range(2)]

    assert not await limiter.atry_acquire()
    with pytest.raises(QueueFullError):
        await limiter.acquire()
    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(max_sleep=0.01)

    for holder in holders:
        assert await holder.arelease()


# There and back ----------------------------------------------------------------------------------------------------------------


async def test_who_is_inside_when_the_server_goes_and_comes_leaves_as_it_entered(name: str, own_server: Server) -> None:
    """S1, S4, S7: tasks that entered at the server, without it, and at the server again, leave in any order: all is given back."""
    limiter, room = local(name, own_server, Concurrency(4, lease=0.6)), Room()
    other = elsewhere(name, Concurrency(4, lease=0.6), url=own_server.url)
    doors = [asyncio.Event() for _ in range(6)]

    async def two(first: int) -> list[asyncio.Task[None]]:
        visits = [asyncio.create_task(inside(limiter, door, room)) for door in doors[first : first + 2]]
        await eventually(lambda: room.visits == first + 2)
        return visits

    visits = await two(0)
    own_server.kill()
    visits += await two(2)
    assert not await soon(limiter.atry_acquire())
    own_server.start()
    visits += await two(4)
    assert held(await other.astatus()) == 2

    for visit, left in ((2, 2), (5, 1)):
        doors[visit].set()
        await soon(visits[visit])
        assert held(await soon(limiter.astatus())) == left
    for door in doors:
        door.set()
    await soon(asyncio.gather(*visits))

    await at_rest(other)
    own_server.kill()
    assert held(await soon(limiter.astatus())) == 0


async def test_blocks_in_blocks_are_left_from_the_inside(name: str, own_server: Server) -> None:
    """S1: given a block that holds a permit of the server, when one inside of it passes without, then that one's end is its own."""
    limiter = opened(name, own_server, Concurrency(1))
    async with limiter:
        with forbidden(own_server):
            async with limiter:
                pass
        assert held(await limiter.astatus()) == 1
    await at_rest(limiter)


async def test_threads_leave_as_they_entered(name: str, own_server: Server) -> None:
    """S4, S7: a thread inside from before, one from in between, one from after, who leave in the order in which they came."""
    limiter = local(name, own_server, Concurrency(2, lease=0.6))
    other = elsewhere(name, Concurrency(2, lease=0.6), url=own_server.url)
    doors, came = [threading.Event() for _ in range(3)], count(1)
    entered = 0

    def visit(number: int) -> None:
        nonlocal entered
        with limiter:
            entered = next(came)
            doors[number].wait()

    visits = []
    for number, change in enumerate((lambda: None, own_server.kill, own_server.start)):
        change()
        visits.append(asyncio.create_task(asyncio.to_thread(visit, number)))
        await eventually(lambda number=number: entered == number + 1)

    assert held(await soon(other.astatus())) == 1
    for door, visit_of in zip(doors, visits, strict=True):
        door.set()
        await soon(visit_of)
    await at_rest(other)
    own_server.kill()
    assert held(await soon(limiter.astatus())) == 0


async def test_who_waits_for_the_share_when_the_server_is_back_finishes_there(name: str, own_server: Server) -> None:
    """S1, S6, L2: newcomers go to the server; who waits here waits on for a permit of here."""
    limiter = local(name, own_server, Concurrency(2))
    other = elsewhere(name, Concurrency(2), url=own_server.url)
    own_server.kill()
    holder = await soon(limiter.acquire())
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)
    own_server.start()

    shared = [await soon(limiter.acquire()) for _ in range(2)]
    assert held(await soon(other.astatus())) == 2
    assert not waiter.done()
    for permit in shared:
        assert await permit.arelease()
    assert not waiter.done()

    assert await holder.arelease()
    assert await (await soon(waiter)).arelease()
    assert held(await soon(other.astatus())) == 0


async def test_a_store_that_is_known_to_be_away_is_not_asked(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a store that says that it is away, when anybody asks, then the way past it is taken at once; and then no longer."""
    limiter = elsewhere(name, Concurrency(2), url=redis_url, on_store_error="local", processes=2)
    with monkeypatch.context() as while_away:
        while_away.setattr(RedisStore, "away", lambda self: True)
        while_away.setattr(RedisStore, "lane", None)
        while_away.setattr(RedisStore, "shortcut", None)
        for ask in WAYS:
            permit = await soon(ask(limiter))
            assert permit.fence == 0
            assert not await soon(limiter.atry_acquire())
            permit.release()
        assert (await limiter.astatus()).limits[0].capacity == 1
        assert "at present without it" in repr(limiter)

    permit = await soon(limiter.acquire())
    assert permit.fence > 0
    assert await permit.arelease()
    assert "at present" not in repr(limiter)


# Servers that are there and refuse ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full(server: Server) -> Iterator[None]:
    with Redis.from_url(server.url) as admin:
        admin.config_set("maxmemory", 1)
        yield
        admin.config_set("maxmemory", 0)


@contextlib.contextmanager
def forbidden(server: Server) -> Iterator[None]:
    with Redis.from_url(server.url) as admin:
        admin.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"], commands=["-fcall", "-evalsha", "-eval"])
        yield
        admin.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"])


@contextlib.contextmanager
def frozen(server: Server) -> Iterator[None]:
    server.pause()
    yield
    server.resume()


@contextlib.contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@pytest.mark.parametrize("fault", [full, forbidden, frozen, killed])
async def test_whatever_is_wrong_with_the_server_calls_go_on_and_come_back(name: str, own_server: Server, fault: Doors) -> None:
    """S1, S7, F29, F32, F36, F42: by the share while it lasts; afterwards the server's limits hold, and no permit is missing."""
    limits = Concurrency(4, lease=0.6), TOKENS
    limiter, other = local(name, own_server, *limits), elsewhere(name, *limits, url=own_server.url)
    before = await soon(limiter.acquire(tokens=1))
    with fault(own_server):
        room = Room()

        async def visit() -> None:
            async with limiter.acquire(tokens=1):
                with room:
                    await asyncio.sleep(0)

        await soon(asyncio.gather(*(visit() for _ in range(10))))
        assert room.most == 2

    before.release()
    after = [await soon(limiter.acquire()) for _ in range(4)]
    assert [permit.fence > 0 for permit in after] == [True] * 4
    assert not await soon(other.atry_acquire())
    for permit in after:
        assert await permit.arelease()
    await at_rest(other)


@pytest.mark.parametrize("fault", [full, forbidden, frozen, killed])
async def test_whatever_is_wrong_with_the_server_is_an_error_by_default(name: str, own_server: Server, fault: Doors) -> None:
    """Promise 8: nobody passes unasked who was not told to."""
    limiter = elsewhere(name, Concurrency(4), url=own_server.url)
    assert type(limiter._line) is RedisLine  # and the way there has become no longer
    (await soon(limiter.acquire())).release()
    with fault(own_server):
        for ask in WAYS:
            with pytest.raises(StoreError):
                await soon(ask(limiter))


# New limits --------------------------------------------------------------------------------------------------------------------


async def test_new_limits_are_divided_as_well(name: str, own_server: Server) -> None:
    """S1, L2: given one who waits for the share, when the limits are raised, then the share is, at once; and so it is lowered."""
    limiter = local(name, own_server, Concurrency(2))
    own_server.kill()
    first = await soon(limiter.acquire())
    waiter = asyncio.create_task(enter(limiter))
    await waiting(limiter, 1)

    limiter._line.follow(Declaration(rules_of([Concurrency(4)])))
    second = await soon(waiter)
    assert not await soon(limiter.atry_acquire())
    with pytest.raises(ValueError, match="less than one for each"):
        limiter._line.follow(Declaration(rules_of([Concurrency(1)])))
    assert (await soon(limiter.astatus())).limits[0].capacity == 2

    first.release()
    second.release()


async def test_limits_that_another_process_declared_are_divided_here(name: str, own_server: Server) -> None:
    """S1: the last declaration wins, without the server too; where it leaves no share, nobody passes."""
    limiter = local(name, own_server, Concurrency(8))
    async with limiter:
        pass
    for capacity in (2, 1):
        await (await soon(elsewhere(name, Concurrency(capacity), url=own_server.url).acquire())).arelease()
        async with limiter:
            pass  # hears of it

        with forbidden(own_server):
            if capacity == 2:
                async with limiter:
                    assert not await soon(limiter.atry_acquire())
            else:
                with pytest.raises(StoreError, match="less than one for each") as refused:
                    await soon(limiter.acquire())
                assert isinstance(refused.value.__cause__, StoreError)


# What is said about it ---------------------------------------------------------------------------------------------------------


async def test_the_log_is_told_once_when_it_begins_and_once_when_it_ends(
    name: str, own_server: Server, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for each call, nor for each key; with the name, the store, the mode and the cause."""
    monkeypatch.setattr(fallback, "CALM", 0.0)
    caplog.set_level(logging.WARNING, "headgate")
    limiter = local(name, own_server, Concurrency(2))
    for _ in range(2):
        caplog.clear()
        own_server.kill()
        for one in (limiter, limiter["a"], limiter["b"], limiter):
            (await soon(one.acquire())).release()
        begun = caplog.messages
        own_server.start()
        for one in (limiter["a"], limiter, limiter["b"]):
            (await soon(one.acquire())).release()

        words = (name, f"127.0.0.1:{own_server.port}", "on_store_error='local'", "cannot be asked")
        assert [[word in message for word in words] for message in begun] == [[True] * 4]
        (ended,) = caplog.messages[1:]
        assert "is back at its store" in ended
        assert name in ended


async def test_a_store_that_wavers_does_not_fill_the_log(name: str, own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """S9: now it takes a call, now it does not: that is one thing to be said."""
    caplog.set_level(logging.WARNING, "headgate")
    limiter = opened(name, own_server, Concurrency(2))
    for _ in range(5):
        with forbidden(own_server):
            assert not (await soon(limiter.acquire())).held
        (await soon(limiter.acquire())).release()
    assert len(caplog.messages) == 1


async def test_a_password_is_in_no_message(name: str, own_server: Server, caplog: pytest.LogCaptureFixture) -> None:
    url = own_server.url.replace("redis://", "redis://guest:canary@")
    limiter = Limiter(name, TOKENS, store=url, on_store_error="local", processes=2)
    for server_is in ("strict", "gone"):
        with pytest.raises(StoreError) as refused:
            await soon(limiter.acquire(tokens=501))
        said = [str(refused.value), str(refused.value.__cause__), repr(limiter), *caplog.messages]
        assert [text for text in said if "canary" in text] == [], server_is
        own_server.kill()
    assert len(caplog.messages) == 1


async def test_nothing_is_kept_of_those_who_have_passed(name: str, gone: Server) -> None:
    """S9: neither permits nor errors pile up in a limiter that does without its store for long."""
    for limiter in (opened(name, gone, Concurrency(4)), local(name, gone, Concurrency(4))):
        await soon(asyncio.gather(*(enter_and_leave(limiter) for _ in range(20))))
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, Permit)]
        assert (left, limiter._line._inside._entered) == ([], {})
        assert limiter._line._absence.cause.__traceback__ is None  # it would keep all that the caller has


async def enter_and_leave(limiter: Limiter) -> None:
    async with limiter:
        pass
    async with limiter.acquire():
        pass


def test_a_memory_store_is_never_away(name: str) -> None:
    """What is said about its failing is taken, and changes nothing."""
    for options in ({"on_store_error": "open"}, {"on_store_error": "local", "processes": 3}):
        limiter = Limiter(name, Concurrency(1), **options)  # type: ignore[arg-type]
        with limiter:
            assert not limiter.try_acquire()
        assert type(limiter._line) is type(Limiter(name, Concurrency(1))._line)
