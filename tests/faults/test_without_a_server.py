"""An acquire while there is no server: `on_store_error` grants it, or applies this process's share
of the limits.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from headgate import (
    Concurrency,
    CostExceedsCapacityError,
    Limiter,
    MaxSleepExceededError,
    Permit,
    QueueFullError,
    Quota,
    Rate,
    Refusal,
    StoreError,
    Window,
)
from headgate.internals import queue_of
from headgate.limits import Limit
from headgate.stores.redis.transport import reconnection
from tests.faults.absence import AGES, TOKENS, WAYS, found, inside, local, opened
from tests.faults.scene import Room, Slack, client_of_its_own, elsewhere, enter, eventually
from tests.servers import Server, dead_port
from tests.world import at_rest, held, soon, used, waiting

pytestmark = pytest.mark.usefixtures("hurried")
Doors = Callable[[Limiter], Any]


@pytest.fixture
def gone(own_server: Server) -> Server:
    """A server that is not there."""
    own_server.kill()
    return own_server


# "open" -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", WAYS)
async def test_without_a_server_and_limits_every_caller_passes_and_holds_nothing(
    name: str, gone: Server, ask: Doors
) -> None:
    """Given no server, when calls may pass without it, then all pass at once, and their permits can
    be used without harm.
    """
    limiter = opened(name, gone, Concurrency(1), TOKENS)

    permits = [await soon(ask(limiter)) for _ in range(3)]

    for permit in permits:
        assert (permit.held, permit.lost, permit.fence) == (False, False, 0)
        permit.settle(tokens=5)
        permit.release()
        permit.release()
        assert not await permit.arelease()


async def test_without_a_server_blocks_are_entered_by_tasks_and_threads(
    name: str, gone: Server
) -> None:
    """S1 ends here: no limit holds, and no caller waits. Each task and thread comes out again."""
    limiter, room, door = opened(name, gone, Concurrency(1)), Room(), asyncio.Event()

    def thread() -> None:
        with limiter, limiter.acquire():
            pass

    visits = [asyncio.create_task(inside(limiter, door, room)) for _ in range(5)]
    await eventually(lambda: room.inside == 5)
    await soon(asyncio.to_thread(thread))
    door.set()

    await soon(asyncio.gather(*visits))


async def test_a_cost_above_the_capacity_is_refused_without_a_server_too(
    name: str, gone: Server
) -> None:
    """T7: a cost that can never pass does not pass though the server cannot be asked."""
    limiter = opened(name, gone, Concurrency(1), TOKENS)
    with pytest.raises(CostExceedsCapacityError):
        await limiter.acquire(tokens=1001)


async def test_a_server_that_is_back_is_asked_again(name: str, own_server: Server) -> None:
    """S1, S7: given permits from an outage, when the server is back, then its limits hold again for
    all callers, and no permit is forgotten.
    """
    limiter, other = (
        opened(name, own_server, Concurrency(1)),
        elsewhere(name, Concurrency(1), url=own_server.url),
    )
    own_server.kill()
    passed = await soon(limiter.acquire())
    own_server.start()
    await found(limiter)

    permit = await soon(limiter.acquire())
    passed.release()

    assert (permit.held, permit.fence > 0) == (True, True)
    assert not await soon(other.atry_acquire())
    assert await permit.arelease()
    await at_rest(other)


async def test_a_status_without_a_server_and_limits_is_an_error(name: str, gone: Server) -> None:
    """`status` and `astatus` raise that the store cannot be asked, and the repr of the limiter says
    it, too.
    """
    limiter = opened(name, gone, Concurrency(1))
    for ask in (limiter.astatus, lambda: asyncio.to_thread(limiter.status)):
        with pytest.raises(StoreError, match="no status"):
            await soon(ask())
    await soon(limiter.acquire())
    assert "at present without it: calls pass without limits" in repr(limiter)


# "local" ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ask", WAYS)
async def test_without_a_server_each_process_keeps_to_its_share(
    name: str, gone: Server, ask: Doors
) -> None:
    """S1: given 5 permits among 2 processes, when there is no server, then each process holds 2 at
    once. A released permit can be taken again.
    """
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


@pytest.mark.parametrize(
    "limit", [Rate(10, per=AGES), Window(10, per=AGES), Quota(10, per=1_000_000)], ids=str
)
async def test_without_a_server_each_process_counts_its_share(
    name: str, gone: Server, limit: Limit
) -> None:
    """T1, T2: given 10 calls in a long time among 3 processes, then each process passes 3, and
    knows when it could pass more.
    """
    limiter = local(name, gone, limit, processes=3)

    found = [await soon(limiter.atry_acquire()) for _ in range(4)]

    assert [bool(one) for one in found] == [True, True, True, False]
    with pytest.raises(MaxSleepExceededError) as refused:
        await soon(limiter.acquire(max_sleep=0.01))
    assert refused.value.retry_after > 1


async def test_a_bucket_that_starts_with_less_does_so_without_a_server(
    name: str, gone: Server
) -> None:
    """`initial` is divided too."""
    limiter = local(name, gone, Rate(10, per=AGES, initial=5), processes=2)
    found = [await soon(limiter.atry_acquire()) for _ in range(3)]
    assert [bool(one) for one in found] == [True, True, False]


async def test_limiters_of_one_name_and_store_have_one_share(name: str, gone: Server) -> None:
    """S1: a limiter that is made for every call is limited too."""
    client = client_of_its_own(gone.url)
    options: dict[str, Any] = {"store": client, "on_store_error": "local", "processes": 2}

    permit = await soon(Limiter(name, Concurrency(2), **options).acquire())

    assert not await soon(Limiter(name, Concurrency(2), **options).atry_acquire())
    permit.release()


async def test_a_share_is_not_shared_with_the_memory_store(name: str, gone: Server) -> None:
    """S1: a limiter of the same name in the memory store is another one."""
    mine, memory = local(name, gone, Concurrency(2)), Limiter(name, Concurrency(2))
    async with mine, memory, memory:
        assert not await memory.atry_acquire()


async def test_each_key_has_a_share_of_its_own(name: str, gone: Server) -> None:
    """S1: the share belongs to the key, whichever object asks for it."""
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


async def test_a_settlement_without_a_server_counts_in_the_share(name: str, gone: Server) -> None:
    limiter = local(name, gone, TOKENS)
    async with limiter.acquire(tokens=400) as permit:
        permit.settle(tokens=30)
    assert used(await soon(limiter.astatus())) == [30]


@pytest.mark.parametrize("ask", ["acquire", "atry_acquire"])
async def test_the_error_of_a_cost_beyond_the_share_differs_from_that_beyond_the_limit(
    name: str, gone: Server, ask: str
) -> None:
    """Promise 8: the cost could pass with the server, so the error is a StoreError. It says so, and
    why the store could not be asked.
    """
    limiter = local(name, gone, Concurrency(5), TOKENS)

    with pytest.raises(StoreError, match=r"asks for 501 tokens.* may take 500 at most") as refused:
        await soon(getattr(limiter, ask)(tokens=501))

    assert isinstance(refused.value.__cause__, StoreError)
    assert "cannot be asked" in str(refused.value.__cause__)
    (await soon(limiter.acquire(tokens=500))).release()


# Waiting ------------------------------------------------------------------------------------------


async def test_tasks_that_waited_at_the_server_go_on_in_the_order_of_arrival(
    name: str, own_server: Server
) -> None:
    """S1, S6: given a queue at the server, when the server dies, then all pass through the share,
    in order of arrival and no more at once.
    """
    limiter, other = (
        local(name, own_server, Concurrency(2), retry_for=1),
        elsewhere(name, Concurrency(2), url=own_server.url),
    )
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


@pytest.mark.proof
async def test_threads_that_waited_at_the_server_go_on_in_the_order_of_arrival(
    name: str, own_server: Server
) -> None:
    """S1, S6: the same for threads: they pass one after the other, in order of arrival."""
    limiter, other = (
        local(name, own_server, Concurrency(2)),
        elsewhere(name, Concurrency(2), url=own_server.url),
    )
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


async def test_a_caller_that_gives_up_waiting_for_the_share_leaves_its_queue(
    name: str, gone: Server
) -> None:
    """S7, L4: callers that are cancelled among others leave at once, and those behind them move
    forward.
    """
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


async def test_a_cancelled_call_does_not_go_on_without_the_server(
    name: str, own_server: Server
) -> None:
    """L4, S7: a caller that is cancelled while it asks a server that stands still leaves both the
    process and the server.
    """
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


@pytest.mark.proof
async def test_waits_at_the_server_and_for_the_share_together_last_max_sleep(
    name: str, own_server: Server, monkeypatch: pytest.MonkeyPatch, slack: Slack
) -> None:
    """Given a wait at a server that dies, when the share has no room either, then both waits
    together last `max_sleep`.
    """
    monkeypatch.setattr(
        reconnection, "OUTAGE", 0.2
    )  # the process gives up the server before the caller's max_sleep ends
    limiter, other = (
        local(name, own_server, Concurrency(2)),
        elsewhere(name, Concurrency(2), url=own_server.url),
    )
    holders = [await other.acquire() for _ in range(2)]
    loop = asyncio.get_running_loop()
    start = loop.time()
    patient, hurried = [asyncio.create_task(waited(limiter, seconds)) for seconds in (None, 2.0)]
    await waiting(other, 2)
    await asyncio.sleep(1.2)
    own_server.kill()

    with pytest.raises(MaxSleepExceededError):
        await soon(hurried)

    assert 2.0 <= loop.time() - start <= 2.0 + slack()
    permit = await patient
    assert permit.waited >= 1.2
    for each in (permit, *holders):
        each.release()


async def waited(limiter: Limiter, max_sleep: float | None) -> Permit:
    return await limiter.acquire(max_sleep=max_sleep)


async def test_a_refusal_of_the_server_is_not_an_outage(name: str, own_server: Server) -> None:
    """T8: given a server that refuses, then no caller goes without it."""
    limiter = local(name, own_server, Concurrency(2), max_waiters=0)
    holders = [await soon(limiter.acquire()) for _ in range(2)]

    assert not await limiter.atry_acquire()
    with pytest.raises(QueueFullError):
        await limiter.acquire()
    with pytest.raises(MaxSleepExceededError):
        await limiter.acquire(max_sleep=0.01)

    for holder in holders:
        assert await holder.arelease()


async def test_a_pause_holds_callers_of_the_share(name: str, gone: Server) -> None:
    """T3: given a share of the limits, when it is paused, then no caller passes it. Without limits,
    every caller passes.
    """
    limiter, free = local(name, gone, Concurrency(4)), opened(name, gone, Concurrency(4))

    for each in (limiter, free):
        with pytest.raises(StoreError):
            await soon(each.apause(3600))

    refused = await soon(limiter.atry_acquire())
    assert isinstance(refused, Refusal)
    assert 3500 < refused.retry_after <= 3600
    (await soon(free.acquire())).release()


async def test_a_limiter_without_its_store_keeps_no_permits_and_errors(
    name: str, gone: Server
) -> None:
    """S9: no permits and errors pile up in a limiter that goes without its store for long."""
    for limiter in (opened(name, gone, Concurrency(4)), local(name, gone, Concurrency(4))):
        await soon(asyncio.gather(*(enter_and_leave(limiter) for _ in range(20))))
        gc.collect()
        left = [one for one in gc.get_objects() if isinstance(one, Permit) and name in repr(one)]
        assert (left, queue_of(limiter)._inside._entered) == ([], {})
        cause = queue_of(limiter)._absence.cause
        # A traceback would keep all that the caller has.
        assert (cause.__traceback__, cause.__cause__, cause.__context__) == (None, None, None)


async def enter_and_leave(limiter: Limiter) -> None:
    async with limiter:
        pass
    async with limiter.acquire():
        pass


def test_a_memory_store_is_never_away(name: str) -> None:
    """The memory store accepts `on_store_error`, which changes nothing."""
    for options in ({"on_store_error": "open"}, {"on_store_error": "local", "processes": 3}):
        limiter = Limiter(name, Concurrency(1), **options)  # type: ignore[arg-type]  # options by name
        with limiter:
            assert not limiter.try_acquire()
        with (plain := Limiter(f"{name}-plain", Concurrency(1))):
            assert type(queue_of(limiter)) is type(queue_of(plain))


async def test_a_share_is_resumed_and_reset_without_the_store(name: str, gone: Server) -> None:
    """Given a share that is paused and spent, when it is resumed and reset, then it grants calls
    again. Without limits all calls pass throughout.
    """
    limiter, free = local(name, gone, Rate(4, per=AGES)), opened(name, gone, Rate(4, per=AGES))
    for _ in range(2):
        assert await soon(limiter.atry_acquire())
    for each in (limiter, free):
        each.pause(60)
        for undo in (each.aresume, each.areset):
            with pytest.raises(StoreError):
                await soon(undo())
        each.resume()
        each.reset()

    assert [bool(await soon(limiter.atry_acquire())) for _ in range(3)] == [True, True, False]
    assert await soon(free.atry_acquire())


def test_a_limiter_that_has_asked_no_store_is_not_without_it(name: str) -> None:
    """An attached limiter has no limits before its first use."""
    url = f"redis://127.0.0.1:{dead_port()}"
    limiter = Limiter.attach(name, store=url, on_store_error="open")

    assert "without it" not in repr(limiter)
    limiter.acquire_sync().release()
    assert "at present without it: calls pass without limits" in repr(limiter)
