"""Local waiters: tasks and threads that wait for concurrency alone, and everything that may happen
to them (S1, S6, S7, F4 to F10, F18).

In memory such a queue hands its permits over without a lock and without the gate, as long as no
caller asks for anything else. These tests find no difference from a queue that asks the gate each
time.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from itertools import count, pairwise
from typing import Any

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, QueueFullError, Rate
from headgate.internals import queue_of
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import Callers, assert_all_free, declared, do_nothing, settled
from tests.machine import scaled
from tests.processes import finished
from tests.stepping import WAYS, cancelled_at
from tests.world import World, held


def runs_in_memory(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The coroutine function `story`, run in memory and in virtual time."""

    def test(memory: World, **others: Any) -> None:
        memory.run(story(memory, **others))

    test.__doc__ = story.__doc__
    return test


# In order -----------------------------------------------------------------------------------------


def a_try(limiter: Limiter) -> None:
    """T8: a try is refused, and costs nothing."""
    assert not limiter.try_acquire()


@pytest.mark.parametrize(
    "look", [do_nothing, Limiter.status, repr, a_try], ids=["no look", "status", "repr", "try"]
)
def test_local_waiters_enter_in_order_whatever_looks_at_the_queue(
    memory: World, look: Callable[[Limiter], object]
) -> None:
    """S6: looking at a queue changes nothing in it."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(2))
        callers = Callers(limiter)
        callers.arrive(*range(10))
        await settled()
        look(limiter)
        callers.arrive(*range(10, 15))
        await settled()
        look(limiter)
        await callers.release_all()

        assert callers.order == list(range(15))
        assert_all_free(limiter)

    memory.run(story())


KINDS: dict[str, Callable[[Limiter], Any]] = {
    "permit": lambda limiter: limiter.acquire(),
    "weighted": lambda limiter: limiter.acquire(mb=2),
    "max_sleep": lambda limiter: limiter.acquire(max_sleep=60),
    "entry": lambda limiter: limiter,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("position", [0, 2])
def test_a_caller_with_other_requests_keeps_its_place_among_local_waiters(
    memory: World, kind: str, position: int
) -> None:
    """S6: a permit, a weight or a time limit: the queue is one for all requests."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1), Concurrency(2, unit="mb"))
        callers = Callers(limiter)
        callers.arrive("holder")
        await settled()
        callers.arrive(*range(position))
        await settled()
        callers.arrive("asks", by=KINDS[kind](limiter))
        await settled()
        callers.arrive(*range(position, 4))
        await settled()
        assert limiter.status().waiting == 5
        await callers.release_all()

        assert callers.order == ["holder", *range(position), "asks", *range(position, 4)]
        assert_all_free(limiter)

    memory.run(story())


@runs_in_memory
async def test_a_full_queue_counts_local_waiters(memory: World) -> None:
    """S9: two local waiters wait. A caller that may be the third at most is refused, and leaves no
    trace (T8).
    """
    limiter = memory.limiter(Concurrency(1))
    strict = memory.limiter(Concurrency(1), max_waiters=2)
    callers = Callers(limiter)
    callers.arrive("holder", 0, 1)
    await settled()

    with pytest.raises(QueueFullError):
        await strict.acquire()
    await callers.release_all()

    assert callers.order == ["holder", 0, 1]
    assert_all_free(limiter)


@runs_in_memory
async def test_a_caller_that_may_not_wait_finds_a_permit_that_was_just_released(
    memory: World,
) -> None:
    """T8, S7: a permit that is handed over locally is free for callers that must ask the gate,
    too.
    """
    limiter = memory.limiter(Concurrency(1), max_waiters=0)
    async with limiter:
        pass

    async with limiter.acquire(max_sleep=1):
        assert not limiter.try_acquire()
    async with limiter:
        pass
    permit = limiter.try_acquire()
    assert permit
    permit.release()
    assert_all_free(limiter)


