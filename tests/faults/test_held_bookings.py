"""A pause that comes between a grant and its moment: whoever sleeps for that waits again, in order,
in whatever process.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Any

import pytest
from redis import Redis

from headgate import Concurrency, Limiter, MaxSleepExceededError, Permit, Rate, StoreError
from headgate.declaring import Undeclared
from headgate.internals import queue_of, store_of
from headgate.request import Request
from headgate.stores.redis.protocol import calls
from headgate.stores.redis.session import traffic
from headgate.stores.redis.session.loop_session import LoopSession
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    client_of_its_own,
    elsewhere,
    enter,
    eventually,
    everybody,
    has_listened,
)
from tests.world import LONG, soon, until, used, waiting

PER, AHEAD = 10.0, 15.0  # seconds: the next one is booked, the one behind it waits
PAUSE = 60.0
SLOW = Rate(1, per=PER)


@pytest.fixture(autouse=True)
def _far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's moment comes while a test lasts, however slow the machine is."""
    monkeypatch.setattr(calls, "HORIZON", round(AHEAD * 1_000_000))


@pytest.fixture
def here(name: str, redis_url: str) -> Limiter:
    return elsewhere(name, SLOW, url=redis_url)


@pytest.fixture
async def there(name: str, redis_url: str) -> Limiter:
    """Of another process, in which somebody has waited before: it listens."""
    client, before = client_of_its_own(redis_url), f"{name}-before"
    its = Limiter(before, Concurrency(1), store=client)
    await has_listened(its, elsewhere(before, Concurrency(1), url=redis_url))
    return Limiter(name, SLOW, store=client)


def id_of(lane: LoopSession) -> str:
    return lane.machine.numbering.session_id


def paused(lane: LoopSession) -> bool:
    """Whether all callers are held back, as far as this session knows."""
    return lane.traffic.reserved.pause_left(monotonic()) > 0


def lane_of(limiter: Limiter) -> LoopSession:
    line: Any = queue_of(limiter)
    line = queue_of(line) if isinstance(line, Undeclared) else line  # it has not acquired yet
    its = store_of(line).session(line)
    assert isinstance(its, LoopSession)
    return its


async def asleep(limiter: Limiter) -> list[asyncio.Task[Permit]]:
    """One who sleeps for its moment, and one who waits behind it."""
    await limiter.acquire()
    callers = [asyncio.create_task(enter(limiter)) for _ in range(2)]
    await waiting(limiter, 1)
    assert len(lane_of(limiter).traffic.reserved.queue) == 1
    return callers


async def gone(callers: list[asyncio.Task[Permit]], limiter: Limiter) -> None:
    for caller in callers:
        caller.cancel()
    await waiting(limiter, 0)


async def test_who_sleeps_elsewhere_waits_again_in_front(
    here: Limiter, there: Limiter, name: str, admin: Redis
) -> None:
    """T3, S6: given one who sleeps for its moment and one behind it, when another process pauses,
    then both wait, in order.
    """
    callers = await asleep(there)

    await here.apause(PAUSE)
    await waiting(here, 2)

    numbers = [who.split(":")[1] for who in everybody(admin, name) if ":" in who]
    assert numbers == ["2", "3"]
    assert list(lane_of(there).traffic.waiting) == [2, 3]
    assert not lane_of(there).traffic.reserved.queue
    await gone(callers, here)
    assert used(await here.astatus()) == [0]  # of the bucket as it will be when it is over


async def test_several_come_back_in_the_order_in_which_they_were_granted(
    here: Limiter, there: Limiter, name: str, admin: Redis
) -> None:
    """S6: over all processes, whoever hears of the pause first."""
    await here.acquire()
    await here.aupdate(Rate(1, per=2))
    callers = []
    for limiter in (here, there, here, there):
        callers.append(asyncio.create_task(enter(limiter)))
        await asyncio.sleep(0)
        await limiter.astatus()  # arrives behind it
    assert sum(len(lane_of(limiter).traffic.reserved.queue) for limiter in (here, there)) == 4

    await there.apause(PAUSE)
    await waiting(here, 4)

    clients = [who.partition(".")[0] for who in everybody(admin, name) if ":" in who]
    first, second = (lane_of(limiter).client.id for limiter in (here, there))
    assert sorted(clients) == sorted([first, second] * 2)
    assert clients == [first, second, first, second]
    await gone(callers, here)


async def test_a_lane_knows_of_a_pause(here: Limiter, there: Limiter) -> None:
    """By the reply to its own call, by what is announced to it, and by any reply to whoever has not
    heard.
    """
    deaf = lane_of(here)
    assert [paused(deaf), paused(lane_of(there))] == [False, False]

    await there.apause(PAUSE)
    assert paused(lane_of(there))
    assert not paused(deaf)
    await here.astatus()
    assert paused(deaf)


async def test_a_pause_is_heard_while_a_call_is_on_its_way(here: Limiter, there: Limiter) -> None:
    """Given a lane that waits for a reply, when a pause is announced, then it is known, and who
    sleeps is held back.
    """
    callers = await asleep(there)
    its = lane_of(there)
    looks = asyncio.create_task(there.astatus())
    while its.traffic.sent is None:  # noqa: ASYNC110 - there is no event: it is to be seen before the reply is there
        await asyncio.sleep(0)

    its.on_notification(
        f"{id_of(its)} {its.machine.last_reply.server} -1 !{round(PAUSE * 1_000_000)}"
    )

    assert paused(its)
    assert not its.traffic.reserved.queue
    await looks
    await eventually(
        lambda: its.traffic.reserved.queue
    )  # the server knows nothing of that pause: what it grants anew is not given back
    await gone(callers, here)


