"""A pause that comes between a reservation and its moment: the caller that sleeps waits again, in
order, in each process.
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
from headgate.stores.redis.session import next_call, traffic
from headgate.stores.redis.session.loop_session import LoopSession
from tests.faults.proxy import Proxy
from tests.faults.scene import (
    client_of_its_own,
    elsewhere,
    enter,
    eventually,
    has_listened,
    members_of,
)
from tests.world import LONG, soon, until, used, waiting

PER, AHEAD = 10.0, 15.0  # seconds: the next caller has a reservation, the one behind it waits
PAUSE = 60.0
SLOW = Rate(1, per=PER)


@pytest.fixture(autouse=True)
def _far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No reservation's moment comes while a test lasts, however slow the machine is."""
    monkeypatch.setattr(calls, "RESERVE_AHEAD", round(AHEAD * 1_000_000))


@pytest.fixture
def here(name: str, redis_url: str) -> Limiter:
    return elsewhere(name, SLOW, url=redis_url)


@pytest.fixture
async def there(name: str, redis_url: str) -> Limiter:
    """A limiter of another process in which a caller has waited before: it is subscribed."""
    client, before = client_of_its_own(redis_url), f"{name}-before"
    its = Limiter(before, Concurrency(1), store=client)
    await has_listened(its, elsewhere(before, Concurrency(1), url=redis_url))
    return Limiter(name, SLOW, store=client)


def id_of(loop_session: LoopSession) -> str:
    return loop_session.machine.numbering.session_id


def paused(loop_session: LoopSession) -> bool:
    """Whether all callers are held back, as far as this session knows."""
    return loop_session.traffic.reserved.pause_left(monotonic()) > 0


def loop_session_of(limiter: Limiter) -> LoopSession:
    queue: Any = queue_of(limiter)
    queue = queue_of(queue) if isinstance(queue, Undeclared) else queue  # it has not acquired yet
    its = store_of(queue).session(queue)
    assert isinstance(its, LoopSession)
    return its


async def asleep(limiter: Limiter) -> list[asyncio.Task[Permit]]:
    """One caller that sleeps until its reservation, and one that waits behind it."""
    await limiter.acquire()
    callers = [asyncio.create_task(enter(limiter)) for _ in range(2)]
    await waiting(limiter, 1)
    assert len(loop_session_of(limiter).traffic.reserved.sleepers) == 1
    return callers


async def gone(callers: list[asyncio.Task[Permit]], limiter: Limiter) -> None:
    for caller in callers:
        caller.cancel()
    await waiting(limiter, 0)


async def test_a_caller_with_a_reservation_waits_again_in_front_when_another_process_pauses(
    here: Limiter, there: Limiter, name: str, admin: Redis
) -> None:
    """T3, S6: given one caller that sleeps until its reservation and one behind it, when another
    process pauses, then both wait, in order.
    """
    callers = await asleep(there)

    await here.apause(PAUSE)
    await waiting(here, 2)

    numbers = [member.split(":")[1] for member in members_of(admin, name) if ":" in member]
    assert numbers == ["2", "3"]
    assert list(loop_session_of(there).traffic.waiting) == [2, 3]
    assert not loop_session_of(there).traffic.reserved.sleepers
    await gone(callers, here)
    assert used(await here.astatus()) == [0]  # of the bucket as it will be when the pause is over


async def test_callers_with_reservations_wait_again_in_the_order_of_their_grants(
    here: Limiter, there: Limiter, name: str, admin: Redis
) -> None:
    """S6: the order holds over all processes, and does not depend on which process learns of the
    pause first.
    """
    await here.acquire()
    await here.aupdate(Rate(1, per=2))
    callers = []
    for limiter in (here, there, here, there):
        callers.append(asyncio.create_task(enter(limiter)))
        await asyncio.sleep(0)
        await limiter.astatus()  # arrives behind it
    assert (
        sum(len(loop_session_of(limiter).traffic.reserved.sleepers) for limiter in (here, there))
        == 4
    )

    await there.apause(PAUSE)
    await waiting(here, 4)

    clients = [member.partition(".")[0] for member in members_of(admin, name) if ":" in member]
    first, second = (loop_session_of(limiter).client.id for limiter in (here, there))
    assert sorted(clients) == sorted([first, second] * 2)
    assert clients == [first, second, first, second]
    await gone(callers, here)


async def test_a_session_knows_of_a_pause(here: Limiter, there: Limiter) -> None:
    """By the reply to its own call, by a notification, and by any later reply."""
    deaf = loop_session_of(here)
    assert [paused(deaf), paused(loop_session_of(there))] == [False, False]

    await there.apause(PAUSE)
    assert paused(loop_session_of(there))
    assert not paused(deaf)
    await here.astatus()
    assert paused(deaf)


async def test_a_session_learns_of_a_pause_while_a_call_is_in_flight(
    here: Limiter, there: Limiter
) -> None:
    """Given a session that waits for a reply, when a pause is notified, then the session knows it,
    and holds the sleeping caller back.
    """
    callers = await asleep(there)
    its = loop_session_of(there)
    looks = asyncio.create_task(there.astatus())
    while its.traffic.sent is None:  # noqa: ASYNC110 - there is no event: it is to be seen before the reply is there
        await asyncio.sleep(0)

    server_time = its.machine.numbering.last_reply.server_time
    its.on_notification(f"{id_of(its)} {server_time} -1 !{round(PAUSE * 1_000_000)}")

    assert paused(its)
    assert not its.traffic.reserved.sleepers
    await looks
    await eventually(
        lambda: its.traffic.reserved.sleepers
    )  # the server knows nothing of that pause, and the new grant is not given back
    await gone(callers, here)


