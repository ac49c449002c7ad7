"""Local waiters of several loops: a permit that is on its way from one loop to another, and loops
that end (S1, S6, S7, F4, F7, F9).

All loops of a scenario run in one thread, and each goes on when the test says so. The order of
events is no matter of chance.
"""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from headgate import Concurrency, Limiter, Rate
from headgate.internals import queue_of
from headgate.stores.memory.queue import MemoryQueue
from headgate.stores.memory.store import MemoryStore
from headgate.stores.memory.waiters import Waiter
from tests.local_waiters import Callers, assert_all_free, declared, do_nothing, settled, waiters_of
from tests.world import World, held


class Elsewhere:
    """Another event loop of this thread, which goes on when the test says so."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()

    def begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.loop.create_task(work)
        self.go_on()
        return task

    def go_on(self) -> None:
        self.loop.run_until_complete(settled())

    def end(self) -> None:
        """As `asyncio.run` ends: cancel all remaining tasks and wait for them."""
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.go_on()
        self.loop.close()


@contextmanager
def elsewhere() -> Iterator[Elsewhere]:
    other = Elsewhere()
    yield other
    other.end()


async def comes(limiter: Limiter, order: list[object], caller: object) -> None:
    async with limiter:
        order.append(caller)


async def first_step(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` up to its first wait."""
    work.send(None)


def limiter_of_one(name: str) -> Limiter:
    return Limiter(name, Concurrency(1), store=MemoryStore())


LOOKS = pytest.mark.parametrize(
    "look", [do_nothing, Limiter.status], ids=["local waiters", "queue"]
)


