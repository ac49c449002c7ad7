"""The crowd: tasks and threads that wait for concurrency alone, and whatever may happen to them
(S1, S6, S7, F4 to F10, F18).

In memory such a line hands its places from hand to hand, without a lock and without the gate, as
long as nobody asks for anything else. What is told here must not differ from a line that asks the
gate each time.
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
from headgate.stores.memory.queue import MemoryStore
from tests.crowds import Visitors, assert_all_free, declared, nothing, settled
from tests.machine import scaled
from tests.processes import finished
from tests.stepping import WAYS, cancelled_at
from tests.world import World, held


def told(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The coroutine function `story`, told in memory and in virtual time."""

    def test(memory: World, **others: Any) -> None:
        memory.run(story(memory, **others))

    test.__doc__ = story.__doc__
    return test


# In order -----------------------------------------------------------------------------------------


def a_try(limiter: Limiter) -> None:
    """T8: a try is refused, and free."""
    assert not limiter.try_acquire()


@pytest.mark.parametrize(
    "look", [nothing, Limiter.status, repr, a_try], ids=["nobody", "status", "repr", "try"]
)
def test_a_crowd_comes_in_in_order_whoever_looks_at_it(
    memory: World, look: Callable[[Limiter], object]
) -> None:
    """S6: looking at a crowd changes nothing in it."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(2))
        visitors = Visitors(limiter)
        visitors.come(*range(10))
        await settled()
        look(limiter)
        visitors.come(*range(10, 15))
        await settled()
        look(limiter)
        await visitors.let_out()

        assert visitors.order == list(range(15))
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
def test_whoever_asks_for_more_keeps_the_place_of_its_arrival(
    memory: World, kind: str, position: int
) -> None:
    """S6: a permit, a weight, a patience: whatever is asked for, the queue is one."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1), Concurrency(2, unit="mb"))
        visitors = Visitors(limiter)
        visitors.come("holder")
        await settled()
        visitors.come(*range(position))
        await settled()
        visitors.come("asks", by=KINDS[kind](limiter))
        await settled()
        visitors.come(*range(position, 4))
        await settled()
        assert limiter.status().waiting == 5
        await visitors.let_out()

        assert visitors.order == ["holder", *range(position), "asks", *range(position, 4)]
        assert_all_free(limiter)

    memory.run(story())


@told
async def test_a_full_queue_counts_the_crowd(memory: World) -> None:
    """S9: two tasks of the crowd wait; one who may be third at most is refused, and nothing of it
    stays (T8).
    """
    limiter = memory.limiter(Concurrency(1))
    strict = memory.limiter(Concurrency(1), max_waiters=2)
    visitors = Visitors(limiter)
    visitors.come("holder", 0, 1)
    await settled()

    with pytest.raises(QueueFullError):
        await strict.acquire()
    await visitors.let_out()

    assert visitors.order == ["holder", 0, 1]
    assert_all_free(limiter)


@told
async def test_who_may_not_wait_finds_the_place_that_was_just_left(memory: World) -> None:
    """T8, S7: what goes from hand to hand is free for those who must ask, too."""
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


@told
async def test_one_of_little_patience_leaves_the_crowd_as_it_was(memory: World) -> None:
    """S6, T4: it waits among them, gives up at its time, and those behind it move forward."""
    limiter = memory.limiter(Concurrency(1))
    visitors = Visitors(limiter)
    visitors.come("holder", 0)
    await settled()
    visitors.come("impatient", by=limiter.acquire(max_sleep=2))
    await settled()
    visitors.come(1, 2)
    await asyncio.sleep(3)

    with pytest.raises(MaxSleepExceededError):
        await visitors.tasks["impatient"]
    await visitors.let_out()
    assert visitors.order == ["holder", 0, 1, 2]
    assert_all_free(limiter)


