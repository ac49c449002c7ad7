"""The state of a key in memory: a few numbers, until a caller needs the whole queue."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate import Concurrency, Limiter, MaxSleepExceededError, Permit, Quota, Rate, Window
from headgate.limits import Limit
from headgate.stores.memory import store as memory_store
from headgate.stores.memory.key_queue import KeyState
from headgate.stores.memory.lock import DEFERRED
from headgate.stores.memory.store import MemoryStore
from tests.virtual import VirtualClock
from tests.world import HOUR

LIMITS = [Rate(3, per=1.0, capacity=5, initial=2), Window(3, per=1.0), Quota(3, per=1.0)]
Step = tuple[str, float]


def is_numbers(store: MemoryStore, name: str = "api:k") -> bool:
    return isinstance(store.kept[name], KeyState)


def numbers(*limits: Limit | str) -> tuple[MemoryStore, Limiter, VirtualClock]:
    """A limiter whose key "k" has been used once."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = Limiter("api", *(limits or ("2/second",)), store=store)
    assert limiter["k"].try_acquire()
    assert is_numbers(store)
    return store, limiter, clock


def takes_one(limiter: Limiter) -> bool:
    """Whether a permit is free. It goes back at once."""
    answer = limiter.try_acquire()
    if isinstance(answer, Permit):
        answer.release()
    return bool(answer)


# The same answers as a whole queue ----------------------------------------------------------------


class Twin:
    """A limiter of its own store, which takes one step after the other."""

    def __init__(self, limit: Limit, keyed: bool) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore(self.clock)
        self.whole = Limiter("api", limit, store=self.store, max_sleep=0)
        self.limiter = self.whole["k"] if keyed else self.whole
        self.permits: list[Permit] = []
        self.fence = 0
        self.blocks = ExitStack()
        self.step("acquire", 1)  # the state begins

    def step(self, act: str, number: float) -> Any:
        if act == "jump":
            self.clock.jump(number)
        elif act == "enter":
            with suppress(MaxSleepExceededError):
                self.blocks.enter_context(self.limiter)
                return True
        elif act == "leave":
            self.blocks.close()
        elif act == "acquire":
            answer = self.limiter.try_acquire(int(number))
            if isinstance(answer, Permit):
                assert answer.fence > self.fence
                self.fence = answer.fence
                self.permits.append(answer)
                return answer.t, answer.held
            return answer.retry_after
        elif act == "settle" and self.permits:
            self.permits[-1].settle(requests=int(number))
        elif act == "release" and self.permits:
            self.permits.pop().release()
        elif act == "pause":
            self.whole.pause(number)
        elif act == "resume":
            self.whole.resume()
        elif act == "drain":
            self.limiter.drain(requests=int(number))
        elif act == "reset":
            self.limiter.reset()
        elif act == "update":
            self.limiter.update(Window(int(number) + 1, per=1.0), Concurrency(3))
        return None

    def end(self) -> None:
        self.blocks.close()
        for permit in self.permits:
            permit.release()

    def seen(self) -> object:
        status = self.limiter.status()
        return status.limits, status.waiting, status.retry_after, status.paused


ACTS = [
    "jump",
    "enter",
    "leave",
    "acquire",
    "settle",
    "release",
    "pause",
    "resume",
    "drain",
    "reset",
]
STEPS = st.lists(
    st.tuples(st.sampled_from([*ACTS, "enter", "acquire", "jump"]), st.sampled_from([0.3, 1, 2, 3]))
)


@pytest.mark.parametrize("limit", LIMITS, ids=str)
@given(steps=STEPS, updates=st.booleans())
def test_a_key_answers_as_a_limiter_of_its_own(
    limit: Limit, steps: list[Step], updates: bool
) -> None:
    """S1, T5: given the same steps, a key and a whole limiter give the same permits, refusals and
    status, whenever the key's queue is opened.
    """
    key, whole = Twin(limit, keyed=True), Twin(limit, keyed=False)
    for act, number in [*steps, *([("update", 2.0), ("acquire", 1.0)] if updates else [])]:
        number = max(1, number) if act == "acquire" else number
        assert key.step(act, number) == whole.step(act, number)
        assert key.seen() == whole.seen()
    key.end()
    whole.end()


# When the queue is opened -------------------------------------------------------------------------