@runs_in_memory
async def test_a_waiter_that_times_out_leaves_the_other_waiters_in_order(memory: World) -> None:
    """S6, T4: it waits among them and gives up at its time, and those behind it move forward."""
    limiter = memory.limiter(Concurrency(1))
    callers = Callers(limiter)
    callers.arrive("holder", 0)
    await settled()
    callers.arrive("impatient", by=limiter.acquire(max_sleep=2))
    await settled()
    callers.arrive(1, 2)
    await asyncio.sleep(3)

    with pytest.raises(MaxSleepExceededError):
        await callers.tasks["impatient"]
    await callers.release_all()
    assert callers.order == ["holder", 0, 1, 2]
    assert_all_free(limiter)


@pytest.mark.exact
@runs_in_memory
async def test_a_permit_that_was_handed_over_locally_says_how_long_its_caller_waited(
    memory: World,
) -> None:
    limiter = memory.limiter(Concurrency(1))
    async with limiter:
        asked = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(10)

    permit = await asked
    assert permit.waited == 10
    permit.release()
    assert_all_free(limiter)


@runs_in_memory
async def test_a_dropped_permit_goes_to_the_next_local_waiter(memory: World) -> None:
    """F6, L2: its holder dropped it, and the first waiter enters."""
    limiter = memory.limiter(Concurrency(1))
    permit = await limiter.acquire()
    callers = Callers(limiter)
    callers.arrive(0, 1)
    await settled()

    with pytest.warns(ResourceWarning, match="dropped"):
        del permit
    await callers.release_all()

    assert callers.order == [0, 1]
    assert_all_free(limiter)


# Changed limits -----------------------------------------------------------------------------------


@runs_in_memory
async def test_more_capacity_grants_as_many_more_local_waiters(memory: World) -> None:
    """L2, S6: five callers wait for one permit; now there are three."""
    callers = Callers(memory.limiter(Concurrency(1)))
    callers.arrive("holder", *range(5))
    await settled()

    limiter = declared(memory.limiter(Concurrency(3)))
    await settled()

    assert callers.order == ["holder", 0, 1]
    await callers.release_all()
    assert callers.order == ["holder", *range(5)]
    assert_all_free(limiter)


@runs_in_memory
async def test_after_a_lower_capacity_no_waiter_enters_until_enough_holders_have_left(
    memory: World,
) -> None:
    """S1, S6: three callers are inside when the capacity becomes one. When the first two leave, no
    waiter enters.
    """
    callers = Callers(memory.limiter(Concurrency(3)))
    callers.arrive("a", "b", "c", *range(3))
    await settled()

    limiter = declared(memory.limiter(Concurrency(1)))
    for leaver, there in (("a", 2), ("b", 1)):
        callers.inside[leaver].set()
        await settled()
        callers.arrive(f"after {leaver}")
        await settled()
        assert len(callers.inside) == there
    await callers.release_all()

    assert callers.order == ["a", "b", "c", *range(3), "after a", "after b"]
    assert_all_free(limiter)


@pytest.mark.exact
@runs_in_memory
async def test_local_waiters_follow_a_rate_that_replaces_their_concurrency(memory: World) -> None:
    """T1, T3, S6: Concurrency becomes a Rate while five callers wait. One enters each second, and
    none when the holder leaves.
    """
    callers = Callers(memory.limiter(Concurrency(1)))
    callers.arrive("holder", *range(5))
    await settled()

    limiter = declared(memory.limiter(Rate(1, per=1, initial=0)))
    callers.inside["holder"].set()
    for seconds in range(1, 6):
        await asyncio.sleep(0.5)
        before = list(callers.order)
        await asyncio.sleep(0.5)
        assert (before, callers.order) == (
            ["holder", *range(seconds - 1)],
            ["holder", *range(seconds)],
        )

    await callers.release_all()
    assert limiter.status().waiting == 0


