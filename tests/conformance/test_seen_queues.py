"""A queue can be seen: by who is turned away, and by who has to wait, in its own task or thread,
before it sleeps.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial

import pytest

from headgate import (
    Concurrency,
    Limiter,
    MaxSleepExceededError,
    Permit,
    QueueFullError,
    Rate,
    Waiting,
)
from tests.world import HOUR, World, at_rest, soon, told, used, waiting

whose: ContextVar[str] = ContextVar("whose", default="nobody's")


class BrokenError(Exception):
    """What a callback of the user's own may raise."""


async def acquired(
    limiter: Limiter, on_wait: Callable[[Waiting], object] | None = None, cost: int = 1
) -> Permit:
    return await limiter.acquire(cost, on_wait=on_wait)


async def queue(limiter: Limiter, length: int) -> list[asyncio.Task[Permit]]:
    """So many who wait, in this order."""
    callers = []
    for number in range(1, length + 1):
        callers.append(asyncio.create_task(acquired(limiter)))
        await waiting(limiter, number)
    return callers


async def gone(limiter: Limiter, callers: list[asyncio.Task[Permit]]) -> None:
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    await waiting(limiter, 0)


# Turned away --------------------------------------------------------------------------------------


@told
async def test_who_is_turned_away_knows_how_many_wait_and_how_long(world: World) -> None:
    """S9: given a full queue, when several ask at once, then each is told its length and the
    seconds until its turn.
    """
    limiter = world.limiter(Rate(1, per=HOUR), max_waiters=2)
    await limiter.acquire()
    callers = await queue(limiter, 2)

    refused = await asyncio.gather(*(acquired(limiter) for _ in range(3)), return_exceptions=True)

    for error in refused:
        assert isinstance(error, QueueFullError)
        assert error.position == 2
        assert error.retry_after == pytest.approx(3 * HOUR, abs=world.slack or 0.01)
        assert "found 2 waiting before it, and its queue is full at 2" in str(error)
        assert f"{error.retry_after:g} s away" in str(error)
    await gone(limiter, callers)


@told
async def test_who_is_turned_away_from_permits_knows_that_a_release_decides(world: World) -> None:
    limiter = world.limiter(Concurrency(1), max_waiters=0)

    async with limiter:
        with pytest.raises(QueueFullError, match="only a release can say") as refused:
            await soon(limiter.acquire())

    assert (refused.value.position, refused.value.retry_after) == (0, None)
    await at_rest(limiter)


# Waiting ------------------------------------------------------------------------------------------


