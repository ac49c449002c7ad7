"""The watch over a body, in virtual time: as careful with cancellations as asyncio.timeout, and
never too late (S2, F8).

Here a store stands in that does as the test says (tests/leases.py); real servers come in
faults/test_leases.py.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, TypeVar

import pytest

from headgate import LeaseLostError, Limiter
from headgate.permit import set_lease_end
from headgate.stores.memory.store import MemoryStore
from tests.leases import LEASE, Leases, run

T = TypeVar("T")

# Lost ---------------------------------------------------------------------------------------------


def test_a_body_is_cancelled_before_its_lease_can_end(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """S2: given a server that is unavailable, when the lease counted from its sending ends, then
    the body has left its await.
    """
    ended = []

    async def story() -> None:
        with pytest.raises(LeaseLostError):
            async with block():
                try:
                    await asyncio.sleep(3600)
                finally:
                    ended.append((leases.clock.elapsed(), leases.permits[0].lost))

    leases.delay = (
        4.0  # half a lease later it is there, and has to be believed from when it was asked for
    )
    run(leases, story())

    ((moment, lost),) = ended
    assert LEASE - 0.1 <= moment <= LEASE
    assert lost


async def renewed_nine_times(
    leases: Leases, renew: Callable[[], object], ended: list[float]
) -> None:
    """Hold for three leases, and then until the body is cancelled: `ended` gets that moment."""
    for _ in range(9):
        await asyncio.sleep(LEASE / 3)
        renew()
    try:
        await asyncio.sleep(3600)
    finally:
        ended.append(leases.clock.elapsed())


def test_a_renewal_extends_the_watch(leases: Leases, block: Callable[[], Any]) -> None:
    """S2: for as long as renewals succeed no task is disturbed; then the lease counts from the last
    of them.
    """
    ended = []

    async def story() -> None:
        with pytest.raises(LeaseLostError):
            async with block():
                await renewed_nine_times(leases, leases.renew, ended)

    run(leases, story())

    assert 4 * LEASE - 0.1 <= ended[0] <= 4 * LEASE


def test_a_renewal_with_a_shorter_lease_shortens_the_watch(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """S2: a lease declared shorter elsewhere is the one that counts from the next renewal on."""

    async def story() -> float:
        with pytest.raises(LeaseLostError):
            async with block():
                set_lease_end(leases.permits[0], leases.clock.elapsed() + 1.0)
                await asyncio.sleep(3600)
        return leases.clock.elapsed()

    assert run(leases, story()) <= 1.0


def test_a_permit_that_the_store_has_forgotten_is_lost_at_once(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F45, S4: a renewal that finds nothing to renew ends the body that moment, and not when the
    lease would have ended.
    """

    async def story() -> float:
        asyncio.get_running_loop().call_later(2.0, leases.forget)
        with pytest.raises(LeaseLostError):
            async with block():
                await asyncio.sleep(3600)
        return leases.clock.elapsed()

    assert run(leases, story()) == pytest.approx(2.0, abs=0.001)


