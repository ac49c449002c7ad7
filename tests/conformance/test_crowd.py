"""The crowd: tasks and threads that wait for concurrency alone, and whatever may happen to them (S1, S6, S7, F4 to F10, F18).

In memory such a line hands its places from hand to hand, without a lock and without the gate, as long as nobody asks for anything
else. What is told here must not differ from a line that asks the gate each time. Stories of several loops run in one thread: each
loop goes on when it is told to, so that what meets what is no matter of chance.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, QueueFullError, Rate
from headgate.stores.memory import MemoryStore
from tests.processes import finished
from tests.stepping import WAYS, cancelled_at
from tests.world import World, held


class Visitors:
    """Who waits, who is inside, and in which order they came in; each stays until it is let out."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.order: list[object] = []
        self.inside: dict[object, asyncio.Event] = {}
        self.tasks: dict[object, asyncio.Task[None]] = {}

    def come(self, *names: object, by: Any = None) -> None:
        """Each in a task of its own: into the limiter, or by whatever `by` says."""
        for name in names:
            self.tasks[name] = asyncio.get_running_loop().create_task(self._visit(name, self.limiter if by is None else by))

    async def _visit(self, name: object, entrance: Any) -> None:
        async with entrance:
            self.order.append(name)
            out = self.inside[name] = asyncio.Event()
            try:
                await out.wait()
            finally:
                del self.inside[name]

    async def let_out(self) -> None:
        """Whoever is inside goes, one after another, until nobody comes in any more."""
        await settled()
        while self.inside:
            next(iter(self.inside.values())).set()
            await settled()


async def settled() -> None:
    """Whatever can happen without time has happened."""
    for _ in range(10):
        await asyncio.sleep(0)


def assert_all_free(limiter: Limiter) -> None:
    """S7, L6."""
    status = limiter.status()
    assert (held(status), status.waiting) == (0, 0)


