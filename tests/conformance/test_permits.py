"""A permit of a caller: released once and only once, by any task or thread (S4, S7), settled,
numbered (S5).
"""

from __future__ import annotations

import asyncio
import gc
import threading
from itertools import pairwise

import pytest

from headgate import Concurrency, Limiter, Permit, Rate
from headgate.stores.memory.store import MemoryStore
from tests.virtual import VirtualClock
from tests.world import HOUR, World, at_rest, held, soon, told, until, used, waiting

# Release ------------------------------------------------------------------------------------------


@told
async def test_a_second_release_gives_back_nothing_more(world: World) -> None:
    """S4, S7: the freed permit is another caller's by then, and stays theirs."""
    limiter = world.limiter(Concurrency(1))
    mine = await limiter.acquire()
    mine.release()
    theirs = await soon(limiter.acquire())

    mine.release()
    assert await mine.arelease() is False

    assert held(await limiter.astatus()) == 1
    assert not await limiter.atry_acquire()
    theirs.release()
    await at_rest(limiter)


@told
async def test_leaving_the_block_after_a_release_is_harmless(world: World) -> None:
    limiter = world.limiter(Concurrency(2))
    other = await limiter.acquire()

    async with limiter.acquire() as permit:
        permit.release()

    assert held(await until(lambda status: held(status) == 1, limiter)) == 1
    other.release()
    await at_rest(limiter)


@told
async def test_arelease_returns_whether_the_permit_was_held_when_the_release_has_arrived(
    world: World,
) -> None:
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()

    assert await permit.arelease() is True
    assert held(await limiter.astatus()) == 0
    assert await permit.arelease() is False


@told
async def test_a_permit_can_be_released_by_another_task(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()
    waiter = asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 1)

    async def other() -> None:
        permit.release()

    await asyncio.create_task(other())

    (await soon(waiter)).release()
    await at_rest(limiter)


async def test_a_permit_can_be_released_by_another_thread(store: object, name: str) -> None:
    """When a thread releases it, then the task that waits in this loop gets it."""
    limiter = Limiter(name, Concurrency(1), store=store)
    permit = await limiter.acquire()
    waiter = asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 1)

    await asyncio.to_thread(permit.release)

    (await soon(waiter)).release()
    await at_rest(limiter)


async def test_many_threads_that_release_one_permit_release_it_once(
    store: object, name: str
) -> None:
    """S7: eight threads release at the same moment, and one permit comes back."""
    limiter = Limiter(name, Concurrency(2), store=store)
    others, permit = await limiter.acquire(), await limiter.acquire()
    start = threading.Barrier(8)

    def release() -> None:
        start.wait()
        permit.release()

    threads = [threading.Thread(target=release) for _ in range(8)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(_joined, threads)

    assert held(await until(lambda status: held(status) <= 1, limiter)) == 1
    others.release()
    await at_rest(limiter)


def test_a_permit_survives_its_loop_and_is_released_in_the_next(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=store)
    permit = asyncio.run(_acquired(limiter))

    async def later() -> None:
        assert held(await limiter.astatus()) == 1
        permit.release()
        await at_rest(limiter)

    asyncio.run(later())


def test_a_permit_survives_its_loop_and_is_released_without_any(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=store)
    permit = asyncio.run(_acquired(limiter))

    permit.release()

    limiter.acquire_sync(max_sleep=5).release()


@told
async def test_an_error_in_the_body_gives_the_permit_back_and_comes_out(world: World) -> None:
    """F6: exactly one release, by both ways of entering."""
    limiter = world.limiter(Concurrency(1))

    with pytest.raises(ZeroDivisionError):
        async with limiter.acquire():
            1 / 0  # noqa: B018  # an error of the caller, and nothing more
    await at_rest(limiter)
    with pytest.raises(ZeroDivisionError):
        async with limiter:
            1 / 0  # noqa: B018  # an error of the caller, and nothing more

    await at_rest(limiter)


def test_an_error_in_a_blocking_body_gives_the_permit_back_too(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(1), store=store)

    for entered in (limiter, limiter.acquire()):
        with pytest.raises(ZeroDivisionError), entered:
            1 / 0  # noqa: B018  # an error of the caller, and nothing more

    limiter.acquire_sync(max_sleep=5).release()


@told
async def test_using_an_acquire_twice_is_an_error(world: World) -> None:
    """The result of acquire() is used once: a second use would be a permit that no caller
    releases.
    """
    limiter = world.limiter(Concurrency(5))
    asked = limiter.acquire()
    async with asked:
        with pytest.raises(RuntimeError, match=r"call acquire\(\) again"):
            await asked

    await at_rest(limiter)


@told
async def test_an_acquire_that_is_never_awaited_gives_a_warning(world: World) -> None:
    """Nothing would be limited: a forgotten await must not pass in silence."""
    limiter = world.limiter(Concurrency(5))

    with pytest.warns(RuntimeWarning, match="never awaited"):
        limiter.acquire()
        gc.collect()

    assert held(await limiter.astatus()) == 0


# Dropped permits ----------------------------------------------------------------------------------


@told
async def test_a_dropped_permit_warns_and_goes_back(world: World) -> None:
    """F6: no caller can release a permit without a reference to it, so it goes back by itself, with
    a warning.
    """
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()

    with pytest.warns(ResourceWarning, match="without a release"):
        del permit
        gc.collect()

    await at_rest(limiter)


@told
async def test_a_waiter_gets_a_dropped_permit(world: World) -> None:
    """L2: the drop is a release like any other."""
    limiter = world.limiter(Concurrency(1))
    permits = [await limiter.acquire()]
    waiter = asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 1)

    with pytest.warns(ResourceWarning):
        permits.clear()
        gc.collect()

    (await soon(waiter)).release()
    await at_rest(limiter)