def test_a_body_is_cancelled_before_it_goes_on_after_the_loop_was_blocked(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F12: the loop stood still for two leases, and the body's await is done meanwhile: it is
    cancelled all the same.
    """
    went_on = []

    async def story() -> None:
        asyncio.get_running_loop().call_later(1.0, leases.clock.jump, 2 * LEASE)
        with pytest.raises(LeaseLostError):
            async with block():
                await asyncio.sleep(2.0)
                went_on.append(True)

    run(leases, story())

    assert went_on == []


def test_a_block_raises_at_its_end_if_its_body_ran_on_past_the_loss(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F12: it blocked the loop itself and never awaited: `lost` is true by the clock, and the block
    raises, once and for all.
    """
    seen = []

    async def story() -> None:
        with pytest.raises(LeaseLostError):
            async with block():
                leases.clock.jump(2 * LEASE)
                seen.append(leases.permits[0].lost)
        await asyncio.sleep(1.0)

    run(leases, story())

    assert seen == [True]


def test_a_block_raises_at_its_end_if_its_body_swallows_the_cancellation(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """It may clean up, or do anything else, though the loss is raised once more."""

    async def story() -> None:
        with pytest.raises(LeaseLostError):
            async with block():
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    asyncio.get_running_loop().call_later(1.0, leases.forget)
                    await asyncio.sleep(5.0)

    run(leases, story())


def test_a_block_does_not_begin_with_a_permit_that_came_too_late(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """S2: its reply was on the way for longer than the lease: the body does not begin, in a task or
    in a thread.
    """
    begun = []

    async def story() -> None:
        with pytest.raises(LeaseLostError):
            async with block():
                begun.append("task")

    leases.delay = LEASE
    run(leases, story())
    with pytest.raises(LeaseLostError), block():
        begun.append("thread")

    assert begun == []


def test_the_error_names_the_limiter_and_the_moment_of_the_loss(
    leases: Leases, block: Callable[[], Any]
) -> None:
    async def story() -> None:
        async with block():
            asyncio.get_running_loop().call_later(2.0, leases.forget)
            try:
                await asyncio.sleep(3600)
            finally:
                leases.clock.jump(1.5)

    with pytest.raises(LeaseLostError) as lost:
        run(leases, story())

    assert re.search(
        r"limiter 'api' lost its permit 2\.000 s after it began, 1\.500 s ago: .* longer lease\.$",
        str(lost.value),
    )
    assert isinstance(lost.value.__cause__, asyncio.CancelledError)


# Not lost -----------------------------------------------------------------------------------------


def test_a_block_that_ends_in_time_raises_nothing(leases: Leases, block: Callable[[], Any]) -> None:
    """And nothing is left that could go off later."""

    async def story() -> str:
        async with block():
            await asyncio.sleep(LEASE / 2)
        await asyncio.sleep(2 * LEASE)
        leases.forget()
        await asyncio.sleep(2 * LEASE)
        return "well"

    assert run(leases, story()) == "well"


@pytest.mark.parametrize("way", ["release", "arelease"])
@pytest.mark.parametrize("after", [LEASE / 2, 2 * LEASE])
def test_a_permit_released_by_the_body_is_lost_only_if_it_was_lost_before(
    leases: Leases, api: Limiter, way: str, after: float
) -> None:
    """A permit that was given back in time is watched no more; one that was lost already raises at
    the end all the same.
    """

    async def story() -> str:
        async with api.acquire() as permit:
            leases.clock.jump(after)
            if way == "release":
                permit.release()
            else:
                await permit.arelease()
            leases.back.clear()  # given back twice, by the body and by its block
            await asyncio.sleep(3 * LEASE if after < LEASE else 0)
        return "well"

    if after < LEASE:
        assert run(leases, story()) == "well"
    else:
        with pytest.raises(LeaseLostError):
            run(leases, story())


def test_a_lost_permit_without_a_block_is_only_marked(leases: Leases, api: Limiter) -> None:
    """headgate does not know the body of an awaited acquire: a caller that wants the error enters a
    block.
    """

    async def story() -> bool:
        permit = await api.acquire()
        await asyncio.sleep(2 * LEASE)
        lost = permit.lost
        permit.release()
        return lost

    assert run(leases, story())


def test_by_default_a_block_that_loses_its_lease_is_only_marked(
    leases: Leases, api: Limiter
) -> None:
    """Its body runs on, its block ends as ever, and it has no watch."""
    limiter = Limiter("api", "5 concurrent", store="stands in for it, as for the one above")

    async def story() -> list[bool]:
        async with limiter.acquire() as permit:
            await asyncio.sleep(2 * LEASE)
            return [permit.lost, permit.watch is None]

    assert run(leases, story()) == [True, True]


@pytest.mark.parametrize("way", ["async with", "with"])
def test_a_later_block_of_a_permit_is_watched_too(leases: Leases, api: Limiter, way: str) -> None:
    """After `await acquire()`: a task is cancelled where it awaits, and the block raises
    the error.
    """
    ran = []

    async def story() -> None:
        permit = await api.acquire()
        with pytest.raises(LeaseLostError):
            if way == "async with":
                async with permit:
                    await asyncio.sleep(3600)
                    ran.append("on")
            else:
                with permit:
                    leases.clock.jump(2 * LEASE)
        assert permit.lost

    run(leases, story())
    assert ran == []


def test_a_permit_is_in_one_block_at_a_time(leases: Leases, api: Limiter) -> None:
    async def story() -> None:
        async with api.acquire() as permit:
            with pytest.raises(RuntimeError, match="held by a block already"):
                permit.__enter__()

    run(leases, story())


def test_a_lost_permit_stays_lost_after_its_release(leases: Leases, api: Limiter) -> None:
    """And one that was released in time never becomes lost."""

    async def story() -> list[bool]:
        late, in_time = await api.acquire(), await api.acquire()
        in_time.release()
        await asyncio.sleep(2 * LEASE)
        late.release()
        return [late.lost, in_time.lost]

    assert run(leases, story()) == [True, False]


def test_in_memory_a_permit_has_no_lease_and_no_watch() -> None:
    limiter = Limiter("api", "5 concurrent", store=MemoryStore(), on_lost="cancel")

    async def story() -> None:
        async with limiter, limiter["key"], limiter.acquire() as permit:
            assert permit.watch is None

    asyncio.run(story())


# Threads ------------------------------------------------------------------------------------------


def test_a_thread_gets_the_error_at_the_end_of_its_block(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F12: it cannot be interrupted: it runs to its end, and has an error of its own or
    this one.
    """
    ran = []
    for pause in (2 * LEASE, LEASE / 2):
        with pytest.raises(ZeroDivisionError), block():
            leases.clock.jump(pause)
            raise ZeroDivisionError
    with block():
        leases.clock.jump(LEASE / 2)
    with pytest.raises(LeaseLostError, match=r"10\.000 s after it began, 10\.000 s ago"), block():
        leases.clock.jump(2 * LEASE)
        ran.append("to its end")

    assert ran == ["to its end"]


def test_a_thread_gets_the_error_for_a_loss_that_another_thread_received(
    leases: Leases, block: Callable[[], Any]
) -> None:
    """F45: renewals are answered elsewhere."""
    with pytest.raises(LeaseLostError), block():
        hears = threading.Thread(target=leases.forget)
        hears.start()
        hears.join()


def in_thread(act: Callable[[], T]) -> T:
    """Call `act` in another thread: one renews the permits of `acquire_sync`."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(act).result()


def test_a_loss_that_another_thread_received_cancels_the_body_in_its_own_loop(
    leases: Leases, api: Limiter
) -> None:
    """S2: asyncio refuses calls of other threads in its debug mode. Otherwise it sleeps on."""

    async def story() -> float:
        loop = asyncio.get_running_loop()
        loop.set_debug(True)
        loop.call_later(2.0, in_thread, leases.forget)
        with pytest.raises(LeaseLostError):
            async with in_thread(api.acquire_sync):
                await asyncio.sleep(3600)
        return leases.clock.elapsed()

    assert run(leases, story()) == pytest.approx(2.0, abs=0.001)


def test_a_renewal_that_another_thread_received_extends_the_watch(
    leases: Leases, api: Limiter
) -> None:
    ended: list[float] = []

    async def story() -> None:
        asyncio.get_running_loop().set_debug(True)
        with pytest.raises(LeaseLostError):
            async with in_thread(api.acquire_sync):
                await renewed_nine_times(leases, lambda: in_thread(leases.renew), ended)

    run(leases, story())

    assert 4 * LEASE - 0.1 <= ended[0] <= 4 * LEASE


def test_a_loss_that_another_thread_received_at_the_end_of_the_body_cancels_nothing_later(
    leases: Leases, api: Limiter
) -> None:
    """F8: the task's loop hears of it when the body is over, or when the next one has begun."""

    async def story() -> str:
        for after in (0.0, 1.0):
            with pytest.raises(LeaseLostError):
                async with in_thread(api.acquire_sync):
                    in_thread(leases.forget)
            async with api:
                await asyncio.sleep(after)
        return "well"

    assert run(leases, story()) == "well"


def test_a_renewal_of_a_body_whose_loop_is_closed_raises_nothing(
    leases: Leases, api: Limiter
) -> None:
    """F7: the thread that received it goes on with the renewals of all others."""

    async def stay() -> None:
        async with in_thread(api.acquire_sync):
            await asyncio.sleep(3600)

    loop = asyncio.new_event_loop()
    body = stay()
    task = loop.create_task(body)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()

    in_thread(leases.renew)
    in_thread(leases.forget)

    task._log_destroy_pending = False  # type: ignore[attr-defined]  # the loop is closed on purpose
    body.close()


# Decorators ---------------------------------------------------------------------------------------


def test_the_watch_covers_decorated_functions(leases: Leases, api: Limiter) -> None:
    @api
    async def fetch(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "reply"

    @api
    def work(seconds: float) -> str:
        leases.clock.jump(seconds)
        return "done"

    @api
    def numbers(seconds: float) -> Iterator[int]:
        yield 1
        leases.clock.jump(seconds)

    assert run(leases, fetch(1.0)) == "reply"
    assert work(1.0) == "done"
    assert list(numbers(1.0)) == [1]
    for lost in (lambda: run(leases, fetch(3600)), lambda: work(3600), lambda: list(numbers(3600))):
        with pytest.raises(LeaseLostError):
            lost()


def test_an_async_generator_is_cancelled_where_it_awaits_and_its_caller_is_not(
    leases: Leases, api: Limiter
) -> None:
    """While the caller runs, it is not the body: the generator gets the error when it goes on, and
    can clean up.
    """
    cleaned = []

    @api
    async def numbers(seconds: float) -> AsyncIterator[int]:
        try:
            for number in count():
                yield number
                await asyncio.sleep(seconds)
        except BaseException as error:
            await asyncio.sleep(1.0)
            cleaned.append(type(error))
            raise

    async def inside() -> None:
        steps = numbers(3600)
        assert await anext(steps) == 0
        with pytest.raises(LeaseLostError):
            await anext(steps)

    async def outside() -> None:
        steps = numbers(1.0)
        assert await anext(steps) == 0
        await asyncio.sleep(2 * LEASE)
        with pytest.raises(LeaseLostError):
            await anext(steps)

    run(leases, inside())
    run(leases, outside())

    assert cleaned == [asyncio.CancelledError, LeaseLostError]


def test_an_async_generator_goes_on_in_any_task_that_asks_for_more(
    leases: Leases, api: Limiter
) -> None:
    """And the watch with it: renewed, thrown into, closed, and lost in the task of its next
    step.
    """

    @api
    async def echo() -> AsyncIterator[str]:
        said = ""
        while True:
            try:
                yield said
                await asyncio.sleep(1.0)
                said = "on"
            except KeyError:
                await asyncio.sleep(1.0)
                said = "caught"

    async def step(work: Awaitable[str]) -> str:
        return await work

    async def story() -> None:
        steps: Any = echo()
        assert await asyncio.create_task(step(anext(steps))) == ""
        leases.renew()
        assert await asyncio.create_task(step(anext(steps))) == "on"
        assert await asyncio.create_task(step(steps.athrow(KeyError()))) == "caught"
        last = asyncio.create_task(step(anext(steps)))
        await asyncio.sleep(0.5)
        leases.forget()
        with pytest.raises(LeaseLostError):
            await last
        closed: Any = echo()
        await anext(closed)
        await asyncio.sleep(2 * LEASE)
        await closed.aclose()  # its closer wants no more of it, and needs no error

    run(leases, story())


def test_a_generator_that_swallows_its_cancellation_leaves_none_to_its_caller(
    leases: Leases, api: Limiter
) -> None:
    @api
    async def stubborn() -> AsyncIterator[str]:
        for _ in range(2):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                yield "still here"

    async def story() -> None:
        steps = stubborn()
        task = asyncio.current_task()
        assert task is not None
        assert await anext(steps) == "still here"
        assert task.cancelling() == 0
        await asyncio.sleep(1.0)
        with pytest.raises(LeaseLostError):
            await anext(steps)

    run(leases, story())