def told(story: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The coroutine function `story`, told in memory and in virtual time."""

    def test(memory: World, **others: Any) -> None:
        memory.run(story(memory, **others))

    test.__doc__ = story.__doc__
    return test


# In order ------------------------------------------------------------------------------------------------------------------------


def nothing(limiter: Limiter) -> None:
    """Nobody looks."""


def a_try(limiter: Limiter) -> None:
    """T8: a try is refused, and free."""
    assert not limiter.try_acquire()


@pytest.mark.parametrize("look", [nothing, Limiter.status, repr, a_try], ids=["nobody", "status", "repr", "try"])
def test_a_crowd_comes_in_in_order_whoever_looks_at_it(memory: World, look: Callable[[Limiter], object]) -> None:
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
def test_whoever_asks_for_more_keeps_the_place_of_its_arrival(memory: World, kind: str, position: int) -> None:
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
    """S9: two tasks of the crowd wait; one who may be third at most is refused, and nothing of it stays (T8)."""
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


@told
async def test_a_permit_says_how_long_it_was_waited_for_though_it_came_from_hand_to_hand(memory: World) -> None:
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


# Changed limits ------------------------------------------------------------------------------------------------------------------


@told
async def test_more_capacity_lets_as_many_more_in(memory: World) -> None:
    """L2, S6: five wait for one place; now there are three."""
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", *range(5))
    await settled()

    limiter = memory.limiter(Concurrency(3))
    await settled()

    assert visitors.order == ["holder", 0, 1]
    await visitors.let_out()
    assert visitors.order == ["holder", *range(5)]
    assert_all_free(limiter)


@told
async def test_after_a_cut_nobody_comes_in_until_enough_have_left(memory: World) -> None:
    """S1, S6: three are inside when the capacity becomes one; the first two that leave make room for nobody."""
    visitors = Visitors(memory.limiter(Concurrency(3)))
    visitors.come("a", "b", "c", *range(3))
    await settled()

    limiter = memory.limiter(Concurrency(1))
    for leaver, there in (("a", 2), ("b", 1)):
        visitors.inside[leaver].set()
        await settled()
        visitors.come(f"after {leaver}")
        await settled()
        assert len(visitors.inside) == there
    await visitors.let_out()

    assert visitors.order == ["a", "b", "c", *range(3), "after a", "after b"]
    assert_all_free(limiter)


@told
async def test_a_crowd_under_a_rate_goes_on_at_its_pace(memory: World) -> None:
    """T1, T3, S6: Concurrency becomes a Rate while five wait: one a second, and the holder's leaving lets nobody in."""
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", *range(5))
    await settled()

    limiter = memory.limiter(Rate(1, per=1, initial=0))
    visitors.inside["holder"].set()
    for seconds in range(1, 6):
        await asyncio.sleep(0.5)
        before = list(visitors.order)
        await asyncio.sleep(0.5)
        assert (before, visitors.order) == (["holder", *range(seconds - 1)], ["holder", *range(seconds)])

    await visitors.let_out()
    assert limiter.status().waiting == 0


@told
async def test_a_queue_for_a_rate_becomes_a_crowd(memory: World) -> None:
    """S1, S6: three wait for an hour's tokens when the rate is replaced by two places."""
    visitors = Visitors(memory.limiter(Rate(1, per=3600, initial=0)))
    visitors.come(0, 1, 2)
    await settled()

    limiter = memory.limiter(Concurrency(2))
    await settled()
    visitors.come(3)
    await settled()

    assert visitors.order == [0, 1]
    await visitors.let_out()
    assert visitors.order == [0, 1, 2, 3]
    assert_all_free(limiter)


@told
async def test_a_rate_that_is_added_paces_the_crowd_and_a_place_is_still_needed(memory: World) -> None:
    """S1, T1, T8: both are needed from now on, and whoever was inside holds his place as before."""
    visitors = Visitors(memory.limiter(Concurrency(1)))
    visitors.come("holder", 0, 1)
    await settled()

    limiter = memory.limiter(Concurrency(1), Rate(1, per=10, initial=0))
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


# Giving up -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looked_at", [False, True], ids=["crowd", "queue"])
@pytest.mark.parametrize("way", WAYS)
def test_who_gives_up_at_any_suspension_leaves_the_others_as_they_were(memory: World, way: str, looked_at: bool) -> None:
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
def test_a_place_that_is_handed_to_one_who_gives_up_in_the_same_breath_goes_on(memory: World, looked_at: bool) -> None:
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
def test_a_timeout_in_the_moment_of_the_release_is_one_or_the_other(memory: World, first: str) -> None:
    """F4: at one instant of the clock, in both orders: it is inside and leaves, or it never was; the next one comes in."""

    async def story() -> None:
        limiter = memory.limiter(Concurrency(1))
        loop = asyncio.get_running_loop()
        inside: list[str] = []
        await limiter.__aenter__()

        async def impatient() -> None:
            async with asyncio.timeout(1), limiter:
                inside.append("impatient")

        if first == "release":
            loop.call_later(1, limiter._line.leave)
        waiter = asyncio.create_task(impatient())
        visitors = Visitors(limiter)
        await settled()
        visitors.come("next")
        if first == "timeout":
            await settled()
            loop.call_later(1, limiter._line.leave)
        await asyncio.wait([waiter])
        await visitors.let_out()

        assert (waiter.exception() is None) == (inside == ["impatient"])
        assert visitors.order == ["next"]
        assert_all_free(limiter)

    memory.run(story())


@told
async def test_a_crowd_that_gives_up_backwards_is_gone_at_once(memory: World) -> None:
    """F18: who came last gives up first, thousands of times; nobody looks through all the others for it."""
    limiter = memory.limiter(Concurrency(1))
    async with limiter:
        tasks = [asyncio.create_task(enters(limiter)) for _ in range(20_000)]
        await asyncio.sleep(0)
        for task in reversed(tasks):
            task.cancel()
        start = time.process_time()
        await asyncio.wait(tasks)
        assert time.process_time() - start < 1

    assert_all_free(limiter)


# The clock -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(), (Concurrency(2, unit="mb"),)], ids=["alone", "behind-another-limit"])
def test_a_clock_that_steps_back_keeps_nobody_out(memory: World, others: tuple[Concurrency, ...]) -> None:
    """T6, L2: time is not what a place depends on; the limit beside it is used up, and none of an entry's business."""

    async def story() -> None:
        limiter = memory.limiter(*others, Concurrency(2))
        permit = await limiter.acquire(**{"mb": 2} if others else {})
        memory.clock.moment -= 3_600_000_000

        async with asyncio.timeout(60), limiter:
            assert held(limiter.status()) == 2 + len(others) * 2

        permit.release()
        assert_all_free(limiter)

    memory.run(story())


# Loops of their own --------------------------------------------------------------------------------------------------------------


class Elsewhere:
    """Another event loop of this thread, which goes on when it is told to."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.go_on()
        return task

    def go_on(self) -> None:
        self.loop.run_until_complete(settled())

    def end(self) -> None:
        """As `asyncio.run` ends: all that is left is cancelled and waited for."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.go_on()
        self.loop.close()


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    other = Elsewhere()
    yield other
    other.end()


async def comes(limiter: Limiter, order: list[object], who: object) -> None:
    async with limiter:
        order.append(who)


def limiter_of_one(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), store=MemoryStore())