async def test_a_grant_that_was_given_back_is_not_taken_for_a_new_one(
    here: Limiter, there: Limiter
) -> None:
    """S3: given one whose booking was moved, when the former grant is told once more, then it goes
    on waiting.
    """
    callers = await asleep(there)
    its = lane_of(there)
    _, pending, grant = its.traffic.reserved.queue[0]

    await there.apause(PAUSE)
    its.on_notification(f"{id_of(its)} {grant.t} -1 {pending.number} 1 0 {grant.fence - grant.t} 0")
    await waiting(here, 2)

    assert not its.traffic.reserved.queue
    assert [caller.done() for caller in callers] == [False, False]
    await gone(callers, here)


async def test_who_gives_up_when_it_is_held_back_leaves_nothing_behind(
    here: Limiter, there: Limiter
) -> None:
    """T5, L6: given one whose booking was moved, when it is cancelled in the pause, then the one
    behind it is the first.
    """
    callers = await asleep(there)

    await here.apause(PAUSE)
    await waiting(here, 2)
    callers[0].cancel()
    await waiting(here, 1)

    assert list(lane_of(there).traffic.waiting) == [3]
    await gone(callers[1:], here)


@pytest.mark.parametrize("max_sleep", [0.01, 2 * AHEAD])
async def test_who_is_held_back_waits_no_longer_than_it_may(
    here: Limiter, there: Limiter, max_sleep: float
) -> None:
    """T8: given one that may wait until its moment, when it is paused for longer, then it is told
    when that is over.
    """
    await there.acquire()
    caller = asyncio.create_task(queue_of(there).acquire(Request({}, round(AHEAD * 1_000_000))))
    await asyncio.sleep(0)
    await there.astatus()
    (_, pending, _), *_ = lane_of(there).traffic.reserved.queue
    pending.request = Request({}, round(max_sleep * 1_000_000))  # as if so much less of it was left

    await here.apause(PAUSE)
    if max_sleep < AHEAD:
        with pytest.raises(MaxSleepExceededError) as error:
            await soon(caller)
        assert PAUSE - LONG < error.value.retry_after <= PAUSE
    else:
        await waiting(here, 1)
        assert pending.deadline is not None
        caller.cancel()
    await waiting(here, 0)


async def test_who_has_lost_its_booking_when_it_is_held_back_comes_last(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S6: given one who sleeps, and one behind it, when its booking is lost and then all are
    paused, then it is behind that one.
    """
    here, there = (elsewhere(name, SLOW, Concurrency(2), url=redis_url) for _ in range(2))
    permit = await enter(there)
    callers = [asyncio.create_task(enter(there)) for _ in range(2)]
    await waiting(there, 1)
    its = lane_of(there)
    admin.zrem(f"headgate:{{{name}}}:who", f"+{its.traffic.reserved.queue[0][1].caller}")

    await here.apause(PAUSE)
    await waiting(here, 2)

    assert [
        who.split(":")[1] for who in everybody(admin, name) if ":" in who and who[0] != "+"
    ] == ["3", "4"]
    assert list(its.traffic.waiting) == [3, 4]
    await permit.arelease()
    await gone(callers, here)


@pytest.mark.proof
@pytest.mark.parametrize("most", [traffic.MOST, 1])
async def test_a_booking_that_is_given_back_to_a_server_that_goes_away_is_back_when_it_is_there(
    name: str,
    proxy: Proxy,
    redis_url: str,
    hurried: None,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """T5, S7: given one who sleeps and hears of a pause while a call is on its way, when the server
    goes away before it is told,

    then it is told later: one by one, or when a whole session gives up.
    """
    limiter, other = Limiter(name, SLOW, store=proxy.url), elsewhere(name, SLOW, url=redis_url)
    callers, its = await asleep(limiter), lane_of(limiter)
    monkeypatch.setattr(traffic, "MOST", most)
    proxy.replies.hold()
    looks = asyncio.create_task(limiter.astatus())
    await eventually(lambda: its.traffic.sent is not None)

    its.on_notification(
        f"{id_of(its)} {its.machine.last_reply.server} -1 !{round(PAUSE * 1_000_000)}"
    )
    proxy.refuses = True
    proxy.reset()
    told = await soon(asyncio.gather(looks, *callers, return_exceptions=True))
    assert [type(outcome) for outcome in told] == [StoreError] * 3
    proxy.replies.resume()
    proxy.refuses = False

    await until(lambda status: (status.waiting, used(status)) == (0, [0]), other)  # as it will be


async def test_a_pause_of_a_server_that_is_away_is_not_made_up_for(name: str) -> None:
    """Unlike what gives back, it would begin when the server is there again."""
    limiter = elsewhere(name, SLOW, url="redis://127.0.0.1:1")

    limiter.pause(PAUSE)
    its = lane_of(limiter)
    await eventually(lambda: its.traffic.state is traffic.IDLE)

    assert not its.traffic.operations


async def test_a_lane_knows_that_a_pause_was_ended(here: Limiter, there: Limiter) -> None:
    """Given two processes that know of a pause, when one ends it, then both know.

    Late news of that pause change nothing.
    """
    sessions = [lane_of(here), lane_of(there)]
    await asyncio.gather(here.astatus(), there.astatus())
    await there.apause(60)
    await here.astatus()
    assert [paused(lane) for lane in sessions] == [True, True]
    bookings = sessions[0].traffic.reserved
    told_at, left = bookings._pause_known_at, 60_000_000

    await here.aresume()
    await there.astatus()

    await eventually(lambda: not any(paused(lane) for lane in sessions))
    assert not bookings.pause(told_at, left, monotonic())
    assert not paused(sessions[0])
    await here.apause(60)
    assert paused(sessions[0])
