"""The crowd from the inside: what can happen between two of its steps, made to happen (S1, S6, S7,
L2, F4, F5).

A line in memory that counts concurrency alone takes no lock where it can. Each test stops it at one
such place and lets somebody else act there: in the same thread, in another, or wherever a seed
says.
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
from headgate.stores.memory.lock import has_lock
from headgate.stores.memory.store import MemoryStore
from headgate.stores.memory.wait_queue import WaitQueue
from headgate.stores.memory.waiters import Waiter
from tests.local_waiters import Visitors, assert_all_free, declared, lock_by, settled, waiters_of
from tests.virtual import VirtualClock
from tests.world import held

# A place of one's own in the middle of something --------------------------------------------------


class Lock:
    """A lock that tells when somebody has to wait for it."""

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


class Elsewhere:
    """Another thread that acts on a line now; `lock` is the line's, and whoever cannot have it is
    waited for no longer.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._lock = Lock()
        self._threads: list[threading.Thread] = []
        lock_by(limiter, self._lock)

    def does(self, act: Callable[[], object]) -> None:
        """Until it is done, or waits for the lock."""
        self._lock.busy.clear()
        self._threads.append(
            threading.Thread(target=lambda: (act(), self._lock.busy.set()), daemon=True)
        )
        self._threads[-1].start()
        assert self._lock.busy.wait(5)

    def ends(self) -> None:
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()