def test_a_key_is_numbers_until_a_caller_waits() -> None:
    """T12: the waiter comes behind the two grants that the numbers have counted."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    limiter = Limiter("api", "2/second", store=store)

    async def story() -> None:
        async with limiter["k"], limiter["k"]:
            assert is_numbers(store)
        start = clock.now()
        async with limiter["k"]:
            assert clock.now() == start + 1_000_000
        assert not is_numbers(store)

    clock.run(story())


def test_a_look_at_a_key_opens_no_queue() -> None:
    store, limiter, _ = numbers()
    assert limiter["k"].status().limits[0].used == 1
    assert "1 of 2 requests used" in repr(limiter["k"])
    assert limiter["new"].status().limits[0].used == 0
    assert is_numbers(store)
    assert "api:new" not in store.kept


def test_blocks_that_began_before_an_update_count_as_holders() -> None:
    """S1: given a caller in a block, when the key gets a concurrency limit, then it holds a
    permit until its block ends.
    """
    _, limiter, _ = numbers()
    key = limiter["k"]
    with key:
        key.update(Concurrency(1))
        assert not takes_one(key)
    assert takes_one(key)


class OpenedMeanwhile(dict[str, Any]):
    """The states of a store, in which another thread opens a queue right after a look."""

    act: Callable[[], None] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        state = super().get(name, default)
        act, self.act = self.act, None
        if act is not None:
            act()
        return state


def test_a_caller_that_leaves_while_its_queue_is_opened_is_counted_out() -> None:
    """S1"""
    store, limiter, _ = numbers()
    key = limiter["k"]
    with key:
        store.kept = states = OpenedMeanwhile(store.kept)
        states.act = lambda: key.update(Concurrency(1))
    assert not is_numbers(store)
    assert takes_one(key)


def test_threads_that_leave_while_the_queue_is_opened_are_all_counted_out() -> None:
    """S1: given threads in blocks, when an update opens the queue, then none of them stays
    counted.
    """
    for _ in range(50):
        limiter = Limiter("api", Rate(10**9, per=1), store=MemoryStore())
        key, ready = limiter["k"], threading.Barrier(4)

        def use(key: Limiter = key, ready: threading.Barrier = ready) -> None:
            ready.wait()
            for _ in range(200):
                with key:
                    pass

        threads = [threading.Thread(target=use) for _ in range(3)]
        for thread in threads:
            thread.start()
        ready.wait()
        key.update(Concurrency(100))
        for thread in threads:
            thread.join()
        assert key.status().limits[0].used == 0


@pytest.mark.parametrize("end", ["resume", "in time"])
def test_after_a_pause_no_acquire_of_a_key_looks_for_one(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one pause of any limiter would slow all keys down from then on."""
    clock = VirtualClock()
    store = MemoryStore(clock)
    paused = Limiter("paused", "2/second", store=store)
    paused.pause(10)
    if end == "resume":
        paused.resume()
    else:
        clock.advance(10)
    monkeypatch.setattr(store, "pauses", None)

    assert Limiter("other", "2/second", store=store)["k"].try_acquire()


def test_a_pause_of_a_key_makes_no_acquire_of_another_key_look_for_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(VirtualClock())
    limiter = Limiter("api", "2/second", store=store)
    limiter["paused"].pause(10)
    monkeypatch.setattr(store, "pauses", None)

    assert limiter["other"].try_acquire()
    assert not limiter["paused"].try_acquire()


def test_a_pause_of_the_whole_limiter_holds_numbers_too() -> None:
    store, limiter, clock = numbers()
    limiter.pause(10)
    assert limiter["k"].status().paused == 10.0
    assert not limiter["k"].try_acquire()
    assert not limiter["new"].try_acquire()
    clock.jump(10.0)
    assert limiter["k"].try_acquire()
    assert limiter["later"].try_acquire()
    assert is_numbers(store, "api:later")


def test_an_idle_key_is_forgotten_but_not_while_a_caller_is_inside() -> None:
    """T12"""
    store, limiter, clock = numbers()
    with limiter["inside"]:
        clock.jump(HOUR)
        for number in range(3000):
            assert limiter[f"tenant {number}"].try_acquire()
        assert "api:k" not in store.kept
        assert is_numbers(store, "api:inside")
    assert limiter["k"].try_acquire()


