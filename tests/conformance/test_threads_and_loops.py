"""One limiter for threads and for several event loops, at once and one after another, with both
ways of entering (F9).
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from headgate import Concurrency, Limiter, MaxSleepExceededError, Permit, Rate
from headgate.entrance import BLOCKS
from tests.machine import scaled
from tests.world import HOUR, at_rest, held, soon, until, used, waiting


class Room:
    """Counts how many callers are inside, over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = self.most = self.visits = 0

    def __enter__(self) -> None:
        with self._lock:
            self.inside += 1
            self.visits += 1
            self.most = max(self.most, self.inside)

    def __exit__(self, *outcome: object) -> None:
        with self._lock:
            self.inside -= 1


def at_once(*works: Callable[[], object]) -> None:
    """Run each work in a thread of its own, none before all threads are there. The first error
    comes out.
    """
    gate = threading.Barrier(len(works))

    def begun(work: Callable[[], object]) -> None:
        gate.wait()
        work()

    with ThreadPoolExecutor(len(works)) as threads:
        for done in [threads.submit(begun, work) for work in works]:
            done.result()


def test_an_exit_stack_gives_back_each_permit_once(store: object, name: str) -> None:
    """S1, S4: given one block of a limiter in a stack, and two more whose caller loads the methods
    of the class once, when each is left, then one permit less is in use.
    """
    limiter = Limiter(name, Concurrency(5), store=store)
    enter, leave = type(limiter).__enter__, type(limiter).__exit__

    with ExitStack() as stack:
        stack.enter_context(limiter)
        enter(limiter)
        enter(limiter)
        counts = [used(limiter.status())]
        for _ in range(2):
            leave(limiter, None, None, None)
            counts.append(used(limiter.status()))

    assert [*counts, used(limiter.status())] == [[3], [2], [1], [0]]


def test_a_block_that_is_ended_by_hand_gives_its_permit_back(store: object, name: str) -> None:
    """S4, L6: with methods that were loaded once, or anew for each block; also while a stack of
    contextlib keeps an `__exit__` of another limiter.
    """
    limiter = Limiter(name, Concurrency(5), store=store)
    other = Limiter(f"{name}-2", Concurrency(5), store=store)
    enter, leave = limiter.__enter__, limiter.__exit__
    for _ in range(3):
        enter()
        leave(None, None, None)
    kept = limiter.__exit__
    limiter.__enter__()
    limiter.__exit__(None, None, None)
    assert used(limiter.status()) == [0]
    del kept

    with ExitStack() as stack:
        other.__enter__()
        stack.push(other)
        limiter.__enter__()
        limiter.__exit__(None, None, None)
        assert (used(other.status()), used(limiter.status())) == ([1], [0])
    assert used(other.status()) == [0]


def test_a_loaded_exit_takes_over_no_block_of_another_limiter(store: object, name: str) -> None:
    """S1: given a stack that ends a block of one limiter, when another limiter is entered by hand
    meanwhile, then the end of the stack leaves that permit where it is.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    other = Limiter(f"{name}-2", Concurrency(1), store=store)
    other.__enter__()
    with ExitStack() as stack:
        stack.push(other)
        limiter.__enter__()
    assert (used(other.status()), used(limiter.status())) == ([0], [1])
    assert not limiter.try_acquire()
    limiter.__exit__(None, None, None)
    assert used(limiter.status()) == [0]


def test_an_exit_that_is_only_looked_up_ends_no_block_when_it_is_dropped(
    store: object, name: str
) -> None:
    """S1: given a function that looks whether a limiter has `__exit__`, and then enters it."""
    limiter = Limiter(name, Concurrency(1), store=store)

    def enter(manager: Any) -> None:
        leave = getattr(manager, "__exit__", None)
        assert leave is not None
        manager.__enter__()

    enter(limiter)
    assert used(limiter.status()) == [1]
    limiter.__exit__(None, None, None)
    assert used(limiter.status()) == [0]


def test_blocks_that_overlap_or_end_in_another_thread_are_not_kept(
    store: object, name: str
) -> None:
    """L6: given generators of which each begins its block before the last one ends its own, and
    blocks that another thread ends, then this thread keeps none of them.
    """
    limiter = Limiter(name, Concurrency(5), store=store)

    def block() -> Generator[None, None, None]:
        with limiter:
            yield

    last = block()
    next(last)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            following = block()
            next(following)
            last.close()
            last = following
            stack = ExitStack()
            stack.enter_context(limiter)
            pool.submit(stack.close).result()
    assert len(BLOCKS.entered) <= 1
    last.close()
    assert used(limiter.status()) == [0]
    assert not BLOCKS.entered


def test_threads_and_two_event_loops_share_one_limit(store: object, name: str) -> None:
    """S1, S7, L5, F9: given four threads, two loops with five tasks each, and capacity 3, then a
    fourth caller is never inside. All get through.
    """
    limiter = Limiter(name, Concurrency(3), store=store)
    room = Room()

    def thread() -> None:
        for _ in range(10):
            with limiter, room:
                time.sleep(0.000_2)

    async def task() -> None:
        for _ in range(10):
            async with limiter:
                with room:
                    await asyncio.sleep(0.000_2)

    async def loop() -> None:
        await asyncio.gather(*(task() for _ in range(5)))

    at_once(*[thread] * 4, *[lambda: asyncio.run(loop())] * 2)

    assert (room.visits, room.most) == (140, 3)
    asyncio.run(at_rest(limiter))


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads change places as often as Python allows."""
    former = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(former)