@told
async def test_a_permit_that_holds_nothing_may_be_dropped(world: World) -> None:
    """A token is spent when it is granted, so there is nothing to release, and nothing to warn
    about.
    """
    limiter = world.limiter(Rate(5, per=HOUR))

    await limiter.acquire()
    gc.collect()

    assert used(await limiter.astatus()) == [1]


@told
async def test_a_released_permit_has_no_finalizer(world: World) -> None:
    """H1: in a finalizer, Python would hide an exception that a signal handler raises."""
    limiter = world.limiter(Concurrency(2))
    first, second = await limiter.acquire(), await limiter.acquire()

    first.release()
    await second.arelease()

    await at_rest(limiter)
    assert [hasattr(permit, "__del__") for permit in (first, second)] == [False, False]


def test_a_permit_dropped_inside_the_stores_own_code_is_seen_by_the_next_try(name: str) -> None:
    """F6: the collector runs at any time, even while a queue is locked. The next caller finds the
    permit free.
    """

    class Dropping(VirtualClock):
        victims: list[Permit]

        def now(self) -> int:
            self.victims.clear()
            return super().now()

    clock = Dropping()
    clock.victims = []
    limiter = Limiter(name, Concurrency(1), store=MemoryStore(clock))
    clock.victims.append(limiter.acquire_sync())

    with pytest.warns(ResourceWarning):
        limiter.try_acquire()
    permit = limiter.try_acquire()

    assert permit
    permit.release()


# Settling -----------------------------------------------------------------------------------------


def _tokens(world: World, capacity: int = 1000) -> Limiter:
    return world.limiter(Rate(100, per=HOUR), Rate(capacity, per=1000 * HOUR, unit="tokens"))


@told
async def test_settle_gives_unused_tokens_back(world: World) -> None:
    limiter = _tokens(world)

    async with limiter.acquire(tokens=900) as permit:
        permit.settle(tokens=300)

    await until(lambda status: used(status) == [1, 300], limiter)
    assert await limiter.atry_acquire(tokens=700)


@told
async def test_settle_charges_tokens_beyond_the_estimate(world: World) -> None:
    limiter = _tokens(world)

    async with limiter.acquire(tokens=100) as permit:
        permit.settle(tokens=950)

    await until(lambda status: used(status) == [1, 950], limiter)
    assert not await limiter.atry_acquire(tokens=51)
    assert await limiter.atry_acquire(tokens=50)