def test_a_queue_that_was_forgotten_and_is_in_use_goes_on() -> None:
    """T9: given a permit of a forgotten queue, when its key is used again, then a settlement of
    the permit charges the same state.
    """
    store, limiter, clock = numbers("10/second")
    limiter["k"].drain(requests=10)
    permit = limiter["k"].try_acquire()
    assert isinstance(permit, Permit)
    assert not is_numbers(store)
    clock.jump(HOUR)
    for number in range(3000):
        assert limiter[f"tenant {number}"].try_acquire()
    assert "api:k" not in store.kept
    assert limiter["k"].try_acquire()
    permit.settle(requests=4)
    assert limiter["k"].status().limits[0].used == 1 + 3


def test_a_key_that_a_fork_inherits_has_the_counts_and_no_blocks() -> None:
    """S1: the blocks are the parent's."""
    _, limiter, _ = numbers("2/hour")
    with limiter["k"]:
        child = os.fork()
        if not child:
            refused = not limiter["k"].try_acquire()
            limiter["k"].update(Concurrency(1))
            permit = limiter["k"].try_acquire()
            os._exit(0 if refused and permit else 1)
        assert os.waitpid(child, 0)[1] == 0


# Code that interrupts an admission ----------------------------------------------------------------


class InterruptedClock(VirtualClock):
    """A clock that calls `handler` when an admission reads it, as a signal handler would run."""

    handler: Callable[[], None] | None = None

    def now(self) -> int:
        handler, self.handler = self.handler, None
        if handler is not None:
            handler()
        return super().now()


def interrupted(handler: Callable[[Limiter], None]) -> tuple[MemoryStore, Limiter]:
    clock = InterruptedClock()
    store = MemoryStore(clock)
    limiter = Limiter("api", "5/second", store=store)
    assert limiter["k"].try_acquire()
    clock.handler = lambda: handler(limiter)
    assert limiter["k"].try_acquire()
    assert clock.handler is None
    return store, limiter


def test_a_handler_cannot_acquire_the_key_that_it_has_interrupted() -> None:
    """H1: a try is refused, an acquire raises, and another key passes."""
    seen: list[object] = []

    def handler(limiter: Limiter) -> None:
        seen.append(bool(limiter["k"].try_acquire()))
        with pytest.raises(RuntimeError, match="interrupted this thread"):
            limiter["k"].acquire_sync()
        with pytest.raises(RuntimeError, match="interrupted this thread"), limiter["k"]:
            pass
        seen.append(bool(limiter["other"].try_acquire()))
        seen.append(limiter["k"].status().limits[0].used)

    _, limiter = interrupted(handler)
    assert seen == [False, True, 1]
    assert limiter["k"].status().limits[0].used == 2


def test_a_change_by_a_handler_takes_effect_after_the_admission() -> None:
    """H1"""
    _, limiter = interrupted(lambda limiter: limiter["k"].update("1/second"))
    limits = limiter["k"].status().limits
    assert (limits[0].used, limits[0].capacity) == (2, 1)


def test_an_exception_of_a_handler_leaves_the_key_usable() -> None:
    """H1: the lock is free, and nothing was taken."""

    def handler(limiter: Limiter) -> None:
        raise InterruptedError

    clock = InterruptedClock()
    limiter = Limiter("api", "5/second", store=MemoryStore(clock))
    assert limiter["k"].try_acquire()
    clock.handler = lambda: handler(limiter)
    with pytest.raises(InterruptedError):
        limiter["k"].try_acquire()
    assert limiter["k"].status().limits[0].used == 1
    used: list[bool] = []
    thread = threading.Thread(target=lambda: used.append(bool(limiter["k"].try_acquire())))
    thread.start()
    thread.join(10)
    assert used == [True]


def test_an_exception_after_the_grant_of_a_block_counts_its_caller_out() -> None:
    """H1: given a deferred call that raises, when a block enters, then the exception comes out
    and no caller is inside.
    """
    store, limiter, _ = numbers()
    raises = [True]

    def act() -> None:
        if raises.pop():
            raises.append(False)
            raise InterruptedError

    DEFERRED.append((store.lock, act))
    with pytest.raises(InterruptedError), limiter["k"]:
        pass
    assert store.kept["api:k"].inside == 0  # type: ignore[union-attr]  # it is a KeyState