WAYS: dict[str, Callable[[Limiter], Any]] = {
    "limiter": lambda limiter: limiter,
    "acquire": lambda limiter: limiter.acquire(),
}


@pytest.mark.parametrize("way", WAYS)
def test_threads_that_hammer_one_limiter_never_exceed_its_capacity(
    store_kind: str, store: object, name: str, way: str, hasty: None
) -> None:
    """S1, S7, L5, F11: eight threads change places after every few lines, at capacity 3. No caller
    is lost, and no permit is.
    """
    limiter = Limiter(name, Concurrency(3), store=store)
    room, visits = Room(), 2000 if store_kind == "memory" else 20

    def thread() -> None:
        for _ in range(visits):
            with WAYS[way](limiter), room:
                time.sleep(0)

    at_once(*[thread] * 8)

    assert (room.visits, room.most <= 3) == (8 * visits, True)
    asyncio.run(at_rest(limiter))
    permits = [limiter.try_acquire() for _ in range(4)]
    assert [bool(permit) for permit in permits] == [True, True, True, False]
    for permit in permits[:3]:
        permit.release()  # type: ignore[union-attr]  # these are


def test_threads_that_hammer_a_rate_are_charged_for_each_call(
    store_kind: str, store: object, name: str, hasty: None
) -> None:
    """T1, T10, F11: not one call more than the limit allows, and none is counted twice."""
    visits = 2000 if store_kind == "memory" else 10
    limiter = Limiter(name, Rate(8 * visits - 5, per=1000 * HOUR), store=store)
    passed: list[int] = []

    def thread() -> None:
        passed.append(sum(bool(limiter.try_acquire()) for _ in range(visits)))

    at_once(*[thread] * 8)

    assert sum(passed) == 8 * visits - 5
    assert limiter.status().limits[0].used == 8 * visits - 5


def test_a_rate_is_one_rate_for_threads_and_loops(store: object, name: str) -> None:
    """T1: the bucket is one for callers of all threads and loops; T3: fences and moments rise
    together.
    """
    limiter = Limiter(name, Rate(2, per=0.01, capacity=1), store=store)
    permits: list[Permit] = []

    def thread() -> None:
        for _ in range(3):
            with limiter.acquire() as permit:
                permits.append(permit)

    async def loop() -> None:
        async def task() -> None:
            async with limiter.acquire() as permit:
                permits.append(permit)

        await asyncio.gather(*(task() for _ in range(3)))

    at_once(thread, thread, lambda: asyncio.run(loop()), lambda: asyncio.run(loop()))

    permits.sort(key=lambda permit: permit.fence)
    moments = [permit.t for permit in permits]
    assert len(moments) == 12
    assert all(after - before >= 5_000 for before, after in pairwise(moments))


def test_a_permit_goes_from_a_thread_to_a_task_and_back(store: object, name: str) -> None:
    """L2: a release in a thread wakes a task in its loop, and a release in a task wakes a
    thread.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    order: list[str] = []
    first = limiter.acquire_sync()

    async def story() -> None:
        async def task() -> None:
            async with limiter:
                order.append("task")
                await waiting(limiter, 1)

        entered = asyncio.create_task(task())
        await waiting(limiter, 1)
        thread = asyncio.create_task(asyncio.to_thread(blocking))
        await waiting(limiter, 2)
        await asyncio.to_thread(first.release)
        await soon(asyncio.wait([entered, thread]))

    def blocking() -> None:
        with limiter:
            order.append("thread")

    asyncio.run(story())

    assert order == ["task", "thread"]


def test_a_limiter_made_before_any_loop_works_in_one_loop_after_another(
    store: object, name: str
) -> None:
    """F9: the import-time limiter of a module, and a script that calls asyncio.run again and
    again.
    """
    limiter = Limiter(name, Concurrency(1), Rate(100, per=HOUR), store=store)

    async def enter() -> None:
        async with limiter:
            assert held(await limiter.astatus()) == 1

    for _ in range(3):
        asyncio.run(enter())
    with limiter:
        pass

    assert asyncio.run(at_rest(limiter)).limits[1].used == 4


def test_the_permits_of_a_loop_that_ended_are_still_held_in_the_next(
    store: object, name: str
) -> None:
    """S7: the end of a loop is not the end of its permits."""
    limiter = Limiter(name, Concurrency(2), store=store)

    async def take() -> Permit:
        return await limiter.acquire()

    permits = [asyncio.run(take()), asyncio.run(take())]

    assert not limiter.try_acquire()
    for permit in permits:
        permit.release()
    asyncio.run(at_rest(limiter))


def test_waiters_of_a_loop_that_ended_delay_no_other_caller(store: object, name: str) -> None:
    """F7: two tasks wait in a loop that ends before them, and later callers do not wait for
    them.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    holder = limiter.acquire_sync()

    async def abandoned() -> None:
        tasks = [asyncio.create_task(enter()) for _ in range(2)]
        await waiting(limiter, 2)
        assert not any(task.done() for task in tasks)

    async def enter() -> None:
        async with limiter:
            pass

    asyncio.run(abandoned())
    holder.release()

    limiter.acquire_sync(max_sleep=5).release()
    asyncio.run(at_rest(limiter))