@told
async def test_tokens_used_beyond_the_capacity_become_a_debt(world: World) -> None:
    """S7: no token is forgotten, and the next caller waits until the debt is paid."""
    limiter = _tokens(world)

    (await limiter.acquire(tokens=1000)).settle(tokens=1500)

    status = await until(lambda status: status.limits[1].left < 0, limiter)
    assert (status.limits[1].used, status.limits[1].left) == (1500, -500)
    refusal = await limiter.atry_acquire(tokens=1)
    assert not refusal
    assert refusal.retry_after == pytest.approx(501 * HOUR, rel=1e-6)


@told
async def test_the_last_settlement_counts(world: World) -> None:
    """Settling again corrects the earlier settlement, and may come after the release."""
    limiter = _tokens(world)
    async with limiter.acquire(tokens=500) as permit:
        permit.settle(tokens=800)
        permit.settle(tokens=200)
    await until(lambda status: used(status) == [1, 200], limiter)

    permit.settle(tokens=0)

    await until(lambda status: used(status) == [1, 0], limiter)
    permit.settle(tokens=0)
    assert used(await limiter.astatus()) == [1, 0]


@told
async def test_a_unit_without_a_cost_in_the_acquire_can_be_settled(world: World) -> None:
    limiter = _tokens(world)

    permit = await limiter.acquire()
    permit.settle(tokens=50)
    await until(lambda status: used(status) == [1, 50], limiter)
    permit.settle(requests=0)

    await until(lambda status: used(status) == [0, 50], limiter)


@told
async def test_a_refund_moves_waiters_forward(world: World) -> None:
    """L2: the tokens that come back are those that the head of the queue waits for."""
    limiter = _tokens(world)
    permit = await limiter.acquire(tokens=1000)
    waiter = asyncio.create_task(_acquired(limiter, tokens=400))
    await waiting(limiter, 1)

    permit.settle(tokens=600)

    await soon(waiter)
    assert used(await limiter.astatus())[1] == 1000


@told
async def test_a_permit_can_be_settled_from_another_thread(world: World) -> None:
    limiter = _tokens(world)
    permit = await limiter.acquire(tokens=100)

    thread = threading.Thread(target=permit.settle, kwargs={"tokens": 40})
    thread.start()
    thread.join()

    await until(lambda status: used(status) == [1, 40], limiter)


# Attributes of a permit ---------------------------------------------------------------------------


@told
async def test_waited_is_the_duration_of_the_wait(world: World) -> None:
    limiter = world.limiter(Rate(1, per=world.beat))

    first, second = await limiter.acquire(), await limiter.acquire()

    assert 0.0 <= first.waited <= world.slack
    # Part of the beat had gone by when the second asked.
    assert 0.0 < second.waited <= world.beat + world.slack
    assert second.waited == world.beat or not world.virtual


@told
async def test_fences_grow_with_every_grant(world: World) -> None:
    """S5: they grow strictly in the order of the grants, for each kind of grant: at once, after a
    wait, by a try.
    """
    limiter = world.limiter(Concurrency(2), Rate(1, per=world.beat / 2, capacity=3))
    fences = []
    for _ in range(3):
        async with limiter.acquire() as permit:
            fences.append(permit.fence)
    holders = [await limiter.acquire(), await limiter.acquire()]
    fences += [holder.fence for holder in holders]
    waiter = asyncio.create_task(_acquired(limiter))
    await waiting(limiter, 1)
    holders[0].release()
    last = await soon(waiter)

    fences.append(last.fence)

    assert all(after > before for before, after in pairwise(fences))
    assert max(fences) < 2**53
    holders[1].release()
    last.release()
    await at_rest(limiter)


def test_fences_grow_from_one_loop_to_the_next(store: object, name: str) -> None:
    """S5: the number belongs to the name, not to the connection or the limiter object."""
    fences = []
    for _ in range(3):
        permit = asyncio.run(_acquired(Limiter(name, Rate(100, per=1), store=store)))
        fences.append(permit.fence)
    fences.append(Limiter(name, Rate(100, per=1), store=store).acquire_sync().fence)

    assert all(after > before for before, after in pairwise(fences))