@told
async def test_each_hears_its_position_and_its_estimate(world: World) -> None:
    """Given an empty bucket, when three come together, then each hears once who stands before it,
    and when it is its turn.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    heard: list[tuple[int, Waiting]] = []
    callers = [
        asyncio.create_task(acquired(limiter, lambda its, who=who: heard.append((who, its))))
        for who in range(3)
    ]
    await waiting(limiter, 3)

    assert [(who, its.position) for who, its in heard] == [(0, 0), (1, 1), (2, 2)]
    for who, its in heard:
        assert its.retry_after == pytest.approx((who + 1) * HOUR, abs=world.slack or 0.01)
    await gone(limiter, callers)
    assert len(heard) == 3


@told
async def test_the_limiters_callback_hears_of_every_entry(world: World) -> None:
    """Given permits alone, when entries have to wait, then they hear their positions, and that only
    a release can help.
    """
    heard: list[Waiting] = []
    limiter = world.limiter(Concurrency(1), on_wait=heard.append)

    async def visit() -> None:
        async with limiter:
            pass

    holder = await limiter.acquire()
    callers = [asyncio.create_task(visit()) for _ in range(2)]
    await waiting(limiter, 2)
    callers.append(asyncio.create_task(visit()))
    await waiting(limiter, 3)
    holder.release()
    await soon(asyncio.gather(*callers))

    assert heard == [Waiting(0, None), Waiting(1, None), Waiting(2, None)]
    await at_rest(limiter)


@told
async def test_a_keys_entries_are_heard_of_too_and_an_acquires_own_word_counts(
    world: World,
) -> None:
    keys: list[Waiting] = []
    own: list[Waiting] = []
    limiter = world.limiter(Concurrency(1), on_wait=keys.append)["tenant"]
    holder = await limiter.acquire()
    first = asyncio.create_task(acquired(limiter))
    await waiting(limiter, 1)
    second = asyncio.create_task(acquired(limiter, own.append))
    await waiting(limiter, 2)

    assert (keys, own) == ([Waiting(0, None)], [Waiting(1, None)])
    await gone(limiter, [first, second])
    holder.release()


@told
async def test_entries_that_ask_for_nothing_in_particular_stand_before_it_too(world: World) -> None:
    """Given a crowd of `async with`, when one comes that wants to know, then it hears of all of
    them, and they go first (S6).
    """
    limiter = world.limiter(Concurrency(1))
    passed: list[object] = []

    async def visit() -> None:
        async with limiter:
            passed.append("one of the crowd")

    holder = await limiter.acquire()
    callers = [asyncio.create_task(visit()) for _ in range(2)]
    await waiting(limiter, 2)
    last = asyncio.create_task(acquired(limiter, passed.append))
    await waiting(limiter, 3)
    holder.release()
    (await soon(last)).release()
    await asyncio.gather(*callers)

    assert passed == [Waiting(2, None), "one of the crowd", "one of the crowd"]
    await at_rest(limiter)


@told
async def test_who_passes_or_is_refused_does_not_wait(world: World) -> None:
    """Given a callback, when an acquire passes at once or is refused, then nothing is heard."""
    heard: list[Waiting] = []
    limiter = world.limiter(Rate(3, per=HOUR), Concurrency(2), on_wait=heard.append, max_waiters=0)

    async with limiter:
        pass
    permits = [await limiter.acquire(max_sleep=HOUR), limiter.acquire_sync()]
    with pytest.raises(QueueFullError):
        await soon(limiter.acquire())
    with pytest.raises(MaxSleepExceededError):
        await soon(limiter.acquire(max_sleep=0.5))
    assert not await limiter.atry_acquire()

    assert heard == []
    for permit in permits:
        permit.release()


@told
async def test_a_wait_that_is_known_to_end_in_a_moment_is_a_wait_in_memory_and_a_booking_on_redis(
    world: World,
) -> None:
    """On Redis a moment within 50 ms is booked at once: that is a grant, and nobody stands before
    it.
    """
    heard: list[Waiting] = []
    limiter = world.limiter(Rate(1, per=0.02), on_wait=heard.append)

    for _ in range(3):
        await soon(limiter.acquire())

    assert len(heard) == (2 if world.in_memory else 0)


@told
async def test_it_is_called_in_the_task_that_waits(world: World) -> None:
    """What a task has set for itself is seen by its callback: whose request it is, for a log."""
    limiter = world.limiter(Concurrency(1))
    seen: list[tuple[str, object]] = []

    async def ask(name: str) -> None:
        whose.set(name)
        async with limiter.acquire(
            on_wait=lambda its: seen.append((whose.get(), asyncio.current_task()))
        ):
            pass

    holder = await limiter.acquire()
    callers = [asyncio.create_task(ask(name)) for name in ("ann's", "bob's")]
    await waiting(limiter, 2)
    holder.release()
    await soon(asyncio.gather(*callers))

    assert seen == [("ann's", callers[0]), ("bob's", callers[1])]


@told
async def test_what_it_raises_gives_up_the_acquire_and_no_other(world: World) -> None:
    """S7: given a queue, when the callback of one in the middle fails, its caller gets the error
    and those behind move up.
    """
    limiter = world.limiter(Concurrency(1), Rate(100, per=HOUR))

    def broken(its: Waiting) -> None:
        raise BrokenError(its.position)

    holder = await limiter.acquire()
    before = asyncio.create_task(acquired(limiter))
    await waiting(limiter, 1)
    with pytest.raises(BrokenError, match="1"):
        await soon(acquired(limiter, broken))
    await waiting(limiter, 1)
    behind = asyncio.create_task(acquired(limiter))
    await waiting(limiter, 2)

    holder.release()
    (await soon(before)).release()
    (await soon(behind)).release()
    assert used(await at_rest(limiter)) == [0, 3]


@told
async def test_it_may_look_at_the_limiter(world: World) -> None:
    """It is called with no lock held: it may ask for the limiter's line, change the limits, cancel
    its own task.
    """
    limiter = world.limiter(Concurrency(1))
    shown: list[str] = []
    holder = await limiter.acquire()

    def look(its: Waiting) -> None:
        shown.append(repr(limiter))
        task = asyncio.current_task()
        assert task is not None
        task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await soon(asyncio.create_task(acquired(limiter, look)))

    assert len(shown) == 1
    holder.release()
    await at_rest(limiter)


# Threads ------------------------------------------------------------------------------------------


def test_a_thread_hears_of_its_wait_itself(store: object, name: str) -> None:
    """Given a permit that is held, when a thread has to wait for it, then its callback runs in that
    thread, once, and it passes.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    heard: list[tuple[Waiting, str]] = []
    there = threading.Event()

    def hear(its: Waiting) -> None:
        heard.append((its, threading.current_thread().name))
        there.set()

    def work() -> None:
        limiter.acquire_sync(on_wait=hear).release()
        with limiter.acquire(on_wait=hear):
            pass

    holder = limiter.acquire_sync()
    thread = threading.Thread(target=work, name="the one that waits")
    thread.start()
    assert there.wait(5)
    holder.release()
    thread.join(5)

    assert heard == [(Waiting(0, None), "the one that waits")]


def test_a_thread_whose_callback_fails_waits_no_more(store: object, name: str) -> None:
    """S7: the error reaches the thread, by each way in; its place is gone, and so is a permit that
    came in the meantime.
    """
    heard: list[Waiting] = []

    def broken(its: Waiting, then: Callable[[], object] = list) -> None:
        heard.append(its)
        then()
        raise BrokenError

    limiter = Limiter(name, Concurrency(1), store=store, on_wait=broken)
    holder = limiter.acquire_sync()
    with pytest.raises(BrokenError):
        limiter.acquire_sync()
    with pytest.raises(BrokenError), limiter:
        pass
    with pytest.raises(BrokenError):
        limiter.acquire_sync(on_wait=partial(broken, then=holder.release))

    assert [its.position for its in heard] == [0, 0, 0]
    with limiter:
        pass
    asyncio.run(at_rest(limiter))


def test_a_thread_that_waits_long_enough_is_refused_as_ever(store: object, name: str) -> None:
    """A callback changes nothing about `max_sleep`."""
    limiter = Limiter(name, Concurrency(1), store=store)
    heard: list[Waiting] = []
    with limiter.acquire(), pytest.raises(MaxSleepExceededError):
        limiter.acquire_sync(
            max_sleep=0.5, on_wait=heard.append
        )  # a busy server answers within that

    assert heard == [Waiting(0, None)]
    asyncio.run(at_rest(limiter))
