"""A crowd of several loops: a place that is on its way from one to another, and loops that end (S1,
S6, S7, F4, F7, F9).

All loops of a story run in one thread, and each goes on when it is told to: what meets what is no
matter of chance.
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
from headgate.stores.memory.queue import MemoryQueue, MemoryStore
from headgate.stores.memory.waiters import Waiter
from tests.crowds import Visitors, assert_all_free, declared, nothing, settled
from tests.world import World, held


class Elsewhere:
    """Another event loop of this thread, which goes on when it is told to."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()

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


async def first_step(work: Coroutine[Any, Any, None]) -> None:
    """`work` up to where it waits."""
    work.send(None)


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
def test_who_gives_up_while_its_place_is_on_the_way_passes_it_on(
    name: str, look: Callable[[Limiter], object]
) -> None:
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


def test_who_gives_up_just_when_its_place_comes_gets_none(name: str) -> None:
    """F4, S7: a thread has found it at the head of the crowd; before it is given anything, it is
    gone.
    """
    limiter = limiter_of_one(name)
    order: list[object] = []

    class Crowd(deque[Any]):
        def popleft(self) -> Any:
            head = super().popleft()
            if not first.cancelling():
                first.cancel()
                one.go_on()
            return head

    queue_of(declared(limiter))._crowd = Crowd()
    queue_of(limiter)._open()
    with elsewhere() as one:
        with limiter:
            first = one.begin(comes(limiter, order, "first"))
            one.begin(comes(limiter, order, "second"))
        one.go_on()

    assert order == ["second"]
    assert_all_free(limiter)


def test_who_is_closed_just_when_its_place_comes_gets_none(name: str) -> None:
    """F4, S7: the same with one that is driven by hand and ends without being cancelled; it happens
    twice.
    """
    limiter = limiter_of_one(name)
    driven: list[Coroutine[Any, Any, None]] = []

    class Crowd(deque[Any]):
        def popleft(self) -> Any:
            head = super().popleft()
            if driven:
                driven.pop().close()
            return head

    queue_of(declared(limiter))._crowd = Crowd()
    queue_of(limiter)._open()
    with elsewhere() as one:
        for _ in range(2):
            with limiter:
                driven.append(limiter.__aenter__())
                one.loop.run_until_complete(first_step(driven[0]))
            assert_all_free(limiter)
    assert not queue_of(limiter)._moved


@LOOKS
def test_waiters_of_a_closed_loop_stand_in_nobodys_way(
    name: str, look: Callable[[Limiter], object]
) -> None:
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
def test_a_place_on_its_way_to_a_loop_that_ends_comes_back(
    name: str, look: Callable[[Limiter], object], end: str
) -> None:
    """F7, S7: a thread has left to a task of a loop that never runs again."""
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


@LOOKS
def test_a_waiter_whose_loop_is_gone_gives_nothing_back_twice(
    name: str, look: Callable[[Limiter], object]
) -> None:
    """S1, S4, F7: it could not be told of its place, so the place went on; when its task is
    collected, nothing more comes of it.
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


def test_a_loop_that_is_closed_while_its_task_is_inside_keeps_no_place(name: str) -> None:
    """F6, F7, S7: the task is collected in the middle of its block, and its place goes to
    the next.
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


def test_a_cut_while_a_place_is_on_its_way_lets_nobody_in_for_it(name: str) -> None:
    """S1: two are inside, one leaves to a task, the capacity becomes one, the task gives up: there
    is one inside, and no more.
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


def test_one_loop_after_another_finds_the_line_as_it_should_be(name: str) -> None:
    """F9, S7: the first `asyncio.run` ends while a crowd waits; in the second a crowd goes
    through.
    """
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
def test_a_coroutine_that_is_closed_while_it_waits_was_never_there(
    name: str, look: Callable[[Limiter], object]
) -> None:
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


@pytest.mark.exact
def test_those_who_are_due_at_once_go_in_order_though_the_first_of_them_cannot_look(
    memory: World,
) -> None:
    """S6, F9, F20: a batch comes while the loop of its first stands still; the others have a timer
    each, at one moment.
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
def test_who_looks_when_others_before_it_are_due_too_goes_behind_them(memory: World) -> None:
    """S6, F20: the third is woken, and by the time it looks all three are due: it lets the first
    two go, and goes after them.
    """
    limiter = memory.limiter(Rate(3, per=memory.beat, steps=True, initial=0))
    order: list[object] = []

    async def story() -> None:
        callers = asyncio.gather(*(comes(limiter, order, number) for number in range(3)))
        await settled()
        line = queue_of(limiter)
        assert isinstance(line, MemoryQueue)
        third = list(line._gate.queue)[2]
        memory.clock.jump(5 * memory.beat)
        cast(Waiter, third).wake()
        await callers

    memory.run(story())

    assert order == [0, 1, 2]