async def test_a_task_outside_asyncio_cannot_enter_a_key() -> None:
    limiter = Limiter("api", "5/second", store=MemoryStore())
    step = limiter["k"].__aenter__()
    with pytest.raises(RuntimeError, match="No event loop of asyncio runs here"):
        await asyncio.to_thread(step.send, None)


# A key that is forgotten, and one that another limiter has opened ---------------------------------


def forget(limiter: Limiter, clock: VirtualClock) -> None:
    """Use so many other keys that the store forgets all that are idle."""
    clock.jump(HOUR)
    for number in range(3000):
        assert limiter[f"other {number}"].try_acquire()
    gc.collect()


def passes(way: Callable[[Limiter], object], key: Limiter) -> bool:
    """Whether an acquire of this kind passes at once."""
    try:
        return bool(way(key))
    except MaxSleepExceededError:
        return False


def enter_block(key: Limiter) -> bool:
    with key:
        return True


def enter_block_of_task(key: Limiter) -> bool:
    async def enter() -> bool:
        async with key:
            return True

    return asyncio.run(enter())


WAYS = [
    Limiter.try_acquire,
    lambda key: key.acquire_sync(max_sleep=0),
    enter_block,
    enter_block_of_task,
]


def opened_keys() -> list[Limiter]:
    """A new key and a forgotten one, whose queues a limiter without limits has opened."""
    clock = VirtualClock()
    limiter = Limiter("api", "2/hour", store=MemoryStore(clock), max_sleep=0)
    keys = [limiter["new"], limiter["k"]]
    assert limiter["k"].try_acquire()
    forget(limiter, clock)
    for key in keys:
        assert key.key is not None
        Limiter.attach("api", store=limiter._store)[key.key]  # a web page does that
    return keys


@pytest.mark.parametrize("way", WAYS, ids=["try", "acquire", "with", "async with"])
def test_a_key_that_a_limiter_without_limits_has_opened_keeps_its_limits(
    way: Callable[[Limiter], object],
) -> None:
    """S1"""
    for key in opened_keys():
        assert [passes(way, key) for _ in range(3)] == [True, True, False]


