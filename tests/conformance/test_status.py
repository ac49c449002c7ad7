"""A limiter's status is true: for each limit the used and the free part, the number of waiters, and
when the next caller could go.
"""

from __future__ import annotations

import asyncio

import pytest

from headgate import (
    Concurrency,
    Limiter,
    LimitStatus,
    MaxSleepExceededError,
    Permit,
    Quota,
    Rate,
    Refusal,
    Status,
    Waiting,
    Window,
)
from headgate.stores.redis import queue
from tests.world import HOUR, World, at_rest, soon, told, until, waiting


@told
async def test_all_permits_and_tokens_of_a_new_limiter_are_free(world: World) -> None:
    limiter = world.limiter(
        Concurrency(5),
        Rate(10, per=HOUR, initial=4),
        Window(20, per=HOUR),
        Quota(30, per=24 * HOUR),
    )

    status = await limiter.astatus()

    assert status.limits == (
        LimitStatus("Concurrency", "permits", 5, 0, 5),
        LimitStatus("Rate", "requests", 10, 6, 4),
        LimitStatus("Window", "requests", 20, 0, 20),
        LimitStatus("Quota", "requests", 30, 0, 30),
    )
    assert (status.waiting, status.retry_after) == (0, 0.0)


@told
async def test_the_status_follows_acquires_and_releases(world: World) -> None:
    """The used permits while one is held; spent tokens stay spent; permits return to rest (L6)."""
    limiter = world.limiter(
        Concurrency(5), Rate(10, per=HOUR), Window(100, per=HOUR, unit="tokens")
    )

    async with limiter.acquire(3, tokens=40), limiter.acquire(tokens=5):
        status = await limiter.astatus()
        assert [(limit.used, limit.left) for limit in status.limits] == [(2, 3), (4, 6), (45, 55)]

    status = await at_rest(limiter)
    assert [(limit.used, limit.left) for limit in status.limits] == [(0, 5), (4, 6), (45, 55)]


@told
async def test_retry_after_is_none_when_only_a_release_can_help(world: World) -> None:
    limiter = world.limiter(Concurrency(1), Rate(100, per=HOUR))

    async with limiter:
        assert (await limiter.astatus()).retry_after is None
        behind = asyncio.create_task(_acquired(limiter))
        assert (await waiting(limiter, 1)).retry_after is None
    (await behind).release()

    assert (await at_rest(limiter)).retry_after == 0.0


async def test_while_permits_and_tokens_are_missing_retry_after_is_everywhere_that_of_the_rate(
    world: World,
) -> None:
    """The caller can pass then, if permits are free: of a refusal, a status, an error and a
    callback.
    """
    limiter, seen = world.limiter(Concurrency(1), Rate(1, per=HOUR)), list[Waiting]()
    holder = await limiter.acquire()

    refusal, status = await limiter.atry_acquire(), await limiter.astatus()
    with pytest.raises(MaxSleepExceededError) as late:
        await limiter.acquire(max_sleep=1)
    waiter = asyncio.create_task(limiter.acquire(on_wait=seen.append).__aenter__())
    await waiting(limiter, 1)

    assert isinstance(refusal, Refusal)
    for its in (refusal, status, late.value, *seen):
        assert its.retry_after == pytest.approx(HOUR, abs=world.slack or 0.01)
    behind = await limiter.astatus()
    assert behind.retry_after == pytest.approx(2 * HOUR, abs=world.slack or 0.01)
    waiter.cancel()
    await asyncio.wait([waiter])
    holder.release()
    await at_rest(limiter)


@told
async def test_retry_after_is_the_wait_of_a_caller_that_comes_now(world: World) -> None:
    limiter = world.limiter(Rate(1, per=HOUR))
    await limiter.acquire()
    alone = await limiter.astatus()
    callers = [asyncio.create_task(_acquired(limiter)) for _ in range(2)]

    behind_two = await waiting(limiter, 2)

    assert alone.retry_after == pytest.approx(HOUR, abs=world.slack or 0.01)
    assert behind_two.retry_after == pytest.approx(3 * HOUR, abs=world.slack or 0.01)
    for caller in callers:
        caller.cancel()
    await asyncio.wait(callers)
    await waiting(limiter, 0)


@told
async def test_waiting_counts_the_waiters(world: World) -> None:
    limiter = world.limiter(Concurrency(1))
    holder = await limiter.acquire()
    callers = [asyncio.create_task(_acquired(limiter)) for _ in range(3)]
    await waiting(limiter, 3)

    callers[1].cancel()
    await waiting(limiter, 2)
    holder.release()
    (await soon(callers[0])).release()
    (await soon(callers[2])).release()

    await at_rest(limiter)


@told
async def test_a_status_changes_nothing(world: World) -> None:
    limiter = world.limiter(Rate(10, per=1000 * HOUR), Concurrency(3))
    async with limiter:
        first = await limiter.astatus()
        for _ in range(20):
            again = await limiter.astatus()

    assert again.limits == first.limits


def test_status_and_astatus_are_equal(store: object, name: str) -> None:
    limiter = Limiter(name, Concurrency(2), Rate(10, per=1000 * HOUR), store=store)
    with limiter:
        blocking = limiter.status()
        awaited = asyncio.run(limiter.astatus())

    assert isinstance(blocking, Status)
    assert blocking == awaited


@told
async def test_a_limiter_shows_itself_by_its_own_name(world: World) -> None:
    """Names are shown as the user wrote them."""
    limiter = world.limiter(Concurrency(2), name=f"my api: {world.name}")

    permit = await limiter.acquire()
    texts = [repr(limiter), repr(permit), (await limiter.astatus()).name, repr(limiter["a b"])]

    assert all("my api: " in text for text in texts)
    assert "a b" in texts[3]
    permit.release()
    await until(lambda status: status.limits[0].used == 0, limiter)


async def _acquired(limiter: Limiter) -> Permit:
    return await limiter.acquire()


@told
async def test_a_repr_shows_the_status_that_was_seen_last(world: World) -> None:
    """On Redis a repr makes no call: before the first status it shows the limits.

    In memory it is the present status.
    """
    limiter = world.limiter(Concurrency(2), Rate(10, per=HOUR))
    if world.in_memory:
        unknown = Limiter.attach(f"{world.name}-other", store=world.store)
        assert repr(unknown).endswith(": no limits declared yet, 0 waiting>")
    else:
        assert (
            "2 permits held at once for 30 s each and 1 requests every 360 s, at most 10 at once "
            "(no status asked yet)" in repr(limiter)
        )
        other = f"{world.name}-other"
        assert "limits that are in the store (no status asked yet)" in repr(
            Limiter.attach(other, store=world.store)
        )

    async with limiter.acquire(3):
        status = await limiter.astatus()
        shown = repr(limiter)

    assert status.line() in shown
    assert shown.startswith(
        f"<Limiter {world.name!r}: 1 of 2 permits used (Concurrency), 3 of 10 requests used "
        "(Rate), 0 waiting"
    )
    assert ("on Redis at" in shown) != world.in_memory


def test_a_repr_shows_its_age(redis_url: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limiter = Limiter(name, Concurrency(2), store=redis_url)
    limiter.status()
    seen = queue.monotonic()
    monkeypatch.setattr(queue, "monotonic", lambda: seen + 65)

    assert "0 waiting (65 s ago), on Redis at" in repr(limiter)