def once(before: Callable[[], object], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, the first time after `before()`."""
    first = [before]

    def call(*args: Any, **kwargs: Any) -> Any:
        if first:
            first.pop()()
        return function(*args, **kwargs)

    return call


@contextmanager
def while_it_arrives(act: Callable[[], object]) -> Iterator[None]:
    """The next who comes to the crowd has seen that nobody waits and stands in no queue yet: then
    `act()`.
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
def while_it_moves(act: Callable[[], object], patch: pytest.MonkeyPatch) -> Iterator[None]:
    """The next who moves from the crowd has left it and stands not in the gate's queue yet: then
    `act()`.
    """
    with patch.context() as here:
        here.setattr(Gate, "join", once(act, Gate.join))
        yield


async def visits(limiter: Limiter, order: list[object], who: object) -> None:
    async with limiter:
        order.append(who)


async def soon(*tasks: asyncio.Future[Any]) -> None:
    """All are through; a limiter with a place free lets nobody wait."""
    _, late = await asyncio.wait(tasks, timeout=5)
    assert not late, "somebody still waits"


def is_full(limiter: Limiter) -> bool:
    """S1, by trying."""
    permit = limiter.try_acquire()
    if permit:
        permit.release()
    return not permit


# While somebody arrives ---------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["block", "permit"])
async def test_a_place_that_comes_free_while_somebody_arrives_is_taken(name: str, by: str) -> None:
    """L2: who found the place taken, and has not queued yet when it comes free, sees it when
    queued.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    if by == "block":
        await limiter.__aenter__()
        leave = queue_of(limiter).leave
    else:
        leave = (await limiter.acquire()).release
    order: list[object] = []

    with while_it_arrives(leave):
        await soon(asyncio.create_task(visits(limiter, order, "late")))

    assert order == ["late"]
    assert_all_free(limiter)


@pytest.mark.parametrize("newcomer", ["entry", "permit"])
async def test_whoever_comes_while_a_place_is_put_back_is_seen_by_whoever_puts_it_back(
    name: str, newcomer: str
) -> None:
    """L2, S6: the other side of it: he queues between the leaver's look at the crowd and the
    place's return to the pool.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    line = queue_of(limiter)
    entering = [limiter.__aenter__()]
    waits: list[asyncio.Future[Any]] = []

    class Pool(list[None]):
        def append(self, permit: None) -> None:
            waits.extend(late.send(None) for late in entering)
            super().append(permit)
            came = entering and (line.enter() if newcomer == "entry" else limiter.try_acquire())
            assert not came, "somebody waits for it"

    await limiter.__aenter__()
    waiters_of(limiter).holders.pool = Pool()
    line._build_fast_path()
    line.leave()

    assert waits[0].done()
    with pytest.raises(StopIteration):
        entering.pop().send(None)
    line.leave()
    assert_all_free(limiter)


async def test_who_arrives_while_the_limits_change_waits_under_the_new_ones(name: str) -> None:
    """L2: the capacity was raised between the look and the queue."""
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    order: list[object] = []
    await limiter.__aenter__()

    with while_it_arrives(lambda: declared(Limiter(name, Concurrency(2), store=store))):
        await soon(asyncio.create_task(visits(limiter, order, "second")))

    assert order == ["second"]
    queue_of(limiter).leave()
    assert_all_free(limiter)


async def test_who_arrives_while_another_thread_queues_is_not_passed_by_those_behind(
    name: str,
) -> None:
    """S6: a thread queues while A arrives at the crowd; C comes after A, and passes after A."""
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    elsewhere = Elsewhere(limiter)
    order: list[object] = []
    await limiter.__aenter__()

    def thread() -> None:
        with limiter:
            order.append("thread")

    def thread_queues() -> None:
        threading.Thread(target=thread, daemon=True).start()
        while not waiters_of(limiter).gate.queue:
            pass

    with while_it_arrives(thread_queues):
        first = asyncio.create_task(visits(limiter, order, "A"))
        await asyncio.sleep(0)
    second = asyncio.create_task(visits(limiter, order, "C"))
    await asyncio.sleep(0)
    queue_of(limiter).leave()
    await soon(first, second)

    elsewhere.ends()
    assert order == ["thread", "A", "C"]
    assert_all_free(limiter)


# While the crowd moves ----------------------------------------------------------------------------

ASKING: dict[str, Callable[[Limiter], Any]] = {
    "acquire": lambda limiter: limiter.acquire(),
    "weighted": lambda limiter: limiter.acquire(mb=1),
    "max_sleep": lambda limiter: limiter.acquire(max_sleep=60),
}


@pytest.mark.parametrize("kind", ASKING)
async def test_a_place_that_comes_free_while_the_crowd_moves_is_taken(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: the first of the crowd is between two queues, because somebody asks for a permit, and a
    thread leaves just then.
    """
    limiter = declared(
        Limiter(name, Concurrency(1), Concurrency(9, unit="mb"), store=MemoryStore())
    )
    elsewhere = Elsewhere(limiter)
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(visits(limiter, order, "first"))
    await asyncio.sleep(0)

    async def ask() -> None:
        async with ASKING[kind](limiter):
            order.append("second")

    with while_it_moves(lambda: elsewhere.does(queue_of(limiter).leave), monkeypatch):
        second = asyncio.create_task(ask())
        await soon(first, second)

    elsewhere.ends()
    assert order == ["first", "second"]
    assert_all_free(limiter)


@pytest.mark.parametrize("kind", ASKING)
async def test_a_place_that_comes_free_while_the_first_one_queues_is_taken(
    name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: whoever leaves just then sees nobody yet; so who queues looks again."""
    limiter = declared(
        Limiter(name, Concurrency(1), Concurrency(9, unit="mb"), store=MemoryStore())
    )
    await limiter.__aenter__()

    async def ask() -> None:
        async with ASKING[kind](limiter):
            pass

    with while_it_moves(queue_of(limiter).leave, monkeypatch):
        await soon(asyncio.create_task(ask()))

    assert_all_free(limiter)


async def test_nobody_slips_in_while_the_crowd_moves(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: a thread leaves and a newcomer comes while the first of the crowd is between two queues:
    it is not passed.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    elsewhere = Elsewhere(limiter)
    order: list[object] = []
    slipped: list[bool] = []
    await limiter.__aenter__()
    first = asyncio.create_task(visits(limiter, order, "first"))
    await asyncio.sleep(0)

    def leave_and_come() -> None:
        elsewhere.does(queue_of(limiter).leave)
        slipped.append(bool(waiters_of(limiter).holders.pool) and queue_of(limiter).enter())

    with while_it_moves(leave_and_come, monkeypatch):
        limiter.status()
    await soon(first)

    elsewhere.ends()
    assert (slipped, order) == ([False], ["first"])
    assert_all_free(limiter)


# While the limits change --------------------------------------------------------------------------


def test_a_door_that_was_open_before_the_limits_changed_counts_by_the_new_ones(name: str) -> None:
    """S1, T1: a thread is in the middle of entering when another declares; it takes of the new
    limit, or looks again.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(2), store=store))
    door = queue_of(limiter).enter

    declared(Limiter(name, Concurrency(1), store=store))

    inside = door() + queue_of(limiter).enter() + queue_of(limiter).enter()
    assert inside == held(limiter.status()) == 1


def test_a_bucket_that_was_replaced_gives_nothing_more(name: str) -> None:
    """T1: one token an hour; a thread that was about to take it when the limits were declared again
    takes the same one.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    door = queue_of(limiter).enter

    declared(Limiter(name, Rate(1, per=3600, slack=1), store=store))

    assert [door(), queue_of(limiter).enter(), queue_of(limiter).enter()].count(True) <= 1


async def test_a_leave_that_began_before_a_cut_passes_nothing_on(name: str) -> None:
    """S1: two hold, one is about to leave, the capacity is cut to one: it leaves, and nobody enters
    for it.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(2), store=store))
    order: list[object] = []
    await limiter.__aenter__()
    await limiter.__aenter__()
    third = asyncio.create_task(visits(limiter, order, "third"))
    await asyncio.sleep(0)
    leave = queue_of(limiter).leave

    declared(Limiter(name, Concurrency(1), store=store))
    leave()
    await asyncio.sleep(0)

    assert (order, held(limiter.status())) == ([], 1)
    queue_of(limiter).leave()
    await soon(third)
    assert_all_free(limiter)


@pytest.mark.parametrize("around", ["places", "rate", "places, then rate"])
def test_who_is_inside_while_the_limits_change_in_kind_makes_room_for_nobody_else(
    name: str, around: str
) -> None:
    """S1, S7: A came in under other limits than B; when A leaves, B is still inside."""
    store = MemoryStore()
    limits = {"places": (Concurrency(1),), "rate": (Rate(100, per=1),)}
    for kind in around.split(", then "):
        limiter = declared(Limiter(name, *limits[kind], store=store))
        if kind == around.partition(",")[0]:
            limiter.__enter__()

    limiter = declared(Limiter(name, Concurrency(2), store=store))
    with limiter:
        limiter.__exit__(None, None, None)
        assert held(limiter.status()) == 1
        assert queue_of(limiter).enter()
        assert not queue_of(limiter).enter()
        limiter.__exit__(None, None, None)

    assert_all_free(limiter)


def test_a_leave_that_began_under_a_rate_makes_room_under_places(name: str) -> None:
    """S7: a thread is in the middle of leaving when places are declared, and its own is counted."""
    store = MemoryStore()
    limiter = declared(Limiter(name, Rate(100, per=1), store=store))
    limiter.__enter__()
    leave = queue_of(limiter).leave

    limiter = declared(Limiter(name, Concurrency(1), store=store))
    assert is_full(limiter)
    leave()

    assert_all_free(limiter)


def test_a_permit_that_is_released_under_a_rate_is_not_held_under_places(name: str) -> None:
    """S7: places, a rate, places again; the permit went back in between."""
    store = MemoryStore()
    permit = Limiter(name, Concurrency(1), store=store).acquire_sync()

    declared(Limiter(name, Rate(100, per=1), store=store))
    permit.release()

    assert_all_free(declared(Limiter(name, Concurrency(1), store=store)))


async def test_who_waited_for_a_place_and_came_in_by_a_rate_is_inside_as_well(name: str) -> None:
    """S1: one holds a place, one waits for it; a rate lets him in; when there are places again, two
    are taken.
    """
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    visitors = Visitors(limiter)
    visitors.come("holder", "waits")
    await settled()

    declared(Limiter(name, Rate(100, per=1), store=store))
    await settled()
    limiter = declared(Limiter(name, Concurrency(2), store=store))

    assert visitors.order == ["holder", "waits"]
    assert is_full(limiter)
    await visitors.let_out()
    assert_all_free(limiter)


async def test_a_place_that_is_given_up_after_places_became_a_rate_is_free(name: str) -> None:
    """F5, S7: handed over, not heard of yet; the limits change, and its task is cancelled."""
    store = MemoryStore()
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    visitors = Visitors(limiter)
    async with limiter:
        visitors.come("waits")
        await settled()

    declared(Limiter(name, Rate(100, per=1), store=store))
    visitors.tasks["waits"].cancel()
    await settled()

    assert visitors.order == []
    assert_all_free(declared(Limiter(name, Concurrency(1), store=store)))


def test_a_token_that_is_given_up_after_a_rate_became_places_frees_nobodys_place(name: str) -> None:
    """F5, S1: granted by a rate, not heard of yet; now there is one place, and somebody in it; the
    task is cancelled.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Rate(1, per=1, initial=0), store=store))

    async def story() -> None:
        visitors = Visitors(limiter)
        visitors.come("waits")
        await settled()
        clock.jump(1)
        limiter.status()  # whoever looks lets pass whoever is due
        places = declared(Limiter(name, Concurrency(1), store=store))
        with places:
            visitors.tasks["waits"].cancel()
            await settled()
            assert is_full(places)
        assert visitors.order == []
        assert_all_free(places)

    asyncio.run(story())


def test_a_permit_of_a_rate_takes_nothing_from_a_holder_who_came_later(name: str) -> None:
    """S4: it was granted when nothing was held; places are declared before its task goes on."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Rate(1, per=1, initial=0), store=store))

    async def story() -> None:
        asked = asyncio.ensure_future(limiter.acquire())
        await asyncio.sleep(0)
        clock.jump(1)
        limiter.status()  # whoever looks lets pass whoever is due
        places = declared(Limiter(name, Concurrency(1), store=store))
        permit = await asked
        async with places:
            permit.release()
            assert is_full(places)
        assert_all_free(places)

    asyncio.run(story())


def test_after_a_cut_that_is_over_places_go_from_hand_to_hand_again(name: str) -> None:
    """S1: what was held beyond the new capacity is gone; the gate need not be asked for each entry
    any more.
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
def test_an_idle_line_that_was_let_go_and_is_used_again_is_kept_again(
    name: str, use: Callable[[Limiter], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: its limiter is dropped, and the hour's one token stays taken."""
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    Limiter(f"{name}-2", Rate(1, per=1), store=store)

    use(limiter)
    del limiter
    gc.collect()

    assert not Limiter(name, Rate(1, per=3600), store=store).try_acquire()


def test_an_idle_line_let_go_in_the_middle_of_an_entry_owes_what_was_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T12: a thread is about to take the one token of an hour when the store lets go of the idle
    line: it is taken for good.
    """
    monkeypatch.setattr("headgate.stores.memory.store.FEWEST_QUEUES", 1)
    store = MemoryStore()
    store._most = 1
    limiter = declared(Limiter(name, Rate(1, per=3600), store=store))
    door = queue_of(limiter).enter

    Limiter(f"{name}-2", Rate(1, per=1), store=store)
    entered = door()
    del limiter, door
    gc.collect()

    assert not (entered and Limiter(name, Rate(1, per=3600), store=store).try_acquire())


async def test_who_is_granted_between_its_look_and_its_sleep_comes_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2, F7: it has left the crowd for a rate and is about to sleep until its moment; a thread
    that looks then lets it pass.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = declared(Limiter(name, Concurrency(1), store=store))
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(visits(limiter, order, "first"))
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


async def test_a_task_that_passes_behind_others_gets_its_ticket_under_the_lock(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: or another thread gives it a second one, which stays behind."""
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    queue, locked = queue_of(limiter), []
    queue.starting.append("another task")
    send_off = WaitQueue.wake_granted

    def look(queue: WaitQueue, waiter: Waiter) -> None:
        locked.append(has_lock())
        send_off(queue, waiter)

    monkeypatch.setattr(WaitQueue, "wake_granted", look)
    passing = asyncio.create_task(limiter.acquire())
    await asyncio.sleep(0)
    waiters_of(limiter).note_started("another task")
    await (await passing).arelease()

    assert locked == [True]
    assert not queue.starting


async def test_a_task_waits_for_no_other_that_has_begun_meanwhile() -> None:
    """L2: a thread of another loop may have emptied the list of those that start."""
    await begin_in_order(deque())


async def test_a_task_that_wakes_by_itself_while_a_thread_grants_leaves_no_ticket(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L2: given a timer or a refusal between the grant and the waking, then the task's ticket does
    not stay behind. Each later acquire would wait for it.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    visitors, queue = Visitors(limiter), queue_of(limiter)
    permit = await limiter.acquire()
    visitors.come("waits")
    await settled()
    limiter.status()
    granted, seen = threading.Event(), threading.Event()
    send_off = WaitQueue.wake_granted

    def send_off_late(queue: WaitQueue, waiter: Waiter) -> None:
        granted.set()
        seen.wait(0.05)  # the task waits for the lock meanwhile
        send_off(queue, waiter)

    monkeypatch.setattr(WaitQueue, "wake_granted", send_off_late)
    releaser = threading.Thread(target=permit.release)
    releaser.start()
    await asyncio.to_thread(granted.wait)

    next(iter(waiters_of(limiter).gate.queue)).wake()
    await settled()
    seen.set()
    await asyncio.to_thread(releaser.join)

    assert visitors.order == ["waits"]
    assert not queue.starting
    await visitors.let_out()


async def test_who_was_told_before_a_fork_comes_in_after_it(name: str) -> None:
    """F10, L2: its place in the queue has come, and its task has not run yet; in the child
    it does.
    """
    limiter = declared(Limiter(name, Concurrency(1), store=MemoryStore()))
    order: list[object] = []
    await limiter.__aenter__()
    first = asyncio.create_task(visits(limiter, order, "first"))
    await asyncio.sleep(0)
    limiter.status()
    queue_of(limiter).leave()

    queue_of(limiter).forked()
    await soon(first)

    assert order == ["first"]
    assert first.exception() is None