def test_a_drain_of_a_key_that_a_limiter_without_limits_has_opened_counts() -> None:
    for key in opened_keys():
        key.drain(requests=1)
        assert [passes(enter_block, key) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("act", ["try", "acquire", "enter", "enter task"])
def test_the_first_acquire_of_each_limiter_declares_its_limits(act: str) -> None:
    """Given the same key of two limiters with different limits, both made before the first use,
    then the limits of the later acquire hold. A second acquire of the first one declares nothing.
    """
    clock = VirtualClock()
    store = MemoryStore(clock)
    older, later = (Limiter("api", limits, store=store)["k"] for limits in ("3/hour", "5/hour"))

    async def use(key: Limiter) -> None:
        if act == "try":
            assert key.try_acquire()
        elif act == "acquire":
            await key.acquire()
        elif act == "enter":
            with key:
                pass
        else:
            async with key:
                pass

    def seen() -> list[tuple[int, int]]:
        return [(limit.used, limit.capacity) for limit in older.status().limits]

    clock.run(use(older))
    assert seen() == [(1, 3)]
    clock.run(use(later))
    assert seen() == [(2, 5)]
    clock.run(use(older))
    assert seen() == [(3, 5)]


def test_a_key_is_not_forgotten_while_a_caller_is_in_a_block_of_its_queue() -> None:
    """S1"""
    _, limiter, clock = numbers()
    limiter["k"].reset()  # opens the queue
    with limiter["k"]:
        forget(limiter, clock)
        limiter["k"].update(Concurrency(1))
        assert not takes_one(limiter["k"])
    assert takes_one(limiter["k"])


def test_a_use_just_after_a_key_was_found_idle_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given a thread that uses the key's queue as soon as it is closed, then the store keeps it."""
    _, limiter, clock = numbers("2/hour")
    limiter["k"].reset()
    clock.jump(HOUR)
    used: list[bool] = []

    def use(name: str, _: Any) -> None:
        if name == "api:k" and not used:
            used.append(bool(limiter["k"].try_acquire()))

    monkeypatch.setattr(memory_store, "remember_units", use)
    forget(limiter, clock)
    assert used == [True]
    assert limiter["k"].status().limits[0].used == 1


def test_a_debt_of_a_forgotten_key_outlasts_an_update() -> None:
    _, limiter, clock = numbers("5/second")
    permit = limiter["k"].acquire_sync()
    forget(limiter, clock)
    permit.settle(requests=1000)
    limiter["k"].update("6/second")
    assert limiter["k"].status().limits[0].used > 900


def test_a_handler_may_declare_other_limits_and_finds_the_key_busy() -> None:
    """H1"""
    answers: list[object] = []

    def handler(limiter: Limiter) -> None:
        other = Limiter("api", "7/second", store=limiter._store)
        answers.append(bool(other["k"].try_acquire()))

    _, limiter = interrupted(handler)
    assert answers == [False]
    assert limiter["k"].status().limits[0].capacity == 7


# Python reports an exception that comes while a generator ends, and goes on.
@pytest.mark.filterwarnings("ignore:.*Lock._first:pytest.PytestUnraisableExceptionWarning")
def test_an_exception_while_a_key_is_opened_leaves_it_paused_with_its_limiter() -> None:
    class Stopped(BaseException):
        """Of a signal handler."""

    def stop() -> None:
        raise Stopped

    place, more = 0, True
    while more:
        _, limiter, _ = numbers("5/hour")
        limiter.pause(60)
        with suppress(Stopped):
            more = at_place(place, limiter["k"].reset, stop)
        assert not takes_one(limiter["k"])
        place += 1
    assert place > 20


# A handler at each place --------------------------------------------------------------------------

ACTS: dict[str, Callable[[Limiter], Any]] = {
    "enter": lambda limiter: limiter["k"].__enter__(),
    "try": lambda limiter: takes_one(limiter["k"]),
    "reset": lambda limiter: limiter["k"].reset(),
    "update": lambda limiter: limiter["k"].update("4/minute"),
    "hold": lambda limiter: limiter["k"].update(Concurrency(3)),
    "pause": lambda limiter: limiter["k"].pause(60),
    "pause all": lambda limiter: limiter.pause(60),
}


def at_place(number: int, act: Callable[[], Any], handler: Callable[[], Any]) -> bool:
    """Run `act`, and `handler` at a place in headgate where Python may run a signal handler: where
    a function begins, and behind a call of C. False: there are not so many places.
    """
    left = number

    def look(frame: Any, event: str, _: Any) -> None:
        nonlocal left
        if event in ("call", "c_return") and "/headgate/" in frame.f_code.co_filename:
            left -= 1
            if left < 0:
                sys.setprofile(None)
                handler()

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return left < 0


def end_of(*steps: Callable[[Limiter], Any], place: int | None = None) -> Any:
    """The limits and pauses after the steps, and how many callers are in a block. With `place`, the
    second interrupts the first there; None: there are not so many places.
    """
    _, limiter, _ = numbers("5/hour")
    limiter = Limiter("api", "5/hour", store=limiter._store, max_sleep=0)

    def run(step: Callable[[Limiter], Any]) -> None:
        with suppress(MaxSleepExceededError):
            step(limiter)

    if place is None:
        for step in steps:
            run(step)
    elif not at_place(place, lambda: run(steps[0]), lambda: run(steps[1])):
        return None
    key, limits, paused = limiter["k"], limiter["k"].status().limits, limiter["k"].status().paused
    limiter.resume()
    key.resume()
    key.update(Concurrency(9))
    return [(str(each.limit), each.used) for each in limits], paused, key.status().limits[0].used


@pytest.mark.parametrize("handler", ["update", "hold", "pause", "pause all"])
@pytest.mark.parametrize("act", ["enter", "try", "reset"])
def test_a_change_by_a_handler_at_any_place_comes_before_or_after(act: str, handler: str) -> None:
    """H1, S1: given code that uses or opens a key, then a handler's change of it is not lost, and
    the callers in blocks are counted.
    """
    first, second = ACTS[act], ACTS[handler]
    right = [end_of(first, second), end_of(second, first)]
    place = 0
    while (end := end_of(first, second, place=place)) is not None:
        assert end in right, (place, right)
        place += 1
    assert place > 20