def test_a_thread_that_waited_long_enough_gets_its_error(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=store, max_sleep=0.02)
    with limiter:
        start = time.monotonic()
        with pytest.raises(MaxSleepExceededError):
            limiter.acquire_sync()
        assert time.monotonic() - start >= 0.02

    asyncio.run(at_rest(limiter))


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """As in a terminal, but for one time: a process that is started in the background ignores
    Ctrl-C.
    """
    interrupted = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not interrupted:
            interrupted.append(number)
            raise KeyboardInterrupt

    former = signal.signal(signal.SIGINT, interrupt)
    yield
    signal.signal(signal.SIGINT, former)


@pytest.mark.signals
def test_an_interrupted_thread_leaves_no_trace(store: object, name: str, ctrl_c: None) -> None:
    """F1: Ctrl-C in a blocking wait comes out of it, and the thread leaves the queue.

    CPython misses a signal that comes just before a lock begins to sleep, until the next one comes.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    holder, left = limiter.acquire_sync(), threading.Event()

    def interrupt_once_it_waits() -> None:
        asyncio.run(waiting(limiter, 1))
        while not left.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            left.wait(scaled(0.5))

    other = threading.Thread(target=interrupt_once_it_waits)
    other.start()
    with pytest.raises(KeyboardInterrupt), limiter:
        pass  # never entered

    left.set()
    other.join()
    asyncio.run(waiting(limiter, 0))
    holder.release()
    asyncio.run(at_rest(limiter))


@pytest.mark.parametrize("tasks", [1, 50])
async def test_tasks_that_nest_several_limiters_leave_each_as_they_entered_it(
    store: object, name: str, tasks: int
) -> None:
    """Each task leaves only the objects that it has entered, in nested and interleaved blocks."""
    outer, inner = (Limiter(name + end, Concurrency(2), store=store) for end in "ab")

    async def nest() -> None:
        async with outer, inner:
            await asyncio.sleep(0)
            assert held(await inner.astatus()) >= 1

    await asyncio.gather(*(nest() for _ in range(tasks)))

    await at_rest(outer)
    await at_rest(inner)


async def test_the_end_of_an_inner_block_leaves_the_permit_of_the_outer_one(
    name: str, store: Any
) -> None:
    """S1: the limits are changed between the two. The inner block holds nothing."""
    limiter = Limiter(name, Concurrency(2), store=store)
    async with limiter:
        await limiter.aupdate("100/second")
        async with limiter:
            pass
        await limiter.aupdate(Concurrency(2))
        assert held(await limiter.astatus()) == 1
    await at_rest(limiter)


async def test_a_task_that_enters_a_limiter_twice_holds_two_permits(
    store: object, name: str
) -> None:
    """Each entry is a permit of its own, also when one task holds both."""
    limiter = Limiter(name, Concurrency(2), store=store)

    async with limiter:
        async with limiter:
            assert held(await limiter.astatus()) == 2
        await until(lambda status: held(status) == 1, limiter)

    await at_rest(limiter)


async def test_a_block_may_be_entered_in_one_task_and_left_in_another(
    store: object, name: str
) -> None:
    """A permit entered by `async with limiter` is released even if another task closes the
    block.
    """
    limiter = Limiter(name, Concurrency(2), store=store)
    await limiter.__aenter__()
    async with limiter:
        await asyncio.create_task(_leave(limiter))
        assert held(await until(lambda status: held(status) == 1, limiter)) == 1

    await at_rest(limiter)


async def _leave(limiter: Limiter) -> None:
    await limiter.__aexit__(None, None, None)
