"""Releases while another caller has the lock of the queue (F6, L2).

They come from the collector, from a finalizer, and from a thread that does not want to wait. The
last tests are about exceptions and forks in locked code (H1, F10).
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from itertools import count
from time import monotonic
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate
from headgate.clock import Clock
from headgate.internals import queue_of
from headgate.stores.memory.lock import DEFERRED, GUARD, MOST_DEFERRED, Lock
from headgate.stores.memory.store import MemoryStore
from tests.local_waiters import assert_all_free, replace_lock, waiters_of
from tests.machine import scaled
from tests.processes import finished


class CollectingClock(Clock):
    """A clock that runs the collector once, in the middle of the queue's own locked code.

    The queue reads its clock there, and the collector may run there as well as anywhere.
    """

    def __init__(self) -> None:
        self.collects = False

    def now(self) -> int:
        if self.collects:
            self.collects = False
            gc.collect()
        return 1_000_000


def a_generator(limiter: Limiter) -> Any:
    """A generator that is dropped while it holds a permit."""

    @limiter
    def numbers() -> Iterator[int]:
        yield 1

    generator = numbers()
    next(generator)
    return generator


def a_coroutine(limiter: Limiter) -> Any:
    """A coroutine that is dropped in the middle of its block."""

    async def stays() -> None:
        async with limiter:
            await asyncio.Event().wait()

    coroutine = stays()

    async def begin() -> None:
        coroutine.send(None)

    asyncio.run(begin())
    return coroutine


def run_in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_in_thread(limiter: Limiter) -> threading.Thread:
    """A thread that stands in the gate's queue when this returns."""
    thread = run_in_thread(lambda: limiter.acquire_sync().release())
    while not waiters_of(limiter).gate.queue:
        pass
    return thread


def ends_soon(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


# The collector may come to the permit before its generator.
@pytest.mark.filterwarnings("ignore:.*dropped without a release")
@pytest.mark.parametrize(
    "limits",
    [(Concurrency(1),), (Concurrency(1), Rate(100, per=1))],
    ids=["concurrency", "and a rate"],
)
@pytest.mark.parametrize("waits", [False, True], ids=["alone", "a thread waits"])
@pytest.mark.parametrize("holder", [a_generator, a_coroutine], ids=["generator", "coroutine"])
def test_a_holder_that_the_collector_closes_in_the_middle_of_locked_code_blocks_no_caller(
    name: str, limits: tuple[Any, ...], waits: bool, holder: Callable[[Limiter], Any]
) -> None:
    """F6, L2: the holder is closed in the very thread that has the lock of the queue. Its permit
    comes back all the same.
    """
    clock = CollectingClock()
    limiter = Limiter(name, *limits, store=MemoryStore(clock))
    ring: list[Any] = [holder(limiter)]
    ring.append(ring)
    gc.disable()
    try:
        waiter = wait_in_thread(limiter) if waits else run_in_thread(int)
        del ring
        clock.collects = True
        over = ends_soon(run_in_thread(limiter.status))
    finally:
        clock.collects = False
        gc.enable()
    assert over, "the queue waits for itself"
    assert ends_soon(waiter)
    assert_all_free(limiter)


def test_a_permit_that_is_dropped_while_the_queue_is_busy_is_not_forgotten(name: str) -> None:
    """L2: a finalizer cannot wait for the lock. The caller that has the lock releases the dropped
    permit, though it came for something else.
    """
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()
    waiter = wait_in_thread(limiter)

    def drop() -> None:
        nonlocal permit
        del permit

    with pytest.warns(ResourceWarning, match="dropped"):
        queue_of(limiter)._lock.run(lambda _: drop(), None)

    assert ends_soon(waiter)
    assert_all_free(limiter)


class ReluctantLock:
    """A lock that seems to be taken, although it was released that very moment.

    It refuses the first `times` attempts that would not wait for it.
    """

    def __init__(self, times: int) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release
        self._times = times

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._times -= not blocking
        return (blocking or self._times < 0) and self._lock.acquire(blocking)


def test_a_caller_that_released_sees_it_at_once(name: str) -> None:
    """S7: the release is deferred to another thread. The caller tries again before that thread
    has run it.
    """
    limiter = Limiter(name, Concurrency(1), store=MemoryStore())
    permit = limiter.acquire_sync()

    replace_lock(limiter, ReluctantLock(1))
    permit.release()

    again = limiter.try_acquire()
    assert again
    again.release()
    assert_all_free(limiter)


class ActingClock(Clock):
    """A clock that makes another thread act while the queue reads it."""

    def __init__(self) -> None:
        self.acts: list[Callable[[], object]] = []

    def now(self) -> int:
        if self.acts:
            assert ends_soon(run_in_thread(self.acts.pop()))
        return 1_000_000


@pytest.mark.parametrize("act", ["entry", "status"])
def test_a_release_while_another_thread_has_the_lock_grants_the_next_waiter(
    name: str, act: str
) -> None:
    """L2: a thread releases and goes on. The caller that has the lock runs the release, on the fast
    path as anywhere.
    """
    clock = ActingClock()
    limiter = Limiter(name, Concurrency(1), Rate(100, per=1), store=MemoryStore(clock))
    permit = limiter.acquire_sync()
    waiter = run_in_thread(int) if act == "entry" else wait_in_thread(limiter)

    clock.acts.append(permit.release)
    if act == "entry":
        assert not queue_of(limiter).enter()
    else:
        limiter.status()

    assert ends_soon(waiter)
    assert_all_free(limiter)


class Interrupt(Exception):
    """The exception that a signal handler raises."""


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


@pytest.mark.parametrize("other", ["", " too"], ids=["of the queue", "of another queue"])
def test_a_flood_of_updates_keeps_no_thread_from_its_acquires(name: str, other: str) -> None:
    """L4: the threads that defer very many calls wait for the one that runs them."""
    limiter, ended = Limiter(name, Concurrency(100)), threading.Event()
    flooded = Limiter(f"{name}{other}", Concurrency(100))

    def flood() -> None:
        for number in count():
            flooded.update(Concurrency(100 + number % 10))
            if ended.is_set():
                return

    def acquire() -> None:
        for _ in range(200):
            with limiter:
                pass

    floods = [run_in_thread(flood) for _ in range(3)]
    try:
        assert all(map(ends_soon, [run_in_thread(acquire) for _ in range(4)]))
    finally:
        ended.set()
    assert all(map(ends_soon, floods))
    assert not DEFERRED


def test_an_update_waits_for_a_moment_alone_while_very_many_are_deferred(name: str) -> None:
    """The thread that runs them is stopped here. An event loop may call `update`."""
    limiter = Limiter(name, Concurrency(100))
    stopped, go_on = threading.Event(), threading.Event()

    def stop() -> None:
        with GUARD:
            stopped.set()
            go_on.wait(scaled(30.0))

    thread = run_in_thread(stop)
    assert stopped.wait(scaled(30.0))
    try:
        begun = monotonic()
        for number in range(MOST_DEFERRED + 200):
            limiter.update(Concurrency(100 + number % 10))
        assert monotonic() - begun < scaled(1.0)
    finally:
        go_on.set()
    assert ends_soon(thread)


def test_a_known_key_is_found_while_another_thread_has_the_lock(name: str) -> None:
    limiter, found = Limiter(name, "5/minute"), list[Limiter]()
    known = limiter["k"]
    with GUARD:
        thread = run_in_thread(lambda: found.append(limiter["k"]))
        assert ends_soon(thread)
    assert known.try_acquire()
    assert found[0].status().limits[0].used == 1