@runs_in_memory
async def test_waiters_for_a_rate_enter_when_concurrency_replaces_it(memory: World) -> None:
    """S1, S6: three callers wait for an hour's tokens when two permits replace the rate."""
    callers = Callers(memory.limiter(Rate(1, per=3600, initial=0)))
    callers.arrive(0, 1, 2)
    await settled()

    limiter = declared(memory.limiter(Concurrency(2)))
    await settled()
    callers.arrive(3)
    await settled()

    assert callers.order == [0, 1]
    await callers.release_all()
    assert callers.order == [0, 1, 2, 3]
    assert_all_free(limiter)


@runs_in_memory
async def test_local_waiters_need_a_permit_and_a_token_when_a_rate_is_added(
    memory: World,
) -> None:
    """S1, T1, T8: callers need both from now on, and the holder keeps its permit as before."""
    callers = Callers(memory.limiter(Concurrency(1)))
    callers.arrive("holder", 0, 1)
    await settled()

    limiter = declared(memory.limiter(Concurrency(1), Rate(1, per=10, initial=0)))
    await asyncio.sleep(30)
    assert callers.order == ["holder"]
    callers.inside["holder"].set()
    await settled()
    assert callers.order == ["holder", 0]
    callers.inside[0].set()
    await asyncio.sleep(9)
    assert callers.order == ["holder", 0]
    await asyncio.sleep(1)

    assert callers.order == ["holder", 0, 1]
    await callers.release_all()
    assert_all_free(limiter)


# Giving up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked_at", [False, True], ids=["local waiters", "queue"])
@pytest.mark.parametrize("way", WAYS)
def test_a_waiter_that_gives_up_at_any_suspension_leaves_the_others_in_order(
    memory: World, way: str, looked_at: bool
) -> None:
    """S6, S7, L4, F1, F5: in the middle of the local waiters, at each suspension and in each way of
    cancelling.
    """

    async def story(at: int) -> bool:
        limiter = Limiter(f"{memory.name}-{at}", Concurrency(1), store=memory.store)
        callers = Callers(limiter)
        callers.arrive("holder", 0, 1)
        await settled()
        middle = asyncio.create_task(cancelled_at(enters(limiter), way, at))
        await settled()
        callers.arrive(2, 3)
        await settled()
        if looked_at:
            limiter.status()
        await callers.release_all()
        assert callers.order == ["holder", 0, 1, 2, 3]
        assert_all_free(limiter)
        return await middle

    for at in count():
        if not memory.run(story(at)):
            break
    assert at > 0


async def enters(limiter: Limiter) -> None:
    async with limiter:
        await asyncio.sleep(0)


@pytest.mark.parametrize("looked_at", [False, True], ids=["local waiters", "queue"])
def test_a_permit_for_a_waiter_that_is_cancelled_in_the_same_turn_goes_to_the_next(
    memory: World, looked_at: bool
) -> None:
    """F5, S7: a release and a cancellation without a step in between. The next live waiters
    enter.
    """

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1))
        await limiter.__aenter__()
        callers = Callers(limiter)
        callers.arrive(*range(4))
        await settled()
        if looked_at:
            limiter.status()

        await limiter.__aexit__(None, None, None)
        callers.tasks[0].cancel()
        callers.tasks[1].cancel()
        await callers.release_all()

        assert callers.order == [2, 3]
        assert_all_free(limiter)

    memory.run(story())


@pytest.mark.parametrize("first", ["release", "timeout"])
def test_a_timeout_at_the_moment_of_the_release_loses_no_permit(memory: World, first: str) -> None:
    """F4: at one instant of the clock, in both orders. The caller is inside and leaves, or it never
    was; the next one enters.
    """

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1))
        loop = asyncio.get_running_loop()
        inside: list[str] = []
        await limiter.__aenter__()

        async def impatient() -> None:
            async with asyncio.timeout(1), limiter:
                inside.append("impatient")

        if first == "release":
            loop.call_later(1, queue_of(limiter).leave)
        waiter = asyncio.create_task(impatient())
        callers = Callers(limiter)
        await settled()
        callers.arrive("next")
        if first == "timeout":
            await settled()
            loop.call_later(1, queue_of(limiter).leave)
        await asyncio.wait([waiter])
        await callers.release_all()

        assert (waiter.exception() is None) == (inside == ["impatient"])
        assert callers.order == ["next"]
        assert_all_free(limiter)

    memory.run(story())


