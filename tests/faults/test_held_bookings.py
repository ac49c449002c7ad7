"""A pause that comes between a grant and its moment: whoever sleeps for that waits again, in order, in whatever process."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, Rate
from headgate.stores.redis.lane import Lane
from tests.faults.scene import elsewhere, enter, eventually, has_listened
from tests.world import soon, waiting

PER = 0.04  # seconds: the next one is booked, the one behind it waits
PAUSE = 0.1
SLOW = Rate(1, per=PER)


@pytest.fixture
def here(name: str, redis_url: str) -> Limiter:
    return elsewhere(name, SLOW, url=redis_url)


@pytest.fixture
async def there(name: str, redis_url: str) -> Limiter:
    """Of another process, in which somebody has waited before: it listens."""
    client, before = Redis.from_url(redis_url), f"{name}-before"
    its = Limiter(before, Concurrency(1), store=client)
    await has_listened(its, elsewhere(before, Concurrency(1), url=redis_url))
    return Limiter(name, SLOW, store=client)


def lane_of(limiter: Limiter) -> Lane:
    lane = limiter._line._store.lane(limiter._line)
    assert isinstance(lane, Lane)
    return lane


async def asleep(limiter: Limiter) -> list[asyncio.Task[object]]:
    """One who sleeps for its moment, and one who waits behind it."""
    await limiter.acquire()
    callers: list[asyncio.Task[object]] = []
    for _ in range(2):
        callers.append(asyncio.create_task(enter(limiter)))
        await asyncio.sleep(0)
    await waiting(limiter, 1)
    assert len(lane_of(limiter)._booked.queue) == 1
    return callers


async def test_who_sleeps_elsewhere_waits_again_in_front(here: Limiter, there: Limiter) -> None:
    """T3, S6: given one who sleeps for its moment and one behind it, when another process pauses, then both go after its end."""
    loop = asyncio.get_running_loop()
    callers = await asleep(there)
    passed: list[tuple[int, float]] = []
    for number, caller in enumerate(callers):
        caller.add_done_callback(lambda _, number=number: passed.append((number, loop.time())))

    start = loop.time()
    await here.apause(PAUSE)
    await soon(asyncio.gather(*callers))

    assert [number for number, _ in passed] == [0, 1]
    assert passed[0][1] >= start + PAUSE
    assert passed[1][1] >= passed[0][1] + 0.9 * PER
    assert not lane_of(there).paused


async def test_a_lane_knows_of_a_pause(here: Limiter, there: Limiter) -> None:
    """By the reply to its own call, by what is announced to it, and by any reply to whoever has not heard."""
    deaf = lane_of(here)
    assert [deaf.paused, lane_of(there).paused] == [False, False]

    await there.apause(PAUSE)
    assert lane_of(there).paused
    assert not deaf.paused
    await here.astatus()
    assert deaf.paused


async def test_a_grant_that_was_given_back_is_not_taken_for_a_new_one(here: Limiter, there: Limiter) -> None:
    """S3: given one whose booking was moved, when the former grant is told once more, then it goes on waiting, and passes once."""
    callers = await asleep(there)
    lane = lane_of(there)
    _, ticket, grant = lane._booked.queue[0]

    await there.apause(PAUSE)
    lane.heard(f"{lane._session} {grant.t} -1 {ticket.number} 1 0 {grant.fence - grant.t} 0")
    await waiting(here, 2)

    assert not lane._booked.queue
    assert [caller.done() for caller in callers] == [False, False]
    await soon(asyncio.gather(*callers))


async def test_who_gives_up_when_it_is_held_back_leaves_nothing_behind(here: Limiter, there: Limiter) -> None:
    """T5, L6: given one whose booking was moved, when it is cancelled in the pause, then the one behind it goes at its end."""
    callers = await asleep(there)
    loop = asyncio.get_running_loop()
    start = loop.time()

    await here.apause(PAUSE)
    await waiting(here, 2)
    callers[0].cancel()
    await soon(callers[1])

    assert PAUSE <= loop.time() - start < PAUSE + 0.9 * PER + 0.5
    await waiting(here, 0)


async def test_a_pause_of_a_server_that_is_away_is_not_made_up_for(name: str) -> None:
    """Unlike what gives back, it would begin when the server is there again."""
    limiter = elsewhere(name, SLOW, url="redis://127.0.0.1:1")

    limiter.pause(PAUSE)
    lane = lane_of(limiter)
    await eventually(lambda: not (lane._queued or lane._sent))

    assert not lane._errands
