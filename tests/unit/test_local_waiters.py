"""Local waiters from the inside: another caller acts between two steps of a call (S1, S6, S7, L2,
F4, F5).

A queue in memory that counts concurrency alone takes no lock where it can. Each test stops a call
at one such step. Another caller acts there, in the same thread or in another one.
test_local_waiters_interleaved.py stops calls wherever a seed says.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headgate import Concurrency, Limiter, Rate
from headgate.gate.gate import Gate
from headgate.internals import queue_of
from headgate.stores.loops import begin_in_order
from headgate.stores.memory import fast_path
from headgate.stores.memory.acquires import Acquires
from headgate.stores.memory.lock import has_lock
from headgate.stores.memory.store import MemoryStore
from headgate.stores.memory.wait_queue import WaitQueue
from headgate.stores.memory.waiters import Waiter
from tests.local_waiters import (
    Callers,
    assert_all_free,
    declared,
    replace_lock,
    settled,
    waiters_of,
)
from tests.virtual import VirtualClock
from tests.world import held

# Acting in the middle of a call -------------------------------------------------------------------


class ObservedLock:
    """A lock with an event that is set when a thread has to wait for the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.release = self._lock.release
        self.busy = threading.Event()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        self.busy.set()
        return blocking and self._lock.acquire()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *outcome: object) -> None:
        self.release()


class OtherThreads:
    """Other threads that act on the queue of a limiter.

    The queue gets an observed lock, so the test goes on when such a thread has to wait for it.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._lock = ObservedLock()
        self._threads: list[threading.Thread] = []
        replace_lock(limiter, self._lock)

    def run(self, act: Callable[[], object]) -> None:
        """Run `act` in a new thread, until it ends or waits for the lock."""
        self._lock.busy.clear()
        self._threads.append(
            threading.Thread(target=lambda: (act(), self._lock.busy.set()), daemon=True)
        )
        self._threads[-1].start()
        assert self._lock.busy.wait(5)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()


def once(before: Callable[[], object], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, with a call of `before` ahead of its first call."""
    first = [before]

    def call(*args: Any, **kwargs: Any) -> Any:
        if first:
            first.pop()()
        return function(*args, **kwargs)

    return call


@contextmanager
def during_arrival(act: Callable[[], object]) -> Iterator[None]:
    """Call `act` while the next caller arrives among the local waiters.

    The caller has seen that no caller waits in the gate's queue, and stands in no queue yet.
    """
    real = fast_path.Future

    def act_first() -> None:
        fast_path.Future = real  # type: ignore[misc]  # a class is replaced
        act()

    fast_path.Future = once(act_first, real)  # type: ignore[assignment, misc]  # a class is replaced
    try:
        yield
    finally:
        fast_path.Future = real  # type: ignore[misc]  # a class is replaced


