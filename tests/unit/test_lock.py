"""What comes back to a line whose lock is taken: by the collector, by a finalizer, by whoever does
not want to wait (F6, L2).
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate
from headgate.clock import Clock
from headgate.internals import queue_of
from headgate.stores.memory.lock import Lock
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import assert_all_free, lock_by, waiters_of
from tests.processes import finished


class CollectingClock(Clock):
    """The line reads its clock in the middle of its own locked code, where the collector may run as
    well as anywhere: once.
    """

    def __init__(self) -> None:
        self.collects = False

    def now(self) -> int:
        if self.collects:
            self.collects = False
            gc.collect()
        return 1_000_000


def a_generator(limiter: Limiter) -> Any:
    """Dropped in the middle of a permit."""

    @limiter
    def numbers() -> Iterator[int]:
        yield 1

    generator = numbers()
    next(generator)
    return generator


def a_coroutine(limiter: Limiter) -> Any:
    """Dropped in the middle of its block."""

    async def stays() -> None:
        async with limiter:
            await asyncio.Event().wait()

    coroutine = stays()

    async def begin() -> None:
        coroutine.send(None)

    asyncio.run(begin())
    return coroutine


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def waits_in_a_thread(limiter: Limiter) -> threading.Thread:
    """Stands in the gate's queue when this returns."""
    thread = in_a_thread(lambda: limiter.acquire_sync().release())
    while not waiters_of(limiter).gate.queue:
        pass
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


@pytest.mark.filterwarnings(
    "ignore:.*dropped without a release"
)  # the collector may come to the permit before its generator
@pytest.mark.parametrize(
    "limits", [(Concurrency(1),), (Concurrency(1), Rate(100, per=1))], ids=["places", "and a rate"]
)
@pytest.mark.parametrize("waits", [False, True], ids=["alone", "a thread waits"])
@pytest.mark.parametrize("holder", [a_generator, a_coroutine], ids=["generator", "coroutine"])
def test_what_the_collector_closes_in_the_middle_of_the_line_blocks_nobody(
    name: str, limits: tuple[Any, ...], waits: bool, holder: Callable[[Limiter], Any]
) -> None:
    """F6, L2: what holds a place is given up in the very thread that has the line's lock; its place
    comes back all the same.
    """
    clock = CollectingClock()
    limiter = Limiter(name, *limits, store=MemoryStore(clock))
    ring: list[Any] = [holder(limiter)]
    ring.append(ring)
    gc.disable()
    try:
        waiter = waits_in_a_thread(limiter) if waits else in_a_thread(int)
        del ring
        clock.collects = True
        over = ends(in_a_thread(limiter.status))
    finally:
        clock.collects = False
        gc.enable()
    assert over, "the line waits for itself"
    assert ends(waiter)
    assert_all_free(limiter)


def test_a_permit_that_is_dropped_while_the_line_is_busy_is_not_forgotten(name: str) -> None:
    """L2: a finalizer cannot wait for the lock; whoever has it sees to what was dropped, though he
    came for something else.
    """
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()
    waiter = waits_in_a_thread(limiter)

    def drop() -> None:
        nonlocal permit
        del permit

    with pytest.warns(ResourceWarning, match="dropped"):
        queue_of(limiter)._lock.run(lambda _: drop(), None)

    assert ends(waiter)
    assert_all_free(limiter)


class Reluctant:
    """A lock that says `times` times that it is taken, to who would not wait for it, though it was
    let go that very moment.
    """

    def __init__(self, times: int) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release
        self._times = times

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._times -= not blocking
        return (blocking or self._times < 0) and self._lock.acquire(blocking)


def test_who_has_released_sees_it_at_once(name: str) -> None:
    """S7: another thread was to see to the release; the releaser asks before it does."""
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()

    lock_by(limiter, Reluctant(1))
    permit.release()

    again = limiter.try_acquire()
    assert again
    again.release()
    assert_all_free(limiter)


class TellingClock(Clock):
    """Somebody else acts while the line reads its clock."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []

    def now(self) -> int:
        if self.acts:
            assert ends(in_a_thread(self.acts.pop()))
        return 1_000_000


@pytest.mark.parametrize("act", ["entry", "status"])
def test_what_comes_back_while_somebody_has_the_lock_lets_the_next_one_in(
    name: str, act: str
) -> None:
    """L2: a thread releases and goes on; whoever has the lock sees to it, at the door as
    anywhere.
    """
    clock = TellingClock()
    limiter = Limiter(name, Concurrency(1), Rate(100, per=1), store=MemoryStore(clock))
    permit = limiter.acquire_sync()
    waiter = in_a_thread(int) if act == "entry" else waits_in_a_thread(limiter)

    clock.acts.append(permit.release)
    if act == "entry":
        assert not queue_of(limiter).enter()
    else:
        limiter.status()

    assert ends(waiter)
    assert_all_free(limiter)


class Interrupt(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize(
    "inside", [False, True], ids=["after locked code", "after an exception in it"]
)
def test_of_several_exceptions_each_is_the_context_of_the_next(inside: bool) -> None:
    """H1: given deferred calls that signal handlers interrupt again and again, then no exception is
    lost.
    """
    lock, coming = (
        Lock("", lambda: None),
        [Interrupt("third"), Interrupt("second"), Interrupt("first")],
    )

    def deferred() -> None:
        if coming:
            raise coming.pop()

    def act(_: None) -> None:
        lock.run_or_defer(deferred)
        if inside:
            raise coming.pop()

    with pytest.raises(Interrupt) as caught:
        lock.run(act, None)
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        chain.append(chain[-1].__context__)

    assert list(map(str, chain)) == ["third", "second", "first", "None"]


FORK = """
import os
from headgate.stores.memory.lock import Lock
lock = Lock("", lambda: None)
child = not lock.run(lambda _: os.fork(), None)
lock.run(lambda _: None, None)
if not child:
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_the_child_of_a_fork_in_locked_code_has_the_lock_and_releases_it() -> None:
    """Promise 10: a signal handler may fork wherever it interrupts."""
    assert finished(FORK) == ""


def test_the_child_of_a_fork_at_a_lock_that_another_thread_had_goes_on(name: str) -> None:
    """F10, promise 10: given a thread that waits for the lock, when a signal handler forks there,
    then both processes go on.
    """
    assert finished("fork_at_the_lock", name) == ""


STORIES = ["wait", "block", "permits", "attempt", "wait_for_all", "update"]


@pytest.mark.proof
@pytest.mark.parametrize("story", STORIES)
def test_a_child_of_a_fork_at_any_step_goes_on_with_a_free_limiter(name: str, story: str) -> None:
    """F10, promise 10: given a signal handler that forks in a call, then the child ends it, and no
    capacity stays taken.
    """
    assert finished("fork_at_steps", name, story, within=300) == "steps\n"
