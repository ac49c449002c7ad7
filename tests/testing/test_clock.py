"""The manual clock: a test moves the time of callers in tasks and threads, and no caller really
waits.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from headgate import (
    Concurrency,
    Limiter,
    MaxSleepExceededError,
    Quota,
    RateLimiter,
    UnknownLimiterError,
    Window,
    log_writer,
)
from headgate.testing import ManualClock, Standstill, assert_never_over, virtual_loop
from headgate.testing.clock import TURNS
from tests.local_waiters import assert_all_free

AGES = 3600.0


async def comes(limiter: Limiter, clock: ManualClock, moments: list[float]) -> None:
    async with limiter:
        moments.append(clock.elapsed())


async def all_come(limiter: Limiter, clock: ManualClock, callers: int) -> list[float]:
    moments: list[float] = []
    await asyncio.gather(*(comes(limiter, clock, moments) for _ in range(callers)))
    return moments


# Moved by hand ---------------------------------------------------------------------------------


async def test_tasks_go_on_when_the_clock_is_advanced_and_not_before(name: str) -> None:
    """Of three callers of one per hour, each passes in its hour and sees that time."""
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock() as clock:
        moments: list[float] = []
        callers = [asyncio.create_task(comes(limiter, clock, moments)) for _ in range(3)]

        await clock.aadvance(AGES - 1)
        assert moments == [0]
        await clock.aadvance(1)
        assert moments == [0, AGES]
        await clock.aadvance(AGES)
        assert moments == [0, AGES, 2 * AGES]
        await asyncio.gather(*callers)


async def test_one_advance_runs_every_timer_up_to_its_end(name: str) -> None:
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock() as clock:
        callers = asyncio.create_task(all_come(limiter, clock, 5))
        await clock.aadvance(10 * AGES)
        assert await callers == [0, AGES, 2 * AGES, 3 * AGES, 4 * AGES]
        assert clock.elapsed() == 10 * AGES


def test_a_thread_goes_on_when_the_clock_is_advanced(name: str) -> None:
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock() as clock:
        with limiter:
            pass
        waits = in_a_thread(limiter.acquire_sync)
        until(lambda: limiter.status().waiting == 1 and clock._has_timers())
        clock.advance(AGES - 1)
        assert limiter.status().waiting == 1
        clock.advance(1)
        assert ends(waits)
        assert clock.elapsed() == AGES


async def test_a_waiter_is_refused_at_the_end_of_its_max_sleep(name: str) -> None:
    """The permit that it waits for is not released, and it leaves no place behind."""
    limiter = Limiter(name, Concurrency(1), max_sleep=60)
    with ManualClock() as clock:
        held = await limiter.acquire()
        late = asyncio.create_task(waits(limiter))
        await clock.aadvance(59)
        assert not late.done()
        await clock.aadvance(1)
        with pytest.raises(MaxSleepExceededError):
            await late
        held.release()
        assert limiter.status().waiting == 0


async def waits(limiter: Limiter) -> None:
    (await limiter.acquire()).release()


async def test_a_pause_ends_by_the_clock(name: str) -> None:
    """A pause of an hour ends for a waiter after an hour."""
    limiter = Limiter(name, "1000/second", Concurrency(5))
    with ManualClock() as clock:
        limiter.pause(AGES)
        caller = asyncio.create_task(comes(limiter, clock, moments := []))
        await clock.aadvance(AGES - 1)
        assert moments == []
        await clock.aadvance(1)
        assert moments == [AGES]
        await caller


def test_a_quota_begins_again_on_the_day_that_the_clock_shows(name: str) -> None:
    limiter = Limiter(name, Quota(1, per=24 * AGES))
    with ManualClock(start=datetime(2026, 2, 28, 23, 0, tzinfo=UTC)) as clock:
        assert limiter.try_acquire()
        clock.advance(AGES - 1)
        assert not limiter.try_acquire()
        clock.advance(1)
        assert limiter.try_acquire()
        assert repr(clock) == "<ManualClock: 2026-03-01T00:00:00+00:00, 3600 s elapsed>"


async def test_a_cancelled_waiter_leaves_no_timer_behind(name: str) -> None:
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock() as clock:
        async with limiter:
            pass
        caller = asyncio.create_task(waits(limiter))
        await clock.aadvance(1)
        caller.cancel()
        await asyncio.wait([caller])
        assert not clock._has_timers()
        await clock.aadvance(AGES)
        assert limiter.try_acquire()


# Skipping --------------------------------------------------------------------------------------


async def test_a_skipping_clock_moves_itself(name: str) -> None:
    """In twenty hours of waiting, each caller sees its own hour."""
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock(skips=True) as clock:
        assert await all_come(limiter, clock, 20) == [hour * AGES for hour in range(20)]
        assert not clock._has_timers()


def test_a_single_thread_skips_its_waits(name: str) -> None:
    limiter = Limiter(name, Window(1, per=AGES))
    with ManualClock(skips=True) as clock:
        for hour in range(5):
            with limiter:
                assert clock.elapsed() == hour * AGES


def test_threads_skip_to_the_next_moment(name: str) -> None:
    """Whichever thread moves the clock, each has its own moment, as the store granted it."""
    limiter = Limiter(name, Window(1, per=AGES))
    granted: list[float] = []
    with ManualClock(skips=True) as clock:
        threads = [
            in_a_thread(lambda: granted.append(limiter.acquire_sync().t / 1_000_000))
            for _ in range(4)
        ]
        assert all(map(ends, threads))
        assert clock.elapsed() >= 3 * AGES
    assert_never_over(granted, Window(1, per=AGES))


async def test_a_skipping_clock_lets_holders_finish_first(name: str) -> None:
    """Time moves for callers that wait for time, and not for those that wait for a release."""
    limiter = Limiter(name, Concurrency(1))
    with ManualClock(skips=True) as clock:
        held = await limiter.acquire()
        caller = asyncio.create_task(comes(limiter, clock, []))
        for _ in range(3 * TURNS):
            await asyncio.sleep(0)
        assert not caller.done()
        held.release()
        await caller
        assert clock.elapsed() == 0


# An event loop without waiting -----------------------------------------------------------------


def test_run_takes_no_real_time_for_sleeps_and_limiters(name: str) -> None:
    limiter = Limiter(name, Window(2, per=AGES))

    async def story() -> list[float]:
        await asyncio.sleep(AGES)
        return await all_come(limiter, clock, 5)

    began = time.monotonic()
    with ManualClock() as clock:
        assert clock.run(story()) == [AGES, AGES, 2 * AGES, 2 * AGES, 3 * AGES]
    assert time.monotonic() - began < AGES / 100


def test_an_advance_inside_of_run_is_a_sleep(name: str) -> None:
    limiter = Limiter(name, Window(1, per=AGES))

    async def story() -> list[float]:
        moments: list[float] = []
        callers = [asyncio.create_task(comes(limiter, clock, moments)) for _ in range(3)]
        await clock.aadvance(AGES)
        seen = [*moments]
        await asyncio.gather(*callers)
        return seen

    with ManualClock() as clock:
        assert clock.run(story()) == [0, AGES]
        assert clock.elapsed() == 2 * AGES


def test_run_raises_at_a_standstill(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "PATIENCE", 0.001)
    limiter = Limiter(name, Concurrency(1))

    async def story() -> None:
        async with limiter, limiter:
            pass

    with ManualClock() as clock, pytest.raises(Standstill, match="for ever"):
        clock.run(story())


# Which limiters use it --------------------------------------------------------------------------


def test_limiters_are_as_new_in_the_block_and_after_it(name: str) -> None:
    """Limits that are used up before and within are full again."""
    limiter = Limiter(name, "1/hour")
    assert limiter.try_acquire()
    with ManualClock():
        assert limiter.try_acquire()
        assert not limiter.try_acquire()
        assert Limiter(f"{name}-new", "1/hour").try_acquire()
    assert limiter.try_acquire()
    assert not limiter.try_acquire()


@pytest.mark.parametrize("first", ["10/hour burst 10", "10/hour", "5 concurrent"])
def test_limits_of_a_second_block_begin_as_new(name: str, first: str) -> None:
    """A first block has declared others."""
    with ManualClock(), Limiter(name, first):
        pass
    with ManualClock():
        limiter = Limiter(name, "1000/hour burst 1000")
        assert limiter.try_acquire()
        (status,) = limiter.status().limits
        assert (status.used, status.capacity) == (1, 1000)


def test_limits_of_an_earlier_block_are_not_known_in_a_later_one(name: str) -> None:
    """Promise 10: in each block, an acquire of that block declares the limits."""
    limiter = Limiter(name, "10/hour")
    for _ in range(2):
        with ManualClock():
            with pytest.raises(UnknownLimiterError):
                Limiter.attach(name).status()
            assert limiter.try_acquire()
            assert Limiter.attach(name).try_acquire()


def test_an_attached_limiter_forgets_the_limits_of_an_earlier_block(name: str) -> None:
    """So does its key.

    In each block it takes the limits that an acquire of that block has declared.
    """
    attached = Limiter.attach(name)
    for limits in (Window(10, per=3600), Window(20, per=3600)):
        with ManualClock():
            for limiter in (attached, attached["k"]):
                with pytest.raises(UnknownLimiterError):
                    limiter.acquire_sync()
            fleet = Limiter(name, limits)
            fleet.acquire_sync()
            attached.acquire_sync()
            assert attached.limits == (limits,)


def test_each_limiter_declares_again_in_a_later_block(name: str) -> None:
    """The limiters disagree. In a block, and after it, the first acquire of each declares."""
    limiters = [Limiter(name, Window(amount, per=3600)) for amount in (10, 20)]
    for _ in range(2):
        for limiter in limiters:
            limiter.acquire_sync()
            assert Limiter.attach(name).status().limits[0].limit == limiter.limits[0]
        with ManualClock():
            for limiter in reversed(limiters):
                limiter.acquire_sync()
                assert Limiter.attach(name).status().limits[0].limit == limiter.limits[0]


def test_limiters_of_two_blocks_do_not_disagree(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one is still in use when the second one is made."""
    limiters = []
    for limits in ("10/hour", "1000/hour"):
        with ManualClock():
            limiters.append(Limiter(name, limits))
    log_writer.flush()
    assert caplog.records == []