@contextmanager
def before_join(act: Callable[[], object], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Call `act` just before the next waiter joins the gate's queue.

    A local waiter that migrates has left the local waiters by then.
    """
    with patch.context() as here:
        here.setattr(Gate, "join", once(act, Gate.join))
        yield


async def pass_through(limiter: Limiter, order: list[object], caller: object) -> None:
    async with limiter:
        order.append(caller)


async def soon(*tasks: asyncio.Future[Any]) -> None:
    """Wait for all tasks to end. They do, because no caller waits while a permit is free."""
    _, late = await asyncio.wait(tasks, timeout=5)
    assert not late, "a caller still waits"


def is_full(limiter: Limiter) -> bool:
    """S1: whether a try is refused, because all permits are held."""
    permit = limiter.try_acquire()
    if permit:
        permit.release()
    return not permit


# While a caller arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["block", "permit"])
async def test_a_permit_that_is_released_while_a_caller_arrives_is_taken(
    name: str, by: str
) -> None:
    """L2: the caller has found the permit taken, and does not stand in the queue yet at the
    release. Once it does, it sees the free permit.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    if by == "block":
        await limiter.__aenter__()
        leave = queue_of(limiter).leave
    else:
        leave = (await limiter.acquire()).release
    order: list[object] = []

    with during_arrival(leave):
        await soon(asyncio.create_task(pass_through(limiter, order, "late")))

    assert order == ["late"]
    assert_all_free(limiter)


@pytest.mark.parametrize("newcomer", ["entry", "permit"])
async def test_a_leaving_caller_sees_a_waiter_that_arrives_before_the_permit_is_in_the_pool(
    name: str, newcomer: str
) -> None:
    """L2, S6: the other side of the same race. The waiter queues after the leaving caller has
    looked for local waiters, and before the permit is back in the pool. A newcomer does not take
    the permit.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    queue = queue_of(limiter)
    entering = [limiter.__aenter__()]
    futures: list[asyncio.Future[Any]] = []

    class Pool(list[None]):
        def append(self, permit: None) -> None:
            futures.extend(entry.send(None) for entry in entering)
            super().append(permit)
            entered = entering and (queue.enter() if newcomer == "entry" else limiter.try_acquire())
            assert not entered, "the permit is for the waiter"

    await limiter.__aenter__()
    waiters_of(limiter).holders.pool = Pool()
    queue._build_fast_path()
    queue.leave()

    assert futures[0].done()
    with pytest.raises(StopIteration):
        entering.pop().send(None)
    queue.leave()
    assert_all_free(limiter)


async def test_a_caller_that_arrives_while_the_limits_change_waits_under_the_new_ones(
    name: str,
) -> None:
    """L2: the capacity is raised after the caller has looked, and before it stands in the queue."""
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    order: list[object] = []
    await limiter.__aenter__()

    with during_arrival(lambda: declared(Limiter(name, Concurrency(2), store=store))):
        await soon(asyncio.create_task(pass_through(limiter, order, "second")))

    assert order == ["second"]
    queue_of(limiter).leave()
    assert_all_free(limiter)


async def test_a_caller_that_arrives_while_a_thread_queues_is_not_passed_by_later_callers(
    name: str,
) -> None:
    """S6: a thread queues while A arrives among the local waiters. C comes after A, and enters
    after A.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    others = OtherThreads(limiter)
    order: list[object] = []
    await limiter.__aenter__()

    def enter() -> None:
        with limiter:
            order.append("thread")

    def queue_a_thread() -> None:
        threading.Thread(target=enter, daemon=True).start()
        while not waiters_of(limiter).gate.queue:
            pass

    with during_arrival(queue_a_thread):
        first = asyncio.create_task(pass_through(limiter, order, "A"))
        await asyncio.sleep(0)
    second = asyncio.create_task(pass_through(limiter, order, "C"))
    await asyncio.sleep(0)
    queue_of(limiter).leave()
    await soon(first, second)

    others.join()
    assert order == ["thread", "A", "C"]
    assert_all_free(limiter)


# While local waiters migrate ----------------------------------------------------------------------

ACQUIRES: dict[str, Callable[[Limiter], Any]] = {
    "acquire": lambda limiter: limiter.acquire(),
    "weighted": lambda limiter: limiter.acquire(mb=1),
    "max_sleep": lambda limiter: limiter.acquire(max_sleep=60),
}


@pytest.mark.parametrize("kind", ACQUIRES)
async def test_a_permit_that_is_released_while_local_waiters_migrate_is_taken(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: the first local waiter is between the two queues, because another caller acquires a
    permit. A thread leaves at that moment.
    """
    limiter = declared(
        Limiter(name, Concurrency(1), Concurrency(9, unit="mb"), store=MemoryStore())
    )
    others = OtherThreads(limiter)
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(pass_through(limiter, order, "first"))
    await asyncio.sleep(0)

    async def acquire() -> None:
        async with ACQUIRES[kind](limiter):
            order.append("second")

    with before_join(lambda: others.run(queue_of(limiter).leave), monkeypatch):
        second = asyncio.create_task(acquire())
        await soon(first, second)

    others.join()
    assert order == ["first", "second"]
    assert_all_free(limiter)


@pytest.mark.parametrize("kind", ACQUIRES)
async def test_a_permit_that_is_released_while_the_first_waiter_queues_is_taken(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: a caller that leaves at that moment sees no waiter yet. So the waiter looks again once it
    stands in the queue.
    """
    limiter = declared(
        Limiter(name, Concurrency(1), Concurrency(9, unit="mb"), store=MemoryStore())
    )
    await limiter.__aenter__()

    async def acquire() -> None:
        async with ACQUIRES[kind](limiter):
            pass

    with before_join(queue_of(limiter).leave, monkeypatch):
        await soon(asyncio.create_task(acquire()))

    assert_all_free(limiter)


async def test_no_newcomer_passes_local_waiters_while_they_migrate(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: the first local waiter is between the two queues. A thread leaves then, and a newcomer
    comes, which does not pass the waiter.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    others = OtherThreads(limiter)
    order: list[object] = []
    passed: list[bool] = []
    await limiter.__aenter__()
    first = asyncio.create_task(pass_through(limiter, order, "first"))
    await asyncio.sleep(0)

    def leave_and_arrive() -> None:
        others.run(queue_of(limiter).leave)
        passed.append(bool(waiters_of(limiter).holders.pool) and queue_of(limiter).enter())

    with before_join(leave_and_arrive, monkeypatch):
        limiter.status()
    await soon(first)

    others.join()
    assert (passed, order) == ([False], ["first"])
    assert_all_free(limiter)


# While the limits change --------------------------------------------------------------------------


def test_an_entry_that_began_before_the_limits_changed_counts_by_the_new_ones(name: str) -> None:
    """S1, T1: a thread is in the middle of entering when another thread declares limits. It takes a
    permit of the new limits, or looks again.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(2), store=store))
    enter = queue_of(limiter).enter

    declared(Limiter(name, Concurrency(1), store=store))

    inside = enter() + queue_of(limiter).enter() + queue_of(limiter).enter()
    assert inside == held(limiter.status()) == 1


def test_a_bucket_that_was_replaced_grants_no_extra_token(name: str) -> None:
    """T1: there is one token an hour. A thread was about to take it when the limits were declared
    again. It takes the same token, not another one.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    enter = queue_of(limiter).enter

    declared(Limiter(name, Rate(1, per=3600, slack=1), store=store))

    assert [enter(), queue_of(limiter).enter(), queue_of(limiter).enter()].count(True) <= 1


async def test_a_leave_that_began_before_a_cut_hands_no_permit_on(name: str) -> None:
    """S1: two callers are inside. One is about to leave when the capacity is cut to one. It leaves,
    and no waiter enters for it.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(2), store=store))
    order: list[object] = []
    await limiter.__aenter__()
    await limiter.__aenter__()
    third = asyncio.create_task(pass_through(limiter, order, "third"))
    await asyncio.sleep(0)
    leave = queue_of(limiter).leave

    declared(Limiter(name, Concurrency(1), store=store))
    leave()
    await asyncio.sleep(0)

    assert (order, held(limiter.status())) == ([], 1)
    queue_of(limiter).leave()
    await soon(third)
    assert_all_free(limiter)


@pytest.mark.parametrize("former", ["concurrency", "rate", "concurrency, then rate"])
def test_a_leave_after_a_change_of_kind_frees_no_permit_of_a_later_caller(
    name: str, former: str
) -> None:
    """S1, S7: A entered under other limits than B. When A leaves, B is still inside."""
    store = MemoryStore()
    limits = {"concurrency": (Concurrency(1),), "rate": (Rate(100, per=1),)}
    for kind in former.split(", then "):
        limiter = declared(Limiter(name, *limits[kind], store=store))
        if kind == former.partition(",")[0]:
            limiter.__enter__()

    limiter = declared(Limiter(name, Concurrency(2), store=store))
    with limiter:
        limiter.__exit__(None, None, None)
        assert held(limiter.status()) == 1
        assert queue_of(limiter).enter()
        assert not queue_of(limiter).enter()
        limiter.__exit__(None, None, None)

    assert_all_free(limiter)


def test_a_leave_that_began_under_a_rate_frees_a_permit_of_a_later_concurrency(name: str) -> None:
    """S7: a thread is in the middle of leaving when a Concurrency replaces the rate. Its block has
    a permit of the new limit until it has left.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Rate(100, per=1), store=store))
    limiter.__enter__()
    leave = queue_of(limiter).leave

    limiter = declared(Limiter(name, Concurrency(1), store=store))
    assert is_full(limiter)
    leave()

    assert_all_free(limiter)


def test_a_permit_that_is_released_under_a_rate_is_not_held_under_a_later_concurrency(
    name: str,
) -> None:
    """S7: a rate replaces a Concurrency, and a Concurrency replaces the rate. The permit is
    released in between.
    """
    store = MemoryStore()
    permit = Limiter(name, Concurrency(1), store=store).acquire_sync()

    declared(Limiter(name, Rate(100, per=1), store=store))
    permit.release()

    assert_all_free(declared(Limiter(name, Concurrency(1), store=store)))


async def test_a_waiter_that_entered_under_a_rate_holds_a_permit_of_a_later_concurrency(
    name: str,
) -> None:
    """S1: one caller holds the permit, and another waits for it and enters under a rate. Under the
    next Concurrency two permits are held.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    callers = Callers(limiter)
    callers.arrive("holder", "waiter")
    await settled()

    declared(Limiter(name, Rate(100, per=1), store=store))
    await settled()
    limiter = declared(Limiter(name, Concurrency(2), store=store))

    assert callers.order == ["holder", "waiter"]
    assert is_full(limiter)
    await callers.release_all()
    assert_all_free(limiter)


async def test_a_permit_that_is_given_up_after_a_rate_replaced_its_concurrency_is_free(
    name: str,
) -> None:
    """F5, S7: a waiter has its permit, and its task has not run yet. The limits change, and the
    task is cancelled.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    callers = Callers(limiter)
    async with limiter:
        callers.arrive("waiter")
        await settled()

    declared(Limiter(name, Rate(100, per=1), store=store))
    callers.tasks["waiter"].cancel()
    await settled()

    assert callers.order == []
    assert_all_free(declared(Limiter(name, Concurrency(1), store=store)))


def test_a_token_that_is_given_up_after_a_concurrency_replaced_its_rate_frees_no_permit(
    name: str,
) -> None:
    """F5, S1: a rate has granted a waiter whose task has not run yet. Now there is one permit, and
    another caller holds it. The waiter's task is cancelled.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Rate(1, per=1, initial=0), store=store))

    async def story() -> None:
        callers = Callers(limiter)
        callers.arrive("waiter")
        await settled()
        clock.jump(1)
        limiter.status()  # any look grants the waiters that are due
        of_one = declared(Limiter(name, Concurrency(1), store=store))
        with of_one:
            callers.tasks["waiter"].cancel()
            await settled()
            assert is_full(of_one)
        assert callers.order == []
        assert_all_free(of_one)

    asyncio.run(story())


def test_the_release_of_a_permit_of_a_rate_frees_no_permit_of_a_later_holder(name: str) -> None:
    """S4: the permit was granted under a rate, so it holds nothing. A Concurrency is declared
    before its task goes on.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Rate(1, per=1, initial=0), store=store))

    async def story() -> None:
        acquiring = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        clock.jump(1)
        limiter.status()  # any look grants the waiters that are due
        of_one = declared(Limiter(name, Concurrency(1), store=store))
        permit = await acquiring
        async with of_one:
            permit.release()
            assert is_full(of_one)
        assert_all_free(of_one)

    asyncio.run(story())