async def test_a_former_grant_that_arrives_again_is_no_new_one(
    here: Limiter, there: Limiter
) -> None:
    """S3: given a caller whose reservation was moved, when the former grant arrives once more, then
    the caller goes on waiting.
    """
    callers = await asleep(there)
    its = loop_session_of(there)
    _, pending, grant = its.traffic.reserved.sleepers[0]

    await there.apause(PAUSE)
    its.on_notification(f"{id_of(its)} {grant.t} -1 {pending.number} 1 0 {grant.fence - grant.t} 0")
    await waiting(here, 2)

    assert not its.traffic.reserved.sleepers
    assert [caller.done() for caller in callers] == [False, False]
    await gone(callers, here)


async def test_a_caller_that_gives_up_in_a_pause_leaves_the_queue(
    here: Limiter, there: Limiter
) -> None:
    """T5, L6: given a caller whose reservation was moved, when it is cancelled in the pause, then
    the one behind it is the first.
    """
    callers = await asleep(there)

    await here.apause(PAUSE)
    await waiting(here, 2)
    callers[0].cancel()
    await waiting(here, 1)

    assert list(loop_session_of(there).traffic.waiting) == [3]
    await gone(callers[1:], here)


@pytest.mark.parametrize("max_sleep", [0.01, 2 * AHEAD])
async def test_a_caller_with_a_reservation_waits_through_a_pause_no_longer_than_max_sleep(
    here: Limiter, there: Limiter, max_sleep: float
) -> None:
    """T8: given a caller that may wait until its moment, when the limiter is paused for longer,
    then the error says when the pause ends.
    """
    await there.acquire()
    caller = asyncio.create_task(queue_of(there).acquire(Request({}, round(AHEAD * 1_000_000))))
    await asyncio.sleep(0)
    await there.astatus()
    (_, pending, _), *_ = loop_session_of(there).traffic.reserved.sleepers
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


async def test_a_caller_that_has_lost_its_reservation_in_a_pause_waits_behind_the_others(
    name: str, redis_url: str, admin: Redis
) -> None:
    """S6: given one caller that sleeps and one behind it, when the reservation is lost before a
    pause, then the first caller stands behind the second.
    """
    here, there = (elsewhere(name, SLOW, Concurrency(2), url=redis_url) for _ in range(2))
    permit = await enter(there)
    callers = [asyncio.create_task(enter(there)) for _ in range(2)]
    await waiting(there, 1)
    its = loop_session_of(there)
    admin.zrem(f"headgate:{{{name}}}:who", f"+{its.traffic.reserved.sleepers[0][1].caller}")

    await here.apause(PAUSE)
    await waiting(here, 2)

    assert [
        member.split(":")[1]
        for member in members_of(admin, name)
        if ":" in member and member[0] != "+"
    ] == ["3", "4"]
    assert list(its.traffic.waiting) == [3, 4]
    await permit.arelease()
    await gone(callers, here)


@pytest.mark.proof
@pytest.mark.parametrize("most", [traffic.MOST, 1])
async def test_a_reservation_given_back_while_the_server_goes_away_is_free_when_it_is_back(
    name: str,
    proxy: Proxy,
    redis_url: str,
    hurried: None,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    """T5, S7: given a pause during a call, when the server goes away before a reservation is given
    back, then it is given back later.

    That is done one by one, or when a whole session gives up.
    """
    limiter, other = Limiter(name, SLOW, store=proxy.url), elsewhere(name, SLOW, url=redis_url)
    callers, its = await asleep(limiter), loop_session_of(limiter)
    for module in (next_call, traffic):
        monkeypatch.setattr(module, "MOST", most)
    proxy.replies.hold()
    looks = asyncio.create_task(limiter.astatus())
    await eventually(lambda: its.traffic.sent is not None)

    server_time = its.machine.numbering.last_reply.server_time
    its.on_notification(f"{id_of(its)} {server_time} -1 !{round(PAUSE * 1_000_000)}")
    proxy.refuses = True
    proxy.reset()
    outcomes = await soon(asyncio.gather(looks, *callers, return_exceptions=True))
    assert [type(outcome) for outcome in outcomes] == [StoreError] * 3
    proxy.replies.resume()
    proxy.refuses = False

    await until(lambda status: (status.waiting, used(status)) == (0, [0]), other)  # after the pause


async def test_a_pause_is_not_sent_later_to_a_server_that_was_away(name: str) -> None:
    """A release is sent later, but a pause is not: it would begin when the server is back."""
    limiter = elsewhere(name, SLOW, url="redis://127.0.0.1:1")

    limiter.pause(PAUSE)
    its = loop_session_of(limiter)
    await eventually(lambda: its.traffic.state is traffic.IDLE)

    assert not its.traffic.operations


async def test_a_session_knows_that_a_pause_was_ended(here: Limiter, there: Limiter) -> None:
    """Given two processes that know of a pause, when one ends it, then both know.

    A late notification of that pause changes nothing.
    """
    sessions = [loop_session_of(here), loop_session_of(there)]
    await asyncio.gather(here.astatus(), there.astatus())
    await there.apause(60)
    await here.astatus()
    assert [paused(loop_session) for loop_session in sessions] == [True, True]
    reservations = sessions[0].traffic.reserved
    known_at, left = reservations._pause_known_at, 60_000_000

    await here.aresume()
    await there.astatus()

    await eventually(lambda: not any(paused(loop_session) for loop_session in sessions))
    assert not reservations.pause(known_at, left, monotonic())
    assert not paused(sessions[0])
    await here.apause(60)
    assert paused(sessions[0])