LOOKS = pytest.mark.parametrize("look", [nothing, Limiter.status], ids=["crowd", "queue"])


@LOOKS
def test_a_crowd_of_two_loops_is_one_queue(name: str, look: Callable[[Limiter], object]) -> None:
    """S6, L2: one of each loop in turn, and each hands over to the other loop's."""
    limiter = limiter_of_one(name)
    order: list[object] = []
    with elsewhere() as one, elsewhere() as two:
        with limiter:
            for number in range(6):
                (one, two)[number % 2].begin(comes(limiter, order, number))
            look(limiter)
        for _ in range(3):
            one.go_on()
            two.go_on()

    assert order == list(range(6))
    assert_all_free(limiter)


@LOOKS
def test_who_gives_up_while_its_place_is_on_the_way_passes_it_on(name: str, look: Callable[[Limiter], object]) -> None:
    """F4, S7: a thread has left to a task, which is cancelled before its loop hears of it."""
    limiter = limiter_of_one(name)
    order: list[object] = []
    with elsewhere() as one, elsewhere() as two:
        with limiter:
            first = one.begin(comes(limiter, order, "first"))
            one.begin(comes(limiter, order, "second"))
            two.begin(comes(limiter, order, "third"))
            look(limiter)
        first.cancel()
        one.go_on()
        two.go_on()

    assert order == ["second", "third"]
    assert_all_free(limiter)


@LOOKS
def test_waiters_of_a_closed_loop_stand_in_nobodys_way(name: str, look: Callable[[Limiter], object]) -> None:
    """F7, L2: the head's loop was closed without a word; whoever leaves, leaves to the next."""
    limiter = limiter_of_one(name)
    order: list[object] = []
    gone = Elsewhere()
    with elsewhere() as one:
        with limiter:
            tasks = [gone.begin(comes(limiter, order, "gone")) for _ in range(2)]
            one.begin(comes(limiter, order, "there"))
            look(limiter)
            gone.loop.close()
        one.go_on()
        assert order == ["there"]
        assert_all_free(limiter)

    with limiter:
        del tasks, gone
        gc.collect()  # nothing comes back a second time (S4)
        assert held(limiter.status()) == 1
    assert_all_free(limiter)


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("end", ["closed", "dropped"])
@LOOKS
def test_a_place_on_its_way_to_a_loop_that_ends_comes_back(name: str, look: Callable[[Limiter], object], end: str) -> None:
    """F7, S7: a thread has left to a task of a loop that never runs again."""
    limiter = limiter_of_one(name)
    gone = Elsewhere()
    with limiter:
        tasks = [gone.begin(comes(limiter, [], "gone"))]
        look(limiter)
    if end == "closed":
        gone.loop.close()
    del tasks, gone
    gc.collect()

    assert_all_free(limiter)