def test_an_update_in_an_earlier_block_does_not_hold_in_a_later_one(name: str) -> None:
    with ManualClock():
        first = Limiter(name, "10/hour")
        first.acquire_sync()
        first.update("20/hour")
    with ManualClock():
        second = Limiter(name, "10/hour")
        second.acquire_sync()
        assert [limit.capacity for limit in second.status().limits] == [10]


def test_a_permit_from_before_the_block_gives_nothing_back_in_the_block(name: str) -> None:
    """And permits that are held when the block is left are forgotten."""
    limiter = Limiter(name, Concurrency(1))
    before = limiter.acquire_sync()
    with ManualClock():
        within = limiter.acquire_sync()
        before.release()
        assert not limiter.try_acquire()
    within.release()
    assert_all_free(limiter)


def test_a_thread_that_still_waits_when_the_clock_is_left_gets_an_error(name: str) -> None:
    """L6: no queue would wake it, so the test run could not end."""
    limiter, errors = Limiter(name, "1/minute"), list[str]()

    def wait() -> None:
        with pytest.raises(RuntimeError) as refused:
            limiter.acquire_sync()
        errors.append(str(refused.value))

    with ManualClock():
        limiter.acquire_sync()
        thread = in_a_thread(wait)
        until(lambda: limiter.status().waiting == 1)

    assert ends(thread)
    assert "ManualClock" in errors[0]
    assert repr(name) in errors[0]
    assert limiter.try_acquire()


