"""A queue can be seen: by callers that are refused, and by callers that have to wait, in their own
task or thread, before they sleep.
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

owner: ContextVar[str] = ContextVar("whose", default="nobody's")


class BrokenError(Exception):
    """An error that a user's callback may raise."""


async def acquired(
    limiter: Limiter, on_wait: Callable[[Waiting], object] | None = None, cost: int = 1
) -> Permit:
    return await limiter.acquire(cost, on_wait=on_wait)


async def queue(limiter: Limiter, length: int) -> list[asyncio.Task[Permit]]:
    """So many tasks that wait, in this order."""
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


# Refused ------------------------------------------------------------------------------------------


@told
async def test_a_caller_refused_by_a_full_queue_knows_its_length_and_its_wait(world: World) -> None:
    """S9: given a full queue, when several callers acquire at once, then each error has its length
    and the seconds until the caller's turn.
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
async def test_a_caller_refused_by_a_full_queue_for_permits_knows_that_a_release_decides(
    world: World,
) -> None:
    limiter = world.limiter(Concurrency(1), max_waiters=0)

    async with limiter:
        with pytest.raises(QueueFullError, match="only a release can say") as refused:
            await soon(limiter.acquire())

    assert (refused.value.position, refused.value.retry_after) == (0, None)
    await at_rest(limiter)


# Waiting ------------------------------------------------------------------------------------------


@told
async def test_each_callback_gets_the_position_and_the_estimate_of_its_caller(world: World) -> None:
    """Given an empty bucket, when three callers come together, then each callback gets the number
    of callers before it, and the time of its turn.
    """
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    reported: list[tuple[int, Waiting]] = []
    callers = [
        asyncio.create_task(
            acquired(
                limiter,
                lambda its, caller_number=caller_number: reported.append((caller_number, its)),
            )
        )
        for caller_number in range(3)
    ]
    await waiting(limiter, 3)

    assert [(caller_number, its.position) for caller_number, its in reported] == [
        (0, 0),
        (1, 1),
        (2, 2),
    ]
    for caller_number, its in reported:
        assert its.retry_after == pytest.approx((caller_number + 1) * HOUR, abs=world.slack or 0.01)
    await gone(limiter, callers)
    assert len(reported) == 3


@told
async def test_the_callback_of_a_limiter_is_called_for_every_entry_that_waits(world: World) -> None:
    """Given permits alone, when entries have to wait, then the callback gets their positions, and
    no time, because only a release can help.
    """
    reported: list[Waiting] = []
    limiter = world.limiter(Concurrency(1), on_wait=reported.append)

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

    assert reported == [Waiting(0, None), Waiting(1, None), Waiting(2, None)]
    await at_rest(limiter)


@told
async def test_the_callback_of_an_acquire_overrides_that_of_the_limiter_and_its_keys(
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
async def test_a_position_counts_entries_without_a_callback_too(world: World) -> None:
    """Given tasks that wait by `async with`, when a caller with a callback comes, then its position
    counts them. They go first (S6).
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
async def test_no_callback_is_called_for_callers_that_pass_at_once_or_are_refused(
    world: World,
) -> None:
    """Given a callback, when an acquire passes at once or is refused, then the callback is not
    called.
    """
    reported: list[Waiting] = []
    limiter = world.limiter(
        Rate(3, per=HOUR), Concurrency(2), on_wait=reported.append, max_waiters=0
    )

    async with limiter:
        pass
    permits = [await limiter.acquire(max_sleep=HOUR), limiter.acquire_sync()]
    with pytest.raises(QueueFullError):
        await soon(limiter.acquire())
    with pytest.raises(MaxSleepExceededError):
        await soon(limiter.acquire(max_sleep=0.5))
    assert not await limiter.atry_acquire()

    assert reported == []
    for permit in permits:
        permit.release()


@told
async def test_a_short_wait_calls_the_callback_in_memory_and_is_a_reservation_on_redis(
    world: World,
) -> None:
    """On Redis a moment within 50 ms is reserved at once: that is a grant, and no caller stands
    before it.
    """
    reported: list[Waiting] = []
    limiter = world.limiter(Rate(1, per=0.02), on_wait=reported.append)

    for _ in range(3):
        await soon(limiter.acquire())

    assert len(reported) == (2 if world.in_memory else 0)


@told
async def test_a_callback_is_called_in_the_task_that_waits(world: World) -> None:
    """The callback sees the task's context variables, so that a log can name the request."""
    limiter = world.limiter(Concurrency(1))
    seen: list[tuple[str, object]] = []

    async def ask(name: str) -> None:
        owner.set(name)
        async with limiter.acquire(
            on_wait=lambda its: seen.append((owner.get(), asyncio.current_task()))
        ):
            pass

    holder = await limiter.acquire()
    callers = [asyncio.create_task(ask(name)) for name in ("ann's", "bob's")]
    await waiting(limiter, 2)
    holder.release()
    await soon(asyncio.gather(*callers))

    assert seen == [("ann's", callers[0]), ("bob's", callers[1])]


@told
async def test_an_error_in_a_callback_ends_that_acquire_and_no_other(world: World) -> None:
    """S7: given a queue, when the callback of one in the middle fails, then its caller gets the
    error and those behind move up.
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
async def test_a_callback_may_look_at_the_limiter_and_cancel_its_task(world: World) -> None:
    """It is called with no lock held: it may ask for the limiter's repr, change the limits, cancel
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


def test_a_callback_is_called_in_the_thread_that_waits(store: object, name: str) -> None:
    """Given a permit that is held, when a thread has to wait for it, then its callback runs once,
    in that thread. The thread passes.
    """
    limiter = Limiter(name, Concurrency(1), store=store)
    reported: list[tuple[Waiting, str]] = []
    there = threading.Event()

    def report(its: Waiting) -> None:
        reported.append((its, threading.current_thread().name))
        there.set()

    def work() -> None:
        limiter.acquire_sync(on_wait=report).release()
        with limiter.acquire(on_wait=report):
            pass

    holder = limiter.acquire_sync()
    thread = threading.Thread(target=work, name="the one that waits")
    thread.start()
    assert there.wait(5)
    holder.release()
    thread.join(5)

    assert reported == [(Waiting(0, None), "the one that waits")]


def test_a_thread_with_a_callback_that_fails_waits_no_more(store: object, name: str) -> None:
    """S7: the error reaches the thread, by each way of acquiring. The thread leaves the queue, and
    a permit that came meanwhile is released.
    """
    reported: list[Waiting] = []

    def broken(its: Waiting, then: Callable[[], object] = list) -> None:
        reported.append(its)
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

    assert [its.position for its in reported] == [0, 0, 0]
    with limiter:
        pass
    asyncio.run(at_rest(limiter))


def test_a_callback_changes_nothing_about_the_max_sleep_of_a_thread(
    store: object, name: str
) -> None:
    """A callback changes nothing about `max_sleep`."""
    limiter = Limiter(name, Concurrency(1), store=store)
    reported: list[Waiting] = []
    with limiter.acquire(), pytest.raises(MaxSleepExceededError):
        limiter.acquire_sync(
            max_sleep=0.5, on_wait=reported.append
        )  # a busy server answers within that

    assert reported == [Waiting(0, None)]
    asyncio.run(at_rest(limiter))