@runs_in_memory
async def test_thousands_of_waiters_that_give_up_backwards_leave_at_once(memory: World) -> None:
    """F18: the last callers give up first, thousands of times. Each time the queue does not search
    through all the others.
    """
    limiter = memory.limiter(Concurrency(1))
    async with limiter:
        tasks = [asyncio.create_task(enters(limiter)) for _ in range(20_000)]
        await asyncio.sleep(0)
        for task in reversed(tasks):
            task.cancel()
        start = time.process_time()
        await asyncio.wait(tasks)
        assert time.process_time() - start < scaled(1)

    assert_all_free(limiter)


# The clock ----------------------------------------------------------------------------------------


@pytest.mark.exact
@pytest.mark.parametrize(
    "others", [(), (Concurrency(2, unit="mb"),)], ids=["alone", "behind-another-limit"]
)
def test_a_clock_that_steps_back_keeps_no_caller_from_a_permit(
    memory: World, others: tuple[Concurrency, ...]
) -> None:
    """T6, L2: a permit does not depend on the time. The limit beside it is used up, and an entry
    does not need it.
    """

    async def story() -> None:
        limiter = memory.limiter(*others, Concurrency(2))
        permit = await limiter.acquire(**{"mb": 2} if others else {})
        memory.clock.moment -= 3_600_000_000

        async with asyncio.timeout(60), limiter:
            assert held(limiter.status()) == 2 + len(others) * 2

        permit.release()
        assert_all_free(limiter)

    memory.run(story())


@pytest.mark.exact
@runs_in_memory
async def test_a_clock_that_steps_back_grants_nothing_for_an_earlier_moment(memory: World) -> None:
    """T3, T6: the store's time stands still until the clock has caught up."""
    limiter = memory.limiter(Rate(2, per=1), Concurrency(2))
    moments = []
    for _ in range(4):
        permit = await limiter.acquire()
        moments.append(permit.t)
        permit.release()
        memory.clock.moment -= 250_000

    assert [after - before for before, after in pairwise(moments)] == [0, 500_000, 500_000]


# Queues that come and go --------------------------------------------------------------------------


def test_an_idle_queue_that_its_store_forgot_is_shared_again_when_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S6, T12: the store has forgotten the queue while a limiter still has it. Then local
    waiters come, and other limiters find the same queue.
    """
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = Limiter(name, Concurrency(1), store=store)
    Limiter(f"{name}-2", Concurrency(1), store=store)
    assert queue_of(limiter)._state._evicted

    async def story() -> None:
        callers = Callers(limiter)
        callers.arrive(*range(4))
        await settled()
        assert held(Limiter(name, Concurrency(1), store=store).status()) == 1
        await callers.release_all()
        assert callers.order == list(range(4))

    asyncio.run(story())
    assert_all_free(limiter)


def test_callers_of_a_dropped_limiter_go_on(name: str) -> None:
    """S7: only callers that are inside or wait refer to the limiter."""
    store = MemoryStore()

    async def story() -> None:
        callers = Callers(Limiter(name, Concurrency(1), store=store))
        callers.arrive(*range(3))
        await settled()
        del callers.limiter
        gc.collect()
        await callers.release_all()
        assert callers.order == [0, 1, 2]

    asyncio.run(story())
    assert_all_free(Limiter(name, Concurrency(1), store=store))


# Processes ----------------------------------------------------------------------------------------


def test_a_fork_while_callers_wait_makes_two_queues(name: str) -> None:
    """F10, S1, S7: the permits and the waiters of the parent stay the parent's. The child has all
    permits of its own, and not one more.
    """
    lines = finished("fork_local_waiters", name).splitlines()

    assert lines == [
        "child sees 0 used, 0 waiting",
        "child is inside, and another could come in: False",
        "child ends with 0 used",
        "parent [0, 1, 2]",
    ]
