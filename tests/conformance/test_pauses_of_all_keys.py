"""A pause of the whole limiter holds all its keys. A pause of one key holds that key alone."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from headgate import (
    Concurrency,
    Limiter,
    MaxSleepExceededError,
    Permit,
    Quota,
    Rate,
    Refusal,
    UnknownLimiterError,
    Window,
)
from tests.world import HOUR, World, at_rest, long, soon, told, until, used, waiting

PLENTY = {
    "rate": [Rate(100, per=HOUR)],
    "window": [Window(100, per=HOUR)],
    "quota": [Quota(100, per=1000 * HOUR)],
    "concurrency": [Concurrency(100)],
    "several": [Concurrency(100), Rate(100, per=HOUR)],
}
KINDS = pytest.mark.parametrize("limits", PLENTY.values(), ids=PLENTY)
BEATS = 3  # of a pause


async def entered(limiter: Limiter) -> None:
    async with limiter:
        pass


async def is_paused(limiter: Limiter) -> None:
    await until(lambda status: status.paused > 0, limiter)


@KINDS
@told
async def test_a_pause_of_the_limiter_holds_a_key_in_use(world: World, limits: list[Any]) -> None:
    """T3: given a key that callers enter, when the whole limiter is paused, then callers of the key
    wait until its end.
    """
    limiter = world.limiter(*limits)
    key = limiter["k"]
    await entered(key)

    start = world.now()
    await limiter.apause(BEATS * world.beat)
    await is_paused(key)
    await soon(entered(key))

    assert world.now() - start >= BEATS * world.beat - 1e-6
    await at_rest(key)


@KINDS
@told
async def test_a_key_first_used_during_the_pause_is_held_too(
    world: World, limits: list[Any]
) -> None:
    limiter = world.limiter(*limits)

    start = world.now()
    await limiter.apause(BEATS * world.beat)
    await soon(entered(limiter["new"]))

    assert world.now() - start >= BEATS * world.beat - 1e-6


@told
async def test_waiters_of_a_key_keep_their_order_through_a_pause_of_the_limiter(
    world: World,
) -> None:
    """S6: given callers that wait in a key, when the limiter is paused and the holder leaves, then
    they pass after the pause, in order.
    """
    limiter = world.limiter(Concurrency(1))
    key, passed = limiter["k"], list[int]()
    holder = await key.acquire()

    async def enter(number: int) -> None:
        async with key:
            passed.append(number)

    callers = []
    for number in range(3):
        callers.append(asyncio.create_task(enter(number)))
        await waiting(key, number + 1)
    start = world.now()
    await limiter.apause(BEATS * world.beat)
    await is_paused(key)
    holder.release()
    await soon(asyncio.gather(*callers))

    assert passed == [0, 1, 2]
    assert world.now() - start >= BEATS * world.beat - 1e-6
    await at_rest(key)


@told
async def test_a_refusal_by_a_key_names_the_end_of_the_limiters_pause(world: World) -> None:
    """T8: and nothing is charged."""
    limiter = world.limiter(Rate(100, per=HOUR))
    key = limiter["k"]
    await entered(key)
    before = used(await key.astatus())
    await limiter.apause(HOUR)
    await is_paused(key)

    refused = await key.atry_acquire()
    with pytest.raises(MaxSleepExceededError) as late:
        await key.acquire(max_sleep=world.beat)

    assert isinstance(refused, Refusal)
    for retry_after in (refused.retry_after, late.value.retry_after):
        assert retry_after == pytest.approx(HOUR, abs=world.slack + 1)
    assert used(await key.astatus()) == before


@told
async def test_the_status_of_a_key_shows_the_limiters_pause(world: World) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))
    await limiter.apause(HOUR)

    status = await limiter["k"].astatus()

    assert status.paused == pytest.approx(HOUR, abs=world.slack + 1)
    assert status.retry_after == pytest.approx(HOUR, abs=world.slack + 1)


@told
async def test_the_end_of_the_limiters_pause_ends_it_for_all_keys(world: World) -> None:
    """L5: waiters of a key go on at once, in order."""
    limiter = world.limiter(Rate(100, per=HOUR))
    keys = [limiter[name] for name in "abc"]
    for key in keys:
        await entered(key)
    await limiter.apause(HOUR)
    for key in keys:
        await is_paused(key)
    callers = [asyncio.create_task(entered(key)) for key in keys for _ in range(2)]
    for key in keys:
        await waiting(key, 2)

    await limiter.aresume()

    await soon(asyncio.gather(*callers))
    for key in keys:
        assert (await key.astatus()).paused == 0.0


@told
async def test_a_keys_own_pause_outlasts_the_limiters(world: World) -> None:
    """Given a key that is paused itself, when the limiter's pause is ended, then the key is held
    and another key is not.
    """
    limiter = world.limiter(Rate(100, per=HOUR))
    own, other = limiter["own"], limiter["other"]
    await own.apause(HOUR)
    await limiter.apause(HOUR / 2)
    await is_paused(other)

    await limiter.aresume()
    await until(lambda status: status.paused == 0.0, other)

    await soon(entered(other))
    assert (await own.astatus()).paused == pytest.approx(HOUR, abs=world.slack + 1)
    assert not await own.atry_acquire()
    await own.aresume()
    await soon(entered(own))


@told
async def test_a_key_cannot_end_the_limiters_pause(world: World) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))
    key = limiter["k"]
    await limiter.apause(HOUR)
    await key.apause(2 * HOUR)

    await key.aresume()

    assert (await key.astatus()).paused == pytest.approx(HOUR, abs=world.slack + 1)
    assert not await key.atry_acquire()


@told
async def test_a_pause_of_a_key_holds_neither_the_limiter_nor_other_keys(world: World) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))
    await limiter["k"].apause(HOUR)

    await soon(entered(limiter))
    await soon(entered(limiter["other"]))

    assert not await limiter["k"].atry_acquire()


@told
async def test_a_limiter_of_a_longer_name_is_not_held(world: World) -> None:
    """Given names of which one begins with the other, and one that looks like a key."""
    limiter = world.limiter(Rate(100, per=HOUR))
    await limiter.apause(HOUR)

    for suffix in ("x", ":k", "/k"):
        other = world.limiter(Rate(100, per=HOUR), name=world.name + suffix)
        await soon(entered(other))
        await soon(entered(other["k"]))


@told
async def test_a_shorter_pause_of_the_limiter_does_not_end_a_longer_one_for_its_keys(
    world: World,
) -> None:
    limiter = world.limiter(Rate(100, per=HOUR))
    await limiter.apause(HOUR)
    await limiter.apause(world.beat)

    assert (await limiter["k"].astatus()).paused == pytest.approx(HOUR, abs=world.slack + 1)


@told
async def test_a_caller_with_a_moment_ahead_waits_for_the_end_of_the_pause(world: World) -> None:
    """T3: given callers of a key that wait for tokens, one in each beat, when the limiter is paused
    for some beats, then none passes before the end, and all pass in order.
    """
    limiter = world.limiter(Rate(1, per=world.beat))
    key, moments = limiter["k"], list[tuple[int, float]]()
    await key.acquire()

    async def caller(number: int) -> None:
        await key.acquire()
        moments.append((number, world.now()))

    callers = []
    for number in range(3):
        callers.append(asyncio.create_task(caller(number)))
        await asyncio.sleep(0)
    await limiter.apause(10 * world.beat)
    await is_paused(key)
    end = world.now() + (await key.astatus()).paused
    late = [number for number, _ in moments]  # those that passed before the pause
    await asyncio.gather(*callers)

    assert [number for number, _ in moments] == [0, 1, 2]
    assert all(moment >= end - 0.001 for number, moment in moments if number not in late)


@told
async def test_permits_of_a_key_stay_held_in_the_pause(world: World) -> None:
    limiter = world.limiter(Concurrency(2))
    key = limiter["k"]
    permit = await key.acquire()

    await limiter.apause(HOUR)
    await is_paused(key)

    assert permit.held
    assert used(await key.astatus()) == [1]
    await permit.arelease()
    await until(lambda status: used(status) == [0], key)


@told
async def test_a_limiter_that_was_paused_before_its_first_acquire_holds_its_keys(
    world: World,
) -> None:
    """Given another limiter object of the name, which no caller has used."""
    await world.limiter(Rate(100, per=HOUR)).apause(HOUR)

    key = world.limiter(Rate(100, per=HOUR))["k"]

    assert not await key.atry_acquire()


def test_threads_of_a_key_are_held_by_the_limiters_pause(store: Any, name: str) -> None:
    """Given a thread that has entered a key at once, when the limiter is paused, then the thread
    waits until the pause ends.
    """
    limiter = Limiter(name, Rate(100, per=HOUR), store=store)
    key = limiter["k"]
    for _ in range(3):
        with key:
            pass
    limiter.pause(HOUR)
    limiter.flush()
    permits = list[Permit]()

    assert not key.try_acquire()
    thread = threading.Thread(target=lambda: permits.append(key.acquire_sync()))
    thread.start()
    asyncio.run(waiting(key, 1))
    limiter.resume()
    thread.join(long())

    assert len(permits) == 1


def test_a_thread_that_has_just_paused_the_limiter_passes_at_no_key(store: Any, name: str) -> None:
    """Neither at a known key nor at a new one, though the pause is still on its way."""
    limiter = Limiter(name, Rate(100, per=HOUR), store=store, max_sleep=0.05)
    for _ in range(3):
        with limiter["known"]:
            pass

    limiter.pause(HOUR)

    for key in ("known", "new"):
        with pytest.raises(MaxSleepExceededError):
            limiter[key].acquire_sync()


# Limiters that are attached -----------------------------------------------------------------------


@told
async def test_an_attached_limiter_pauses_a_limiter_of_which_only_keys_are_used(
    world: World,
) -> None:
    """Given keys in use, and no acquire of the whole limiter, when another program attaches to the
    name and pauses it, then the keys are held.
    """
    key = world.limiter(Rate(100, per=HOUR))["k"]
    await entered(key)
    tool = Limiter.attach(world.name, store=world.store)

    await tool.apause(HOUR)
    await is_paused(key)
    await tool.aresume()

    await until(lambda status: status.paused == 0.0, key)
    await soon(entered(key))


@told
async def test_an_attached_pause_that_is_not_awaited_holds_the_keys_too(world: World) -> None:
    key = world.limiter(Rate(100, per=HOUR))["k"]
    await entered(key)
    tool = Limiter.attach(world.name, store=world.store)

    tool.pause(HOUR)
    await is_paused(key)
    tool.resume()

    await until(lambda status: status.paused == 0.0, key)


@told
async def test_an_attached_limiter_pauses_no_unknown_name(world: World) -> None:
    tool = Limiter.attach(world.name, store=world.store)

    with pytest.raises(UnknownLimiterError):
        await tool.apause(HOUR)
    with pytest.raises(UnknownLimiterError):
        await tool.aresume()

    assert await world.limiter(Rate(100, per=HOUR)).atry_acquire()


@told
async def test_a_key_of_an_attached_limiter_is_held(world: World) -> None:
    """Given a program that takes the limits of a key from the store, when the limiter is paused,
    then its callers of the key are held.
    """
    limiter = world.limiter(Rate(100, per=HOUR))
    await entered(limiter["k"])
    tool = Limiter.attach(world.name, store=world.store)["k"]
    await entered(tool)

    await limiter.apause(HOUR)
    await is_paused(tool)

    assert not await tool.atry_acquire()