@LOOKS
def test_a_waiter_whose_loop_is_gone_gives_nothing_back_twice(name: str, look: Callable[[Limiter], object]) -> None:
    """S1, S4, F7: it could not be told of its place, so the place went on; when its task is collected, nothing more comes of it."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore(), max_sleep=60)
    gone = Elsewhere()
    with limiter:
        tasks = [gone.begin(comes(limiter, [], "gone"))]
        look(limiter)
        gone.loop.close()
    with limiter:
        del tasks, gone
        gc.collect()
        assert not limiter.try_acquire()

    assert_all_free(limiter)


def test_a_loop_that_is_closed_while_its_task_is_inside_keeps_no_place(name: str) -> None:
    """F6, F7, S7: the task is collected in the middle of its block, and its place goes to the next."""
    limiter = limiter_of_one(name)
    order: list[object] = []
    gone = Elsewhere()

    async def stays() -> None:
        async with limiter:
            await asyncio.Event().wait()

    tasks = [gone.begin(stays())]
    with elsewhere() as one:
        one.begin(comes(limiter, order, "next"))
        gone.loop.close()
        del tasks, gone
        gc.collect()
        one.go_on()

    assert order == ["next"]
    assert_all_free(limiter)


def test_a_cut_while_a_place_is_on_its_way_lets_nobody_in_for_it(name: str) -> None:
    """S1: two are inside, one leaves to a task, the capacity becomes one, the task gives up: there is one inside, and no more."""
    store = MemoryStore()
    limiter = Limiter(name, Concurrency(2), store=store)
    order: list[object] = []
    with elsewhere() as one, limiter:
        with limiter:
            first = one.begin(comes(limiter, order, "first"))
            one.begin(comes(limiter, order, "second"))
        limiter = Limiter(name, Concurrency(1), store=store)
        first.cancel()
        one.go_on()
        assert (order, held(limiter.status())) == ([], 1)

        limiter.__exit__(None, None, None)
        one.go_on()
        assert order == ["second"]
        limiter.__enter__()

    assert_all_free(limiter)


def test_one_loop_after_another_finds_the_line_as_it_should_be(name: str) -> None:
    """F9, S7: the first `asyncio.run` ends while a crowd waits; in the second a crowd goes through."""
    limiter = limiter_of_one(name)
    order: list[object] = []

    async def ends() -> None:
        await limiter.__aenter__()
        tasks = [asyncio.create_task(comes(limiter, order, "never")) for _ in range(3)]
        await settled()
        await limiter.__aexit__(None, None, None)
        assert not any(task.done() for task in tasks)

    async def goes_through() -> None:
        await asyncio.gather(*(comes(limiter, order, number) for number in range(3)))

    asyncio.run(ends())
    asyncio.run(goes_through())

    assert order[-3:] == [0, 1, 2]
    assert_all_free(limiter)


@LOOKS
def test_a_coroutine_that_is_closed_while_it_waits_was_never_there(name: str, look: Callable[[Limiter], object]) -> None:
    """F6: no task, no cancellation: it is begun by hand and dropped."""
    limiter = limiter_of_one(name)

    async def story() -> None:
        async with limiter:
            dropped = [limiter.__aenter__() for _ in range(2)]
            for coroutine in dropped:
                coroutine.send(None)
            visitors = Visitors(limiter)
            visitors.come("behind them")
            await settled()
            look(limiter)
            del coroutine
            dropped.clear()
        await visitors.let_out()
        assert visitors.order == ["behind them"]

    asyncio.run(story())
    assert_all_free(limiter)


# Lines that come and go ----------------------------------------------------------------------------------------------------------


def test_an_idle_line_that_was_let_go_comes_back_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1, S6, T12: forgotten by its store while a limiter still has it; then a crowd comes, and others find the same line."""
    monkeypatch.setattr("headgate.stores.memory.FEWEST_LINES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = Limiter(name, Concurrency(1), store=store)
    Limiter(f"{name}-2", Concurrency(1), store=store)
    assert limiter._line._loose

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


# Processes -----------------------------------------------------------------------------------------------------------------------


def test_a_fork_in_the_middle_of_a_crowd_is_two_lines(name: str) -> None:
    """F10, S1, S7: what the parent holds and who waits there is the parent's; the child has all places, and one more for nobody."""
    lines = finished("fork_crowd", name).splitlines()

    assert lines == [
        "child sees 0 used, 0 waiting",
        "child is inside, and another could come in: False",
        "child ends with 0 used",
        "parent [0, 1, 2]",
    ]