def test_released_permits_stay_in_the_pool_again_when_a_cut_is_over(name: str) -> None:
    """S1: no more permits are held than the new capacity has. So an entry need not ask the gate any
    more.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(2), store=store))
    limiter.__enter__()
    with limiter:
        declared(Limiter(name, Concurrency(1), store=store))
        assert is_full(limiter)
    assert held(limiter.status()) == 1
    limiter.__exit__(None, None, None)

    with limiter:
        pass
    assert waiters_of(limiter).holders.pool == [None]
    assert_all_free(limiter)


@pytest.mark.parametrize(
    "use",
    [Limiter.__enter__, Limiter.acquire_sync, Limiter.try_acquire],
    ids=["entry", "permit", "try"],
)
def test_an_evicted_queue_that_is_used_again_is_kept_again(
    name: str, use: Callable[[Limiter], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: its limiter is dropped after that use, and the one token of the hour stays taken."""
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    Limiter(f"{name}-2", Rate(1, per=1), store=store)

    use(limiter)
    del limiter
    gc.collect()

    assert not Limiter(name, Rate(1, per=3600), store=store).try_acquire()


def test_a_debt_to_an_evicted_queue_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T9, T12: given a permit of an idle queue, when the store evicts the queue and the call then
    reports more than it asked for, then the next caller of the name waits out that debt.
    """
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    clock = VirtualClock()
    store = MemoryStore(clock)
    store._most = 1
    rate = Rate(10, per=1)
    permit = Limiter(name, rate, store=store).acquire_sync()
    clock.jump(10)
    Limiter(f"{name}-2", Rate(1, per=1), store=store)

    permit.settle(requests=100)
    permit.release()
    del permit
    gc.collect()

    assert Limiter(name, rate, store=store).status().limits[0].left == 10 - 99


def test_a_token_that_is_taken_from_a_queue_while_it_is_evicted_stays_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: a thread is about to take the one token of an hour when the store evicts the idle queue.
    The token is taken for good.
    """
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    enter = queue_of(limiter).enter

    Limiter(f"{name}-2", Rate(1, per=1), store=store)
    entered = enter()
    del limiter, enter
    gc.collect()

    assert not (entered and Limiter(name, Rate(1, per=3600), store=store).try_acquire())