@pytest.mark.exact
@told
async def test_a_permit_says_how_long_it_was_waited_for_though_it_came_from_hand_to_hand(
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


@told
async def test_a_permit_that_is_dropped_goes_to_the_crowd(memory: World) -> None:
    """F6, L2: its holder forgot it; the first of those who wait comes in."""
    limiter = memory.limiter(Concurrency(1))
    permit = await limiter.acquire()
    visitors = Visitors(limiter)
    visitors.come(0, 1)
    await settled()

    with pytest.warns(ResourceWarning, match="dropped"):
        del permit
    await visitors.let_out()

    assert visitors.order == [0, 1]
    assert_all_free(limiter)


# Changed limits -----------------------------------------------------------------------------------


@told
async def test_more_capacity_lets_as_many_more_in(memory: World) -> None:
    """L2, S6: five wait for one place; now there are three."""
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", *range(5))
    await settled()

    limiter = declared(memory.limiter(Concurrency(3)))
    await settled()

    assert visitors.order == ["holder", 0, 1]
    await visitors.let_out()
    assert visitors.order == ["holder", *range(5)]
    assert_all_free(limiter)


@told
async def test_after_a_cut_nobody_comes_in_until_enough_have_left(memory: World) -> None:
    """S1, S6: three are inside when the capacity becomes one; the first two that leave make room
    for nobody.
    """
    visitors = Visitors(memory.limiter(Concurrency(3)))
    visitors.come("a", "b", "c", *range(3))
    await settled()

    limiter = declared(memory.limiter(Concurrency(1)))
    for leaver, there in (("a", 2), ("b", 1)):
        visitors.inside[leaver].set()
        await settled()
        visitors.come(f"after {leaver}")
        await settled()
        assert len(visitors.inside) == there
    await visitors.let_out()

    assert visitors.order == ["a", "b", "c", *range(3), "after a", "after b"]
    assert_all_free(limiter)


@pytest.mark.exact
@told
async def test_a_crowd_under_a_rate_goes_on_at_its_pace(memory: World) -> None:
    """T1, T3, S6: Concurrency becomes a Rate while five wait: one a second, and the holder's
    leaving lets nobody in.
    """
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", *range(5))
    await settled()

    limiter = declared(memory.limiter(Rate(1, per=1, initial=0)))
    visitors.inside["holder"].set()
    for seconds in range(1, 6):
        await asyncio.sleep(0.5)
        before = list(visitors.order)
        await asyncio.sleep(0.5)
        assert (before, visitors.order) == (
            ["holder", *range(seconds - 1)],
            ["holder", *range(seconds)],
        )

    await visitors.let_out()
    assert limiter.status().waiting == 0


@told
async def test_a_queue_for_a_rate_becomes_a_crowd(memory: World) -> None:
    """S1, S6: three wait for an hour's tokens when the rate is replaced by two places."""
    visitors = Visitors(memory.limiter(Rate(1, per=3600, initial=0)))
    visitors.come(0, 1, 2)
    await settled()

    limiter = declared(memory.limiter(Concurrency(2)))
    await settled()
    visitors.come(3)
    await settled()

    assert visitors.order == [0, 1]
    await visitors.let_out()
    assert visitors.order == [0, 1, 2, 3]
    assert_all_free(limiter)


@told
async def test_a_rate_that_is_added_paces_the_crowd_and_a_place_is_still_needed(
    memory: World,
) -> None:
    """S1, T1, T8: both are needed from now on, and whoever was inside holds his place as before."""
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", 0, 1)
    await settled()

    limiter = declared(memory.limiter(Concurrency(1), Rate(1, per=10, initial=0)))
    await asyncio.sleep(30)
    assert visitors.order == ["holder"]
    visitors.inside["holder"].set()
    await settled()
    assert visitors.order == ["holder", 0]
    visitors.inside[0].set()
    await asyncio.sleep(9)
    assert visitors.order == ["holder", 0]
    await asyncio.sleep(1)

    assert visitors.order == ["holder", 0, 1]
    await visitors.let_out()
    assert_all_free(limiter)


# Giving up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked_at", [False, True], ids=["crowd", "queue"])
@pytest.mark.parametrize("way", WAYS)
def test_who_gives_up_at_any_suspension_leaves_the_others_as_they_were(
    memory: World, way: str, looked_at: bool
) -> None:
    """S6, S7, L4, F1, F5: in the middle of a crowd, wherever and however it is cancelled."""

    async def story(at: int) -> bool:
        limiter = Limiter(f"{memory.name}-{at}", Concurrency(1), store=memory.store)
        visitors = Visitors(limiter)
        visitors.come("holder", 0, 1)
        await settled()
        middle = asyncio.create_task(cancelled_at(enters(limiter), way, at))
        await settled()
        visitors.come(2, 3)
        await settled()
        if looked_at:
            limiter.status()
        await visitors.let_out()
        assert visitors.order == ["holder", 0, 1, 2, 3]
        assert_all_free(limiter)
        return await middle

    for at in count():
        if not memory.run(story(at)):
            break
    assert at > 0


async def enters(limiter: Limiter) -> None:
    async with limiter:
        await asyncio.sleep(0)


@pytest.mark.parametrize("looked_at", [False, True], ids=["crowd", "queue"])
def test_a_place_that_is_handed_to_one_who_gives_up_in_the_same_breath_goes_on(
    memory: World, looked_at: bool
) -> None:
    """F5, S7: released, cancelled, and not a step in between; then the next of all the rest."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1))
        await limiter.__aenter__()
        visitors = Visitors(limiter)
        visitors.come(*range(4))
        await settled()
        if looked_at:
            limiter.status()

        await limiter.__aexit__(None, None, None)
        visitors.tasks[0].cancel()
        visitors.tasks[1].cancel()
        await visitors.let_out()

        assert visitors.order == [2, 3]
        assert_all_free(limiter)

    memory.run(story())


@pytest.mark.parametrize("first", ["release", "timeout"])
def test_a_timeout_in_the_moment_of_the_release_is_one_or_the_other(
    memory: World, first: str
) -> None:
    """F4: at one instant of the clock, in both orders: it is inside and leaves, or it never was;
    the next one comes in.
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
        visitors = Visitors(limiter)
        await settled()
        visitors.come("next")
        if first == "timeout":
            await settled()
            loop.call_later(1, queue_of(limiter).leave)
        await asyncio.wait([waiter])
        await visitors.let_out()

        assert (waiter.exception() is None) == (inside == ["impatient"])
        assert visitors.order == ["next"]
        assert_all_free(limiter)

    memory.run(story())


@told
async def test_a_crowd_that_gives_up_backwards_is_gone_at_once(memory: World) -> None:
    """F18: who came last gives up first, thousands of times; nobody looks through all the others
    for it.
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
def test_a_clock_that_steps_back_keeps_nobody_out(
    memory: World, others: tuple[Concurrency, ...]
) -> None:
    """T6, L2: time is not what a place depends on; the limit beside it is used up, and none of an
    entry's business.
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
@told
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


# Lines that come and go ---------------------------------------------------------------------------


def test_an_idle_line_that_was_let_go_comes_back_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1, S6, T12: forgotten by its store while a limiter still has it; then a crowd comes, and
    others find the same line.
    """
    monkeypatch.setattr("headgate.stores.memory.queue.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = Limiter(name, Concurrency(1), store=store)
    Limiter(f"{name}-2", Concurrency(1), store=store)
    assert queue_of(limiter)._loose

    async def story() -> None:
        visitors = Visitors(limiter)
        visitors.come(*range(4))
        await settled()
        assert held(Limiter(name, Concurrency(1), store=store).status()) == 1
        await visitors.let_out()
        assert visitors.order == list(range(4))

    asyncio.run(story())
    assert_all_free(limiter)


def test_a_limiter_that_is_dropped_leaves_its_visitors_in_peace(name: str) -> None:
    """S7: nobody refers to the limiter but those inside and those who wait."""
    store = MemoryStore()

    async def story() -> None:
        visitors = Visitors(Limiter(name, Concurrency(1), store=store))
        visitors.come(*range(3))
        await settled()
        del visitors.limiter
        gc.collect()
        await visitors.let_out()
        assert visitors.order == [0, 1, 2]

    asyncio.run(story())
    assert_all_free(Limiter(name, Concurrency(1), store=store))


# Processes ----------------------------------------------------------------------------------------


def test_a_fork_in_the_middle_of_a_crowd_is_two_lines(name: str) -> None:
    """F10, S1, S7: what the parent holds and who waits there is the parent's; the child has all
    places, and one more for nobody.
    """
    lines = finished("fork_crowd", name).splitlines()

    assert lines == [
        "child sees 0 used, 0 waiting",
        "child is inside, and another could come in: False",
        "child ends with 0 used",
        "parent [0, 1, 2]",
    ]