@told
async def test_a_permit_that_is_held_is_not_lost(world: World) -> None:
    limiter = world.limiter(Concurrency(1))

    async with limiter.acquire() as permit:
        assert permit.lost is False

    assert permit.lost is False


@told
async def test_a_permit_can_be_shown_in_every_state(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    permit = await limiter.acquire()

    assert "held" in repr(permit)
    permit.release()
    assert "held" not in repr(permit)
    await at_rest(limiter)


async def _acquired(limiter: Limiter, **cost: int) -> Permit:
    return await limiter.acquire(**cost)


def _joined(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join()


# Blocks of permits that are granted already -------------------------------------------------------


@told
async def test_a_permit_is_released_at_the_end_of_its_block(world: World) -> None:
    """After `await acquire()` and after a try, with `with` and with `async with`. An error in the
    block comes out.
    """
    limiter = world.limiter(Concurrency(1))

    async with await limiter.acquire() as permit:
        assert permit.held
    with await limiter.acquire() as permit:
        assert permit.held
    with pytest.raises(ZeroDivisionError):
        async with await limiter.acquire():
            raise ZeroDivisionError
    tried = await limiter.atry_acquire()
    assert isinstance(tried, Permit)
    with tried:
        assert tried.held

    await at_rest(limiter)


@told
async def test_entering_a_released_permit_is_an_error(world: World) -> None:
    """It would hold nothing. The error says so, and names the way out."""
    for limit in (Concurrency(1), Rate(5, per=HOUR)):
        permit = await world.limiter(limit, name=f"{world.name}-{type(limit).__name__}").acquire()
        permit.release()

        with pytest.raises(RuntimeError, match=r"was released before.*acquire another"):
            permit.__enter__()
        with pytest.raises(RuntimeError, match=r"was released before.*acquire another"):
            await permit.__aenter__()


# Acquires as coroutines ---------------------------------------------------------------------------


@told
async def test_an_acquire_can_be_made_a_task(world: World) -> None:
    """By create_task, a task group and gather: each is a permit, in order of arrival."""
    limiter = world.limiter(Concurrency(4))

    first = asyncio.create_task(limiter.acquire())
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(limiter.acquire()) for _ in range(2)]
    fence = (await first).fence
    assert [each.result().fence > fence for each in others] == [True, True]
    (last,) = await asyncio.gather(limiter.acquire())
    waiter = asyncio.create_task(limiter.acquire())
    await waiting(limiter, 1)
    for permit in (await first, *(each.result() for each in others), last):
        permit.release()

    (await soon(waiter)).release()
    await at_rest(limiter)


@told
async def test_a_task_of_an_acquire_can_be_cancelled_at_any_time(world: World) -> None:
    """Before it has begun, and while it waits: the permit is free again, and no warning says that
    it was never awaited.
    """
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    unbegun, waiter = (asyncio.create_task(limiter.acquire()) for _ in range(2))
    unbegun.cancel()
    await waiting(limiter, 1)
    waiter.cancel()
    await asyncio.wait([unbegun, waiter])

    assert (unbegun.cancelled(), waiter.cancelled()) == (True, True)
    await waiting(limiter, 0)
    holder.release()
    await at_rest(limiter)


@told
async def test_a_used_acquire_is_an_error_as_a_task_and_closes_without_a_warning(
    world: World,
) -> None:
    limiter = world.limiter(Concurrency(2))
    acquire = limiter.acquire()
    with await acquire:
        with pytest.raises(RuntimeError, match=r"call acquire\(\) again"):
            await asyncio.create_task(acquire)
        acquire.close()

    await at_rest(limiter)


def test_the_repr_of_an_acquire_shows_its_costs(name: str) -> None:
    acquire = Limiter(name, "5/second burst 5", "100 tokens/minute burst 100").acquire(2, tokens=30)
    assert repr(acquire) == f"<acquire() of limiter '{name}': requests=2, tokens=30>"
    acquire.close()
    assert repr(acquire).endswith("used>")