@pytest.mark.parametrize("way", [Limiter.__enter__, Limiter.acquire_sync], ids=["block", "permit"])
def test_an_exception_of_a_handler_as_a_wait_is_given_up_leaves_no_waiter(
    name: str, way: Callable[[Limiter], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: given a wait that is over, when a signal handler raises before the first line that takes
    the waiter out of the queue, then the next release frees the permit.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore(), max_sleep=0.001))
    holder = limiter.acquire_sync()
    monkeypatch.setattr(Acquires, "_give_up", once(raised, Acquires._give_up))

    with pytest.raises(Interrupt):
        way(limiter)
    holder.release()

    assert_all_free(limiter)


async def test_an_exception_of_a_handler_as_a_task_gives_up_leaves_no_waiter(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: of tasks among the local waiters, and of those in the gate's queue."""
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    for enter in (limiter.__aenter__, limiter.acquire(on_wait=print).__aenter__):
        holder = await limiter.acquire()
        waiter = asyncio.ensure_future(enter())
        await asyncio.sleep(0)
        with monkeypatch.context() as here:
            for method in ("_give_up", "give_up_future"):
                here.setattr(Acquires, method, once(raised, getattr(Acquires, method)))
            waiter.cancel()
            with pytest.raises(Interrupt):
                await waiter
        holder.release()

        assert_all_free(limiter)


class Interrupt(Exception):
    """A signal handler raises this."""


def raised() -> None:
    raise Interrupt


async def test_a_waiter_that_is_granted_between_its_look_and_its_sleep_enters(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F7: the waiter has left the local waiters because of a rate, and is about to sleep until
    its moment. A thread that looks then grants it.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(pass_through(limiter, order, "first"))
    await asyncio.sleep(0)
    slower = Limiter(name, Concurrency(1), Rate(1, per=1, initial=0), store=store)

    def look_later() -> None:
        clock.jump(2)
        slower.status()

    queue_of(limiter).leave()
    await asyncio.sleep(0)
    with monkeypatch.context() as here:
        here.setattr(Waiter, "timeout", once(look_later, Waiter.timeout))
        clock.jump(0)
        await soon(first)

    assert order == ["first"]


async def test_a_task_that_passes_behind_others_gets_its_marker_under_the_lock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: without the lock, another thread could give it a second marker, which stays behind."""
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    waiting, locked = waiters_of(limiter), []
    waiting.starting.append("another task")
    wake_granted = WaitQueue.wake_granted

    def note_lock(queue: WaitQueue, waiter: Waiter) -> None:
        locked.append(has_lock())
        wake_granted(queue, waiter)

    monkeypatch.setattr(WaitQueue, "wake_granted", note_lock)
    passing = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    waiting.forget_marker("another task")
    await (await passing).arelease()

    assert locked == [True]
    assert not waiting.starting


async def test_a_task_waits_for_no_other_task_that_has_begun_meanwhile() -> None:
    """L2: a thread of another loop may have emptied the markers of the tasks that start."""
    await begin_in_order(deque())


async def test_a_task_that_wakes_by_itself_while_a_thread_grants_leaves_no_marker(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: given a timer or a refusal between the grant and the waking, then the task's marker does
    not stay behind. Each later acquire would wait for it.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    callers, waiting = Callers(limiter), waiters_of(limiter)
    permit = await limiter.acquire()
    callers.arrive("waiter")
    await settled()
    limiter.status()
    granted, seen = threading.Event(), threading.Event()
    wake_granted = WaitQueue.wake_granted

    def wake_late(queue: WaitQueue, waiter: Waiter) -> None:
        granted.set()
        seen.wait(0.05)  # the task waits for the lock meanwhile
        wake_granted(queue, waiter)

    monkeypatch.setattr(WaitQueue, "wake_granted", wake_late)
    releaser = threading.Thread(target=permit.release)
    releaser.start()
    await asyncio.to_thread(granted.wait)

    next(iter(waiting.gate.queue)).wake()
    await settled()
    seen.set()
    await asyncio.to_thread(releaser.join)

    assert callers.order == ["waiter"]
    assert not waiting.starting
    await callers.release_all()


async def test_a_waiter_that_was_granted_before_a_fork_enters_after_it(name: str) -> None:
    """F10, L2: the waiter has its permit, and its task has not run yet. In the child it runs, and
    enters.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(pass_through(limiter, order, "first"))
    await asyncio.sleep(0)
    limiter.status()
    queue_of(limiter).leave()

    queue_of(limiter).forked()
    await soon(first)

    assert order == ["first"]
    assert first.exception() is None