@LOOKS
def test_local_waiters_of_two_loops_are_one_queue(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """S6, L2: waiters come from both loops by turns, and each hands over to the other loop's."""
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
def test_a_waiter_that_gives_up_while_its_permit_is_on_the_way_passes_it_on(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """F4, S7: a thread has handed its permit to a task, which is cancelled before its loop learns
    of it.
    """
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


def test_a_waiter_that_is_cancelled_just_when_its_permit_comes_gets_none(name: str) -> None:
    """F4, S7: a thread has found it at the head of the local waiters. It is gone before the thread
    hands the permit over.
    """
    limiter = limiter_of_one(name)
    order: list[object] = []

    class LocalWaiters(deque[Any]):
        def popleft(self) -> Any:
            head = super().popleft()
            if not first.cancelling():
                first.cancel()
                one.go_on()
            return head

    waiters_of(declared(limiter)).local.futures = LocalWaiters()
    queue_of(limiter)._build_fast_path()
    with elsewhere() as one:
        with limiter:
            first = one.begin(comes(limiter, order, "first"))
            one.begin(comes(limiter, order, "second"))
        one.go_on()

    assert order == ["second"]
    assert_all_free(limiter)


def test_a_coroutine_that_is_closed_just_when_its_permit_comes_gets_none(name: str) -> None:
    """F4, S7: the same with a coroutine that is driven by hand and ends without being cancelled. It
    happens twice.
    """
    limiter = limiter_of_one(name)
    driven: list[Coroutine[Any, Any, None]] = []

    class LocalWaiters(deque[Any]):
        def popleft(self) -> Any:
            head = super().popleft()
            if driven:
                driven.pop().close()
            return head

    waiters_of(declared(limiter)).local.futures = LocalWaiters()
    queue_of(limiter)._build_fast_path()
    with elsewhere() as one:
        for _ in range(2):
            with limiter:
                driven.append(limiter.__aenter__())
                one.loop.run_until_complete(first_step(driven[0]))
            assert_all_free(limiter)
    assert not waiters_of(limiter).local.migrated


@LOOKS
def test_waiters_of_a_closed_loop_delay_no_other_waiter(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """F7, L2: the head's loop was closed without cancelling it, so a caller that leaves hands over
    to the next waiter.
    """
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
        gc.collect()  # no permit comes back a second time (S4)
        assert held(limiter.status()) == 1
    assert_all_free(limiter)


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("end", ["closed", "dropped"])
@LOOKS
def test_a_permit_on_its_way_to_a_loop_that_ends_comes_back(
    name: str, look: Callable[[Limiter], object], end: str
) -> None:
    """F7, S7: a thread has handed its permit to a task of a loop that never runs again."""
    limiter = limiter_of_one(name)
    gone = Elsewhere(
        asyncio.SelectorEventLoop() if end == "dropped" else None
    )  # a uvloop that is dropped is never collected
    with limiter:
        tasks = [gone.begin(comes(limiter, [], "gone"))]
        look(limiter)
    if end == "closed":
        gone.loop.close()
    del tasks, gone
    gc.collect()

    assert_all_free(limiter)


@pytest.mark.filterwarnings("ignore:unclosed")
def test_a_permit_on_its_way_to_a_task_comes_back_when_its_own_loop_is_dropped(name: str) -> None:
    """F7, S7: a task has handed its permit to another task of its loop, which never runs again."""
    limiter = limiter_of_one(name)

    def hand_over_and_drop_the_loop() -> None:
        loop = asyncio.SelectorEventLoop()

        async def hand_over() -> None:
            async with limiter:
                loop.create_task(comes(limiter, [], "never"))
                await asyncio.sleep(0)
                loop.stop()

        loop.create_task(hand_over())
        loop.run_forever()

    hand_over_and_drop_the_loop()
    gc.collect()

    assert_all_free(limiter)


@LOOKS
def test_a_waiter_of_a_closed_loop_gives_no_permit_back_twice(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """S1, S4, F7: no notification could reach it, so the permit went on. When its task is
    collected, no second permit comes back.
    """
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


def test_a_loop_that_is_closed_while_its_task_is_inside_keeps_no_permit(name: str) -> None:
    """F6, F7, S7: the task is collected in the middle of its block, and its permit goes to the next
    waiter.
    """
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


def test_a_lower_capacity_while_a_permit_is_on_its_way_grants_no_waiter(name: str) -> None:
    """S1: given two callers inside, one leaves to a task, the capacity becomes one, and the task
    gives up. Then one caller is inside, and no more.
    """
    store = MemoryStore()
    limiter = Limiter(name, Concurrency(2), store=store)
    order: list[object] = []
    with elsewhere() as one, limiter:
        with limiter:
            first = one.begin(comes(limiter, order, "first"))
            one.begin(comes(limiter, order, "second"))
        limiter = declared(Limiter(name, Concurrency(1), store=store))
        first.cancel()
        one.go_on()
        assert (order, held(limiter.status())) == ([], 1)

        limiter.__exit__(None, None, None)
        one.go_on()
        assert order == ["second"]
        limiter.__enter__()

    assert_all_free(limiter)


def test_the_next_loop_finds_all_permits_free(name: str) -> None:
    """F9, S7: the first `asyncio.run` ends while callers wait. In the second all callers enter."""
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
def test_a_coroutine_that_is_dropped_while_it_waits_leaves_the_queue(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """F6: there is no task and no cancellation, because the coroutine is begun by hand and
    dropped.
    """
    limiter = limiter_of_one(name)

    async def story() -> None:
        async with limiter:
            dropped = [limiter.__aenter__() for _ in range(2)]
            for coroutine in dropped:
                coroutine.send(None)
            local_callers = Callers(limiter)
            local_callers.arrive("behind them")
            await settled()
            look(limiter)
            del coroutine
            dropped.clear()
        await local_callers.release_all()
        assert local_callers.order == ["behind them"]

    asyncio.run(story())
    assert_all_free(limiter)


@pytest.mark.exact
def test_waiters_that_are_due_at_once_go_in_order_though_the_loop_of_the_first_is_stalled(
    memory: World,
) -> None:
    """S6, F9, F20: a batch is due while the loop of its first waiter stands still. The others have
    a timer each, at one moment.
    """
    limiter = memory.limiter(Rate(6, per=memory.beat, steps=True, initial=0))
    order: list[object] = []

    async def story() -> None:
        await asyncio.gather(*(comes(limiter, order, number) for number in range(1, 6)))

    stalled = Elsewhere(asyncio.SelectorEventLoop())
    stalled.begin(comes(limiter, order, "first"))
    memory.run(story())
    stalled.go_on()
    stalled.end()

    assert order == [1, 2, 3, 4, 5, "first"]


@pytest.mark.exact
def test_a_waiter_that_looks_when_those_before_it_are_due_goes_behind_them(memory: World) -> None:
    """S6, F20: the third waiter is woken, and when it looks all three are due. It goes after the
    first two.
    """
    limiter = memory.limiter(Rate(3, per=memory.beat, steps=True, initial=0))
    order: list[object] = []

    async def story() -> None:
        callers = asyncio.gather(*(comes(limiter, order, number) for number in range(3)))
        await settled()
        memory_queue = queue_of(limiter)
        assert isinstance(memory_queue, MemoryQueue)
        third = list(waiters_of(memory_queue).gate.queue)[2]
        memory.clock.jump(5 * memory.beat)
        cast(Waiter, third).wake()
        await callers

    memory.run(story())

    assert order == [0, 1, 2]
