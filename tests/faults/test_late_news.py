"""Who gives up hears of its grant late: just then, or only afterwards. Either way what it was
charged comes back, once.

F2, F4: a waiter of one process is granted by a call of another, and is cancelled while the news are
on their way.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis import Redis

from headgate import Limiter, Rate
from headgate.stores.redis.session.loop_session import LoopSession
from headgate.stores.redis.session.session import Session
from tests.faults.scene import elsewhere, enter, eventually
from tests.world import session_of, soon, waiting

TEN = Rate(10, per=1000, unit="tokens")  # next to nothing flows back while a test lasts


async def left(limiter: Limiter) -> int:
    """How many tokens, once all that was posted before has arrived."""
    return (await soon(limiter.astatus())).limits[0].left


def channel(limiter: Limiter) -> str:
    """Where announcements to this loop are sent."""
    lane = session_of(limiter)
    return f"headgate:{lane.machine.numbering.session_id.partition('.')[0]}"


async def test_cancelled_just_when_the_news_come(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1, T5: given a waiter granted from elsewhere, when it is cancelled as it is told, then one
    token comes back, not two.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    waiter = asyncio.create_task(enter(limiter, tokens=1))
    await waiting(other, 1)
    heard = LoopSession.on_notification

    def cancelled_first(lane: LoopSession, announcement: str) -> None:
        if len(announcement.split()) > 3:  # it brings a grant
            waiter.cancel()
        heard(lane, announcement)

    monkeypatch.setattr(LoopSession, "on_notification", cancelled_first)
    monkeypatch.setattr(
        Session, "look", lambda lane: None
    )  # or the reply to that might be faster than the news
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    permit.settle(tokens=8)
    with pytest.raises(asyncio.CancelledError):
        await soon(waiter)

    assert await left(limiter) == 2


async def test_cancelled_while_the_news_are_on_their_way(
    name: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2, T5: given a waiter granted from elsewhere, when it is cancelled before the reply that
    says so, nothing is lost.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    waiter = asyncio.create_task(enter(limiter, tokens=1))
    await waiting(other, 1)
    answered, loop = LoopSession.answered, asyncio.get_running_loop()

    def cancelled_first(lane: LoopSession, reply: Any) -> None:
        if lane.waits and reply.partition(b"|")[2]:  # it brings a grant
            waiter.cancel()
            loop.call_soon(answered, lane, reply)  # the task runs first
        else:
            answered(lane, reply)

    monkeypatch.setattr(LoopSession, "on_notification", lambda lane, announcement: None)
    monkeypatch.setattr(LoopSession, "answered", cancelled_first)
    permit.settle(tokens=8)
    await waiting(other, 0)
    await left(limiter)
    with pytest.raises(asyncio.CancelledError):
        await soon(waiter)

    assert await left(limiter) == 2


async def test_several_give_up_in_one_breath(name: str, redis_url: str) -> None:
    """T2, T5: given a large cost and small ones behind it, when all are cancelled, then what the
    small ones got comes back.
    """
    limiter = elsewhere(name, TEN, url=redis_url)
    await limiter.acquire(tokens=5)
    waiters = []
    for cost in (9, 1, 1, 1):
        waiters.append(asyncio.create_task(enter(limiter, tokens=cost)))
        await waiting(limiter, len(waiters))

    for waiter in waiters:
        waiter.cancel()
    await asyncio.wait(waiters)

    assert await left(limiter) == 5


async def test_news_of_later_grants_wait_for_those_before(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: given a reply that grants the first in the queue, when the news of the second are faster,
    then the first goes first.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    through: list[int] = []

    async def caller(number: int) -> None:
        await limiter.acquire(tokens=1)
        through.append(number)

    callers = [asyncio.create_task(caller(number)) for number in (1, 2)]
    await waiting(other, 2)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # it has listened since before this was asked
    lane, heard, answered = (
        session_of(limiter),
        LoopSession.on_notification,
        LoopSession.answered,
    )
    news: list[str] = []
    replies: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(
            LoopSession, "on_notification", lambda lane, announcement: None
        )  # lost: a reply will tell of the first
        permit.settle(tokens=9)
        await waiting(other, 1)
    with monkeypatch.context() as patch:
        patch.setattr(
            LoopSession,
            "on_notification",
            lambda lane, announcement: (news.append(announcement), heard(lane, announcement)),
        )
        patch.setattr(
            LoopSession,
            "answered",
            lambda its, reply: replies.append(reply) if its is lane else answered(its, reply),
        )
        lane.look()
        await eventually(lambda: replies)
        permit.settle(tokens=8)
        await eventually(lambda: any(len(each.split()) > 3 for each in news))
    answered(lane, replies[0])
    await soon(asyncio.gather(*callers))

    assert through == [1, 2]


async def test_news_that_were_lost_are_asked_for_before_later_ones_are_believed(
    name: str, redis_url: str, admin: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S6: given an announcement for the first in the queue that nobody heard, when that for the
    second comes, it has to wait.
    """
    limiter, other = elsewhere(name, TEN, url=redis_url), elsewhere(name, TEN, url=redis_url)
    permit = await other.acquire(tokens=10)
    through: list[int] = []

    async def caller(number: int) -> None:
        await limiter.acquire(tokens=1)
        through.append(number)

    callers = [asyncio.create_task(caller(number)) for number in (1, 2)]
    await waiting(other, 2)
    await eventually(lambda: admin.pubsub_numsub(channel(limiter))[0][1])
    await limiter.astatus()  # it has listened since before this was asked
    with monkeypatch.context() as patch:
        patch.setattr(LoopSession, "on_notification", lambda lane, announcement: None)
        permit.settle(tokens=9)
        await waiting(other, 1)
    permit.settle(tokens=8)
    await soon(asyncio.gather(*callers))

    assert through == [1, 2]