async def test_tasks_that_still_wait_when_the_clock_is_left_get_an_error(name: str) -> None:
    """L6: on the fast path, and in the gate's queue."""
    limiter = Limiter(name, Concurrency(1))

    async def enters() -> None:
        async with limiter:
            pass

    with ManualClock() as clock:
        held = await limiter.acquire()
        tasks = [asyncio.create_task(way) for way in (enters(), waits(limiter), enters())]
        await clock.aadvance(1)
        assert limiter.status().waiting == 3

    async with asyncio.timeout(5):
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(error) for error in errors] == [RuntimeError] * 3
    held.release()
    assert_all_free(limiter)


def test_an_update_in_the_block_ends_with_the_block(name: str) -> None:
    limiter = Limiter(name, Concurrency(1))
    with ManualClock():
        limiter.update(Concurrency(2))
        assert [limit.capacity for limit in limiter.status().limits] == [2]
    assert [limit.capacity for limit in limiter.status().limits] == [1]


def test_the_classics_and_keys_use_the_clock(name: str) -> None:
    classic, tenants = RateLimiter(1, 5), Limiter(name, "1/minute")
    tenant = tenants["tenant"]
    with ManualClock(skips=True) as clock:
        for second in range(3):
            with classic.throttle():
                assert clock.elapsed() == second
        for minute in range(3):
            with tenant:
                assert clock.elapsed() == 2 + 60 * minute


def test_two_clocks_cannot_be_in_use() -> None:
    with ManualClock():
        with pytest.raises(RuntimeError, match="in use already"), ManualClock():
            pass
        with pytest.raises(RuntimeError, match="in use already"), ManualClock():
            pass
    with ManualClock():
        pass


LEFT_OVER = [
    (0.3 - 0.1 * 3, 0),
    (0.1 * 3 - 0.3, 0),
    (0.1 * 3, 300_000),
    (0.7 + 0.1, 800_000),
    (1e-6, 1),
    (-0.0, 0),
]


@pytest.mark.parametrize(("seconds", "ticks"), LEFT_OVER, ids=repr)
async def test_a_rounding_error_of_a_float_is_no_time(seconds: float, ticks: int) -> None:
    clock = ManualClock()
    clock.advance(seconds)
    await clock.aadvance(seconds)
    assert clock.moment - clock.start == 2 * ticks


@pytest.mark.parametrize(("seconds", "ticks"), LEFT_OVER, ids=repr)
def test_a_rounding_error_of_a_float_is_no_time_in_a_virtual_loop(
    seconds: float, ticks: int
) -> None:
    clock = ManualClock()
    clock.run(clock.aadvance(seconds))
    assert clock.moment - clock.start == ticks


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), True, "1", None], ids=repr)
async def test_bad_seconds_are_refused(seconds: float) -> None:
    clock = ManualClock()
    with pytest.raises((TypeError, ValueError), match=r"^advance\(seconds="):
        clock.advance(seconds)
    with pytest.raises((TypeError, ValueError), match=r"^aadvance\(seconds="):
        await clock.aadvance(seconds)
    assert clock.elapsed() == 0


def test_a_bad_start_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        ManualClock(start=datetime(2026, 1, 1))
    with pytest.raises(TypeError, match="skips must be a bool"):
        ManualClock(skips=1)  # type: ignore[arg-type]


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def ends(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


def until(met: Callable[[], bool]) -> None:
    """Return when a thread is where it waits."""
    give_up = time.monotonic() + 5
    while not met():
        assert time.monotonic() < give_up
        threading.Event().wait(0.0005)
